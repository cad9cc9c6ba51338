"""One gradient out of those of all ranks: that of the whole batch, whoever has which sample.

Each rank goes backward over its share by itself, copies its small gradients into one tensor, and
votes. Only if every rank has come so far are gradients added up: a rank whose memory runs out
before can say so, and all of them repeat the batch from less. What that costs: nothing travels
beside the backward pass, where DDP's buckets do (benchmarks/scale.py measures it).

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

from flatout.engine.group import Ballot, Group
from flatout.engine.moving_buffers import MovingBuffers
from flatout.engine.rank_gradients import RankGradients
from flatout.engine.ranks import Wishes
from flatout.errors import UsageError
from flatout.nouns.lines import DESERTED

# Ballots are numbers. Where one rank was asked to stop, all of them were: that another was left
# alone starts nobody again.
_ASKED, _DESERTED = 1.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """A rank's share of an update, after its backward pass.

    loss: detached, as if the whole batch were this share; None where it has no sample.
    count: what the sum is to be divided by, None for a mean.
    """

    loss: Tensor | None
    count: Any
    num_samples: int


class Exchange:
    """Adds up the gradients of the ranks, and averages the buffers that a step has moved.

    num_samples: of the newest update, over all ranks. heard: what the ranks wish after it.

    Args:
        group: the ranks.
        model: whose buffers move.
        gradients: of the weights that are trained.
        batch_size: samples of a whole batch; losses and gradients come divided by it.
        number: of several exchanges in a step: which of them; all ranks make the same ones.
    """

    def __init__(
        self,
        group: Group,
        model: nn.Module,
        gradients: RankGradients,
        batch_size: int,
        number: int = 0,
    ) -> None:
        self._group = group
        self._gradients = gradients
        self._batch_size = batch_size
        self._number = number
        self._is_on_host = next((p.device.type for p in model.parameters()), "cpu") == "cpu"
        self._buffers = MovingBuffers(model)
        self._wishes: Callable[[], Wishes] = Wishes
        self.num_samples = 0
        self.heard = Wishes()

    def listen(self, wishes: Callable[[], Wishes]) -> None:
        """Whom to ask for this rank's wishes when the ranks vote."""
        self._wishes = wishes

    def shared(self, part: Part) -> Tensor:
        """Puts the whole batch's gradient into `grad` of each weight; gives the batch's mean loss.

        Raises:
            PeerShort: another rank has no memory for its share; nothing was added up.
            UsageError: ranks-do-not-fit, where buffers have other shapes than there.
        """
        has_gradient = self._gradients.take()
        moved = self._buffers.moved()
        shapes = self._buffers.shapes()
        while True:
            # All that is to be sent is made before the vote: after it nothing may fail.
            buffers = self._buffers.packed(moved, part.num_samples)
            numbers = self._numbers(part)
            ballots = self._group.vote(self._ballot(part, (has_gradient, moved), shapes))
            if len({one.signature for one in ballots}) == 1:
                break
            check_same_shapes(self._group, shapes)
            has_gradient, moved = self._united(has_gradient, moved)
        self._group.connection.tensors.add_up([*self._gradients.sent(), *buffers, *numbers])
        self.num_samples = round(sum(one.num_samples for one in ballots))
        self.heard = agreed(ballots)
        loss, correction = self._mean(part, ballots, numbers)
        self._gradients.put(has_gradient, correction)
        self._buffers.unpack(moved, buffers, self.num_samples)
        return loss

    def _ballot(
        self, part: Part, masks: tuple[list[bool], list[bool]], shapes: list[list[int]]
    ) -> Ballot:
        has_gradient, moved = masks
        wishes = self._wishes()
        is_told = part.loss is not None and self._is_on_host
        return Ballot(
            place=self._number,
            num_samples=part.num_samples,
            signature=zlib.crc32(bytes([*has_gradient, *moved]) + repr(shapes).encode()),
            is_sum=part.count is not None,
            loss=float(part.loss) if part.loss is not None and is_told else 0.0,
            count=float(part.count) if part.count is not None and is_told else 0.0,
            stop=stop_number(wishes.stop),
            is_save_due=wishes.is_save_due,
            has_moved=wishes.has_moved,
        )

    def _united(self, *masks: list[bool]) -> list[list[bool]]:
        """What is true on any rank: a share without samples has no gradient, for one."""
        told = self._group.gathered(masks, about="masks")
        return [
            [any(flags) for flags in zip(*(one[index] for one in told), strict=True)]
            for index in range(len(masks))
        ]

    def _numbers(self, part: Part) -> list[Tensor]:
        """Loss and count where they are on a GPU: nobody waits for numbers that are only told."""
        if self._is_on_host:
            return []
        own = torch.zeros(2, dtype=torch.float64, device=self._group.device)
        if part.loss is not None:
            own[0] = part.loss
            own[1] = 0 if part.count is None else part.count
        return [own]

    def _mean(self, part: Part, ballots: list[Ballot], numbers: list[Tensor]) -> tuple[Tensor, Any]:
        """The batch's mean loss, and what the added gradients are to be multiplied by."""
        loss: Any = sum(one.loss for one in ballots)
        count: Any = sum(one.count for one in ballots) or 1.0
        if numbers:
            loss, count = numbers[0].unbind()
            count = count + (count == 0)
        is_sum = any(one.is_sum for one in ballots)
        correction: Any = self._batch_size / (count if is_sum else self.num_samples)
        dtype = part.loss.dtype if part.loss is not None else torch.float64
        return torch.as_tensor(loss * correction).to(dtype), correction


def check_same_shapes(group: Group, shapes: list[list[int]]) -> None:
    """Refuses buffers whose shapes differ between ranks; all of them call it together.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    told = group.gathered(shapes, list[list[int]], about="shapes of buffers")
    for rank, other in enumerate(told):
        if other == told[0]:
            continue
        pairs = zip_longest(told[0], other)
        number, (one, two) = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
        raise UsageError(
            "ranks-do-not-fit",
            "the model's buffers differ in shape between ranks.",
            because=f"buffer {number + 1} of the state_dict is {_shape_text(one)} on rank 0 and "
            f"{_shape_text(two)} on rank {rank}: they cannot be averaged",
            fix="make its shape independent of the samples; or, if it is only a cache, register it "
            "with persistent=False, so that each rank keeps its own",
        )


def _shape_text(shape: list[int] | None) -> str:
    return "not there" if shape is None else f"of shape {tuple(shape)}"


def stop_number(reason: str | None) -> float:
    """Why a rank wishes to stop, as it stands in its ballot; 0 where it does not."""
    if reason is None:
        return 0.0
    return _DESERTED if reason == DESERTED else _ASKED


def agreed(ballots: list[Ballot]) -> Wishes:
    """What any of the ranks wishes."""
    stops = {one.stop for one in ballots}
    left_alone = DESERTED if _DESERTED in stops else None
    return Wishes(
        stop="asked to stop" if _ASKED in stops else left_alone,
        is_save_due=any(one.is_save_due for one in ballots),
        has_moved=any(one.has_moved for one in ballots),
    )
