"""One gradient out of those of all ranks: that of the whole batch, wherever its samples are.

Each rank goes backward over its share by itself, copies its small gradients into one tensor, and
votes. Only if every rank has come so far are gradients added up: a rank whose memory runs out
before can say so, and all of them repeat the batch from less. What that costs: nothing travels
during the backward pass, where DDP's buckets do (benchmarks/scale.py measures it).

A loss that is a mean is weighed by samples. Of a sum and its count, sums and counts are added up
over the ranks, and divided once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.ranks.buffer_sync import BufferSync
from flatout.engine.ranks.gradient_buffers import GradientBuffers
from flatout.engine.ranks.process_group import MultiRank, StepFlags
from flatout.engine.ranks.protocol import StepRequests
from flatout.errors import UsageError
from flatout.schema.run_lines import DESERTED

# Ballots are numbers. A stop request always reaches all ranks: that another was left
# alone causes no restart.
_ASKED, _DESERTED = 1.0, 2.0


@dataclass(frozen=True, kw_only=True)
class LocalGradients:
    """A rank's share of an update, after its backward pass.

    loss: detached, as if the whole batch were this share; None where it has no sample.
    count: divisor of the sum, None for a mean.
    """

    loss: Tensor | None
    count: Any
    num_samples: int


class GradientSync:
    """Adds up the gradients of the ranks, and averages the buffers that a step has moved.

    num_samples: of the newest update, over all ranks. heard: the ranks' requests after it.

    Args:
        group: the ranks.
        model: whose buffers move.
        gradients: of the weights that are trained.
        batch_size: samples of a whole batch; losses and gradients come divided by it.
        number: of several exchanges in a step: which of them; all ranks make the same ones.
    """

    def __init__(
        self,
        group: MultiRank,
        model: nn.Module,
        gradients: GradientBuffers,
        batch_size: int,
        number: int = 0,
    ) -> None:
        self._group = group
        self._gradients = gradients
        self._batch_size = batch_size
        self._number = number
        self._is_on_host = next((p.device.type for p in model.parameters()), "cpu") == "cpu"
        self._buffers = BufferSync(model)
        self._requests_now: Callable[[], StepRequests] = StepRequests
        self.num_samples = 0
        self.heard = StepRequests()

    def listen(self, requests_now: Callable[[], StepRequests]) -> None:
        """Sets the source of this rank's requests for votes."""
        self._requests_now = requests_now

    def shared(self, part: LocalGradients) -> Tensor:
        """Puts the whole batch's gradient into `grad` of each weight; gives the batch's mean loss.

        Raises:
            PeerOutOfMemory: another rank has no memory for its share; nothing was added up.
            UsageError: ranks-do-not-fit, where buffers have other shapes than there.
        """
        has_gradient = self._gradients.take()
        moved = self._buffers.moved()
        shapes = self._buffers.shapes()
        while True:
            # All that is sent is built before the vote: afterwards nothing may fail.
            buffers = self._buffers.packed(moved, part.num_samples)
            numbers = self._numbers(part)
            all_flags = self._group.all_reduce_flags(
                self._flags(part, (has_gradient, moved), shapes)
            )
            if len({flags.signature for flags in all_flags}) == 1:
                break
            check_same_shapes(self._group, shapes)
            has_gradient, moved = self._united(has_gradient, moved)
        tensors = self._group.connection.tensors
        # Not what this update's own pass has sent: it is still on its way.
        tensors.settle(is_all=False)
        tensors.add_up([*self._gradients.sent(), *buffers, *numbers], is_update=True)
        self.num_samples = round(sum(flags.num_samples for flags in all_flags))
        self.heard = agreed(all_flags)
        loss, correction = self._mean(part, all_flags, numbers)
        self._gradients.put(has_gradient, correction)
        self._buffers.unpack(moved, buffers, self.num_samples)
        return loss

    def _flags(
        self, part: LocalGradients, masks: tuple[list[bool], list[bool]], shapes: list[list[int]]
    ) -> StepFlags:
        has_gradient, moved = masks
        requests = self._requests_now()
        is_sent = part.loss is not None and self._is_on_host
        return StepFlags(
            sync_point=self._number,
            num_samples=part.num_samples,
            signature=zlib.crc32(bytes([*has_gradient, *moved]) + repr(shapes).encode()),
            is_sum=part.count is not None,
            loss=float(part.loss) if part.loss is not None and is_sent else 0.0,
            count=float(part.count) if part.count is not None and is_sent else 0.0,
            stop=stop_number(requests.stop),
            is_save_due=requests.is_save_due,
            has_moved=requests.has_moved,
        )

    def _united(self, *masks: list[bool]) -> list[list[bool]]:
        """Flags that are true on any rank: a share without samples has no gradient, for one."""
        masks_of_ranks = self._group.all_gather(masks, about="masks")
        return [
            [any(flags) for flags in zip(*(masks[index] for masks in masks_of_ranks), strict=True)]
            for index in range(len(masks))
        ]

    def _numbers(self, part: LocalGradients) -> list[Tensor]:
        """Loss and count, if they are on a GPU: nothing waits for numbers that are only logged."""
        if self._is_on_host:
            return []
        own = torch.zeros(2, dtype=torch.float64, device=self._group.device)
        if part.loss is not None:
            own[0] = part.loss
            own[1] = 0 if part.count is None else part.count
        return [own]

    def _mean(
        self, part: LocalGradients, all_flags: list[StepFlags], numbers: list[Tensor]
    ) -> tuple[Tensor, Any]:
        """The batch's mean loss, and the factor for the summed gradients."""
        loss: Any = sum(flags.loss for flags in all_flags)
        count: Any = sum(flags.count for flags in all_flags) or 1.0
        if numbers:
            loss, count = numbers[0].unbind()
            count = count + (count == 0)
        is_sum = any(flags.is_sum for flags in all_flags)
        correction: Any = self._batch_size / (count if is_sum else self.num_samples)
        dtype = part.loss.dtype if part.loss is not None else torch.float64
        return torch.as_tensor(loss * correction).to(dtype), correction


