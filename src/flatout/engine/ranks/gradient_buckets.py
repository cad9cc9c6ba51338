"""Gradients sent in buckets during the backward pass, as those of torch's DDP do.

The ranks do not agree first: one that has no memory for its pass leaves the others waiting.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
https://arxiv.org/abs/2006.15704.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flatout.engine.ranks.collectives import Collectives
from flatout.engine.ranks.gradient_buffers import are_same, copy_gradients, dense_strides
from flatout.engine.tensors.sharded import scale
from flatout.errors import UsageError

# As in DDP: the first one is small, so that it can be sent soon.
_FIRST_BYTES, _BYTES = 2**20, 25 * 2**20


class _Bucket:
    """Weights whose gradients are sent as one tensor.

    Args:
        parameters: of one number format, on one device.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        first = parameters[0]
        num_elements = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(num_elements, dtype=first.dtype, device=first.device)
        self.views: list[Tensor | None] = []
        start = 0
        for parameter in parameters:
            self.views.append(
                self.flat.as_strided(parameter.shape, dense_strides(parameter), start)
            )
            start += parameter.numel()
        self.missing: set[int] = set()
        self.work: Any = None


class BucketedGradients:
    """Gradients of weights that are whole on each rank; see GradientBuffers.

    Buckets are sent in one order on all ranks, each once its gradients are there, and those that
    never come as zeros.

    Args:
        parameters: those that are trained.
        tensors: sends them.
    """

    def __init__(self, parameters: list[Tensor], tensors: Collectives) -> None:
        self._parameters = parameters
        self._tensors = tensors
        self._trained: list[Tensor] = []
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._hooks: list[Any] = []
        self._num_sent = 0
        self._is_last_pass = False

    def expect_last_pass(self) -> None:
        """See GradientBuffers."""
        self._lay_out()
        for bucket in self._buckets:
            bucket.missing = set(map(id, bucket.parameters))
        self._is_last_pass = True

    def _lay_out(self) -> None:
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if are_same(trained, self._trained):
            return
        for hook in self._hooks:
            hook.remove()
        self._trained = trained
        self._buckets = [_Bucket(group) for group in _grouped(trained)]
        self._bucket_of = {
            id(parameter): bucket for bucket in self._buckets for parameter in bucket.parameters
        }
        self._hooks = [self._watched(parameter) for parameter in trained]

    def _watched(self, parameter: Tensor) -> Any:
        return parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: Tensor) -> None:
        if not self._is_last_pass:
            return
        bucket = self._bucket_of[id(parameter)]
        if bucket.work is not None:
            raise UsageError(
                "ranks-do-not-fit",
                "a weight gets its gradient in several steps of one backward pass.",
                because="the first part has already been sent to the other ranks; this happens "
                "with torch's checkpoint(use_reentrant=True)",
                fix="train with --use exchange=agreed, or set use_reentrant=False",
            )
        bucket.missing.discard(id(parameter))
        for waiting in self._buckets[self._num_sent :]:
            if waiting.missing:
                break
            self._send(waiting)

    @torch.no_grad()
    def _send(self, bucket: _Bucket) -> None:
        copy_gradients(bucket.parameters, bucket.views)
        bucket.work = self._tensors.begin_adding(bucket.flat)
        self._num_sent += 1

    def take(self) -> list[bool]:
        """See GradientBuffers: what has not been sent yet is sent."""
        self._is_last_pass = False
        # A rank without a sample has made no pass.
        self._lay_out()
        has_gradient = [parameter.grad is not None for parameter in self._trained]
        for bucket in self._buckets[self._num_sent :]:
            self._send(bucket)
        return has_gradient

    def sent(self) -> list[Tensor]:
        """See GradientBuffers: they are on their way."""
        return []

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """See GradientBuffers."""
        for bucket in self._buckets:
            self._tensors.end_adding(bucket.work)
            bucket.work = None
        self._num_sent = 0
        scale([bucket.flat for bucket in self._buckets], factor)
        is_there = dict(zip(map(id, self._trained), has_gradient, strict=True))
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view if is_there[id(parameter)] else None


def _grouped(parameters: list[Tensor]) -> list[list[Tensor]]:
    """Buckets in the order in which a backward pass comes to them: from the last weight on."""
    groups: list[list[Tensor]] = []
    limit, size = _FIRST_BYTES, 0
    for parameter in reversed(parameters):
        num_bytes = parameter.numel() * parameter.element_size()
        last = groups[-1][-1] if groups else None
        is_alike = last is not None and (last.dtype, last.device) == (
            parameter.dtype,
            parameter.device,
        )
        if not is_alike or size + num_bytes > limit:
            limit = _BYTES if groups else _FIRST_BYTES
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += num_bytes
    return groups
