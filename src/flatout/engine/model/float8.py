"""8-bit floating-point matrix products for linear layers, with dynamic per-tensor scaling.

Inputs and weights are rounded to e4m3 (3 bits of mantissa, up to 448), gradients to e5m2 (2 bits,
up to 57,344), each divided by its largest element first. Sums are made in fp32, results are bf16,
and the weights themselves stay fp32. Nothing of it waits for the device.

torchao has the same recipe, but its layers take the model's place by place and want torch.compile;
these forty lines leave the model as it is, and go into a CUDA graph as they are.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", https://arxiv.org/abs/2209.05433.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flatout.schema.recipe import FLOAT8_MULTIPLE

# Below it a tensor counts as zeros, which must not be divided by their largest element.
_SMALLEST = 1e-12


def float8_layers(model: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers whose sizes tensor cores support in 8 bits."""
    for module in model.modules():
        # A class made from it may compute something else.
        if not isinstance(module, nn.Linear) or type(module) is not nn.Linear:
            continue
        weight: Tensor = module.weight
        does_fit = not any(size % FLOAT8_MULTIPLE for size in weight.shape)
        if does_fit and weight.dtype == torch.float32:
            yield module


class Float8Products:
    """Makes a model's linear layers multiply in 8 bits. `close` undoes it.

    Args:
        model: whose layers they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [(layer, layer.__dict__.get("forward")) for layer in float8_layers(model)]
        for layer, _ in self._layers:
            # An attribute of the object hides the method of its class.
            vars(layer)["forward"] = _Forward(layer)

    def close(self) -> None:
        """Makes the layers' forward passes their own again."""
        for layer, before in self._layers:
            del vars(layer)["forward"]
            if before is not None:
                vars(layer)["forward"] = before
        self._layers = []


class _Forward:
    """A linear layer's forward pass with 8-bit products."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer

    def __call__(self, inputs: Tensor) -> Tensor:
        layer = self._layer
        result: Tensor = _product(inputs.flatten(0, -2), layer.weight)
        if layer.bias is not None:
            result = result + layer.bias.to(result.dtype)
        return result.unflatten(0, inputs.shape[:-1]) if inputs.dim() != 2 else result


class _Product(torch.autograd.Function):
    """inputs_MK @ weight_NK.T; M is filled up to a multiple of 16 with zeros."""

    @staticmethod
    def forward(ctx: Any, inputs_MK: Tensor, weight_NK: Tensor) -> Tensor:
        num_rows = len(inputs_MK)
        inputs, input_scale = _rounded(_filled(inputs_MK), torch.float8_e4m3fn)
        weight, weight_scale = _rounded(weight_NK, torch.float8_e4m3fn)
        ctx.save_for_backward(inputs, input_scale, weight, weight_scale)
        ctx.of_inputs, ctx.of_weight = inputs_MK.dtype, weight_NK.dtype
        # Lower-precision accumulation is accurate enough in the forward pass, and faster.
        result_MN = _multiplied(inputs, weight.t(), input_scale, weight_scale, is_fast=True)
        return result_MN[:num_rows]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        inputs, input_scale, weight, weight_scale = ctx.saved_tensors
        [gradient_MN] = gradients
        gradient, scale = _rounded(_filled(gradient_MN), torch.float8_e5m2)
        of_inputs = of_weight = None
        if ctx.needs_input_grad[0]:
            product = _multiplied(gradient, _by_columns(weight), scale, weight_scale)
            of_inputs = product[: len(gradient_MN)].to(ctx.of_inputs)
        if ctx.needs_input_grad[1]:
            turned = gradient.t().contiguous()
            product = _multiplied(turned, _by_columns(inputs), scale, input_scale)
            of_weight = product.to(ctx.of_weight)
        return of_inputs, of_weight


# torch's stubs leave it untyped.
_product: Any = _Product.apply


def _rounded(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor in 8 bits, and the scale that restores its values."""
    largest = tensor.detach().abs().amax().float().clamp(min=_SMALLEST)
    scale = largest / torch.finfo(dtype).max
    # Row after row: a view that is turned would keep its strides, which the product refuses.
    return (tensor.detach().float() / scale).to(dtype).contiguous(), scale


def _filled(tensor_MK: Tensor) -> Tensor:
    num_missing = -len(tensor_MK) % FLOAT8_MULTIPLE
    return functional.pad(tensor_MK, (0, 0, 0, num_missing)) if num_missing else tensor_MK


def _by_columns(tensor: Tensor) -> Tensor:
    """The same with its columns in a row in memory, as required of the second factor."""
    return tensor.t().contiguous().t()


def _multiplied(
    first: Tensor,
    second: Tensor,
    first_scale: Tensor,
    second_scale: Tensor,
    *,
    is_fast: bool = False,
) -> Tensor:
    return torch._scaled_mm(
        first,
        second,
        scale_a=first_scale,
        scale_b=second_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=is_fast,
    )
