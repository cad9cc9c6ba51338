"""Several ranks that carry out a step which the experiment writes itself.

Each update is one of the whole batch: the loss that it is given is taken for a mean over this
rank's samples, and weighed by them. All ranks must make the same updates in the same order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.ranks.gradient_buffers import ReplicatedGradients
from flatout.engine.ranks.gradient_sync import GradientSync, LocalGradients, agreed, stop_number
from flatout.engine.ranks.process_group import MultiRank, StepFlags
from flatout.engine.ranks.protocol import StepRequests
from flatout.engine.ranks.synced_passes import SyncedPasses

# Numbers of votes about what a step returns; those about its updates count from 0.
_TELLING = 2.0**33


class CustomStepSync:
    """The exchanges of ranks in such a step: gradients at each update, losses at its end.

    own_samples: of this rank in the step. num_samples: of all of them in the newest step.
    heard: the ranks' requests after it.

    Args:
        group: the ranks.
        passes: through the model, which they make together.
        batch_size: samples of a whole batch.
    """

    def __init__(self, group: MultiRank, passes: SyncedPasses, batch_size: int) -> None:
        self._group = group
        self._passes = passes
        self._requests_now: Callable[[], StepRequests] = StepRequests
        self._num_exchanges = 0
        self.batch_size = batch_size
        self.own_samples = 0
        self.num_samples = 0
        self.heard = StepRequests()

    def listen(self, requests_now: Callable[[], StepRequests]) -> None:
        """See GradientSync."""
        self._requests_now = requests_now

    def update_of(self, model: nn.Module, parameters: list[Tensor]) -> SharedUpdate:
        """The exchange that makes the updates of these parameters those of the whole batch."""
        gradients, number = ReplicatedGradients(parameters), self._num_exchanges
        self._num_exchanges += 1
        exchange = GradientSync(self._group, model, gradients, self.batch_size, number)
        return SharedUpdate(exchange, self)

    def begin(self, update: list[MicroBatch]) -> Any:
        """This rank's part of the batch; one without samples gets some that do not count."""
        [(batch, self.own_samples)] = self._passes.evened(update)
        return batch

    def averaged(self, losses: dict[str, tuple[Tensor, Any]]) -> dict[str, Tensor]:
        """Losses of the whole batch, from values with their counts; without one, from means.

        Raises:
            PeerOutOfMemory: another rank has no memory for its part.
            UsageError: ranks-do-not-fit, where another rank made other updates or logs other
            values.
        """
        own = self.own_samples
        rows = [
            (value * own, own) if count is None else (value, count if own else 0)
            for value, count in losses.values()
        ]
        table = torch.zeros((len(rows), 2), dtype=torch.float64, device=self._group.device)
        for index, (total, count) in enumerate(rows):
            table[index, 0] = total * bool(own)
            table[index, 1] = count
        requests, names = self._requests_now(), "\n".join(losses)
        all_flags = self._group.all_reduce_flags(
            StepFlags(
                sync_point=_TELLING + zlib.crc32(names.encode()),
                num_samples=own,
                stop=stop_number(requests.stop),
                is_save_due=requests.is_save_due,
                has_moved=requests.has_moved,
            )
        )
        self._group.connection.tensors.settle(is_all=False)
        self._group.connection.tensors.add_up([table], is_update=True)
        self.num_samples = round(sum(flags.num_samples for flags in all_flags))
        self.heard = agreed(all_flags)
        means = table[:, 0] / (table[:, 1] + (table[:, 1] == 0))
        return {
            name: mean.to(value.dtype)
            for (name, (value, _)), mean in zip(losses.items(), means.unbind(), strict=True)
        }


class SharedUpdate:
    """Makes an update of this rank's part of a batch that of the whole batch."""

    def __init__(self, exchange: GradientSync, step: CustomStepSync) -> None:
        self._exchange = exchange
        self._step = step

    def weighed(self, loss: Tensor) -> Tensor:
        """The loss as a part of that of the whole batch."""
        return loss * (self._step.own_samples / self._step.batch_size)

    def shared(self, weighed: Tensor) -> Tensor:
        """Puts the whole batch's gradients into `grad` of each weight; gives its mean loss."""
        own = self._step.own_samples
        return self._exchange.shared(
            LocalGradients(loss=weighed.detach(), count=None, num_samples=own)
        )