def check_same_shapes(group: MultiRank, shapes: list[list[int]]) -> None:
    """Refuses buffers whose shapes differ between ranks; all of them call it together.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    shapes_of_ranks = group.all_gather(shapes, list[list[int]], about="shapes of buffers")
    for rank, other in enumerate(shapes_of_ranks):
        if other == shapes_of_ranks[0]:
            continue
        pairs = zip_longest(shapes_of_ranks[0], other)
        number, (first, second) = next(
            (n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1]
        )
        raise UsageError(
            "ranks-do-not-fit",
            "the model's buffers differ in shape between ranks.",
            because=f"buffer {number + 1} of the state_dict is {_shape_text(first)} on rank 0 and "
            f"{_shape_text(second)} on rank {rank}: they cannot be averaged",
            fix="make its shape independent of the samples; or, if it is only a cache, register it "
            "with persistent=False, so that each rank keeps its own",
        )


def _shape_text(shape: list[int] | None) -> str:
    return "missing" if shape is None else f"of shape {tuple(shape)}"


def stop_number(reason: str | None) -> float:
    """A rank's reason to stop, as a number in its flags; 0 for none."""
    if reason is None:
        return 0.0
    return _DESERTED if reason == DESERTED else _ASKED


def agreed(all_flags: list[StepFlags]) -> StepRequests:
    """The requests of all ranks, combined."""
    stops = {flags.stop for flags in all_flags}
    left_alone = DESERTED if _DESERTED in stops else None
    return StepRequests(
        stop="asked to stop" if _ASKED in stops else left_alone,
        is_save_due=any(flags.is_save_due for flags in all_flags),
        has_moved=any(flags.has_moved for flags in all_flags),
    )
