"""BatchNorm over the whole batch, wherever its samples are: statistics of all ranks together.

torch's SyncBatchNorm needs a GPU. This one computes the same on any device: each rank sends count,
mean and squared deviations of its samples, and all are combined without cancellation.

Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances" (1979).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from flatout.engine.ranks.synced_passes import SyncedPasses


class SyncBatchNorms:
    """Lets the BatchNorms of a model that trains see the batch of all ranks.

    Names in the state_dict stay as they are, and so does the model: `close` takes it off again.

    Args:
        model: whose norms they are.
        passes: through it, which the ranks make together.
    """

    def __init__(self, model: nn.Module, passes: SyncedPasses) -> None:
        self._norms: list[Any] = [
            module for module in model.modules() if isinstance(module, _BatchNorm)
        ]
        passes.are_norms_shared = True
        for norm in self._norms:
            # An attribute of the object hides the method of its class.
            norm.forward = _Synchronized(norm, passes)

    def close(self) -> None:
        """Each rank's norms see its own samples again."""
        for norm in self._norms:
            del norm.forward
        self._norms = []


class _Synchronized:
    """A norm's forward."""

    def __init__(self, norm: Any, passes: SyncedPasses) -> None:
        self._norm = norm
        self._original = norm.forward
        self._passes = passes

    def __call__(self, inputs: Tensor) -> Tensor:
        norm = self._norm
        if not norm.training:
            output: Tensor = self._original(inputs)
            return output
        norm._check_input_dim(inputs)
        normalize: Any = _Normalized.apply
        outputs, mean, variance, count = normalize(
            inputs, norm.weight, norm.bias, norm.eps, self._passes
        )
        if norm.track_running_stats and norm.running_mean is not None:
            _move_averages(norm, mean, variance, count)
        normalized: Tensor = outputs
        return normalized


@torch.no_grad()
def _move_averages(norm: Any, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    norm.num_batches_tracked.add_(1)
    # Without a momentum, the average is that of all batches.
    share = norm.momentum
    if share is None:
        share = 1.0 / norm.num_batches_tracked.to(mean.dtype)
    unbiased = variance * count / (count - 1).clamp(min=1)
    for average, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        average.copy_((1 - share) * average + share * value)


class _Normalized(torch.autograd.Function):
    """Inputs of shape (samples, channels, ...) with mean 0 and variance 1 in each channel, times
    weight, plus bias; also the mean, the variance, and the count of all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Any, bias: Any, eps: float, passes: SyncedPasses
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = inputs.to(_type_for(inputs))
        others = [dim for dim in range(inputs.dim()) if dim != 1]
        # What only fills up does not count.
        is_counted = not passes.is_filler
        mean, count, total = _statistics(wide, others, passes, is_counted)
        variance = total / count
        scale = torch.rsqrt(variance + eps)
        normal = (wide - _wide(mean, inputs)) * _wide(scale, inputs)
        outputs = normal if weight is None else normal * _wide(weight.to(wide.dtype), inputs)
        if bias is not None:
            outputs = outputs + _wide(bias.to(wide.dtype), inputs)
        ctx.save_for_backward(inputs, weight, mean, scale, count)
        ctx.passes, ctx.is_counted, ctx.others = passes, is_counted, others
        ctx.mark_non_differentiable(mean, variance, count)
        return outputs.to(inputs.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        inputs, weight, mean, scale, count = ctx.saved_tensors
        wide = gradient.to(mean.dtype)
        normal = (inputs.to(mean.dtype) - _wide(mean, inputs)) * _wide(scale, inputs)
        of_bias, of_weight = wide.sum(ctx.others), (wide * normal).sum(ctx.others)
        sums = torch.stack([of_bias, of_weight])
        ctx.passes.add_up(sums)
        slope = scale if weight is None else scale * weight.to(mean.dtype)
        through_statistics = torch.zeros_like(wide)
        if ctx.is_counted:
            shift, tilt = (sums / count).unbind()
            through_statistics = _wide(shift, inputs) + normal * _wide(tilt, inputs)
        of_inputs = (wide - through_statistics) * _wide(slope, inputs)
        if weight is None:
            return of_inputs.to(inputs.dtype), None, None, None, None
        return (
            of_inputs.to(inputs.dtype),
            of_weight.to(weight.dtype),
            of_bias.to(weight.dtype),
            None,
            None,
        )


def _statistics(
    inputs: Tensor, others: list[int], passes: SyncedPasses, is_counted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, count and squared deviations of each channel, over all ranks."""
    num_channels = inputs.shape[1]
    own = inputs.new_zeros(2 * num_channels + 1)
    if is_counted and inputs.numel():
        variance, mean = torch.var_mean(inputs, others, correction=0)
        number = inputs.numel() // num_channels
        own = torch.cat([mean, variance * number, own.new_tensor([float(number)])])
    rows = own.new_empty(passes.size * len(own))
    passes.gather(rows, own)
    means, deviations, counts = rows.view(passes.size, -1).split([num_channels, num_channels, 1], 1)
    count = counts.sum().clamp(min=1)
    mean = (means * counts).sum(0) / count
    total = deviations.sum(0) + ((means - mean).square() * counts).sum(0)
    return mean, count, total


def _type_for(inputs: Tensor) -> torch.dtype:
    return torch.float64 if inputs.dtype == torch.float64 else torch.float32


def _wide(channels: Tensor, like: Tensor) -> Tensor:
    """A number for each channel, broadcastable to the inputs."""
    return channels.view(1, -1, *(1,) * (like.dim() - 2))
