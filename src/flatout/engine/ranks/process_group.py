"""Several ranks: how they meet, decide together, and report out-of-memory to each other."""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flatout.engine.feed.feed import BatchShard
from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.failure_notices import error_in, word_of
from flatout.engine.ranks.protocol import OomReport, RankGroup
from flatout.engine.runtime.device import chosen_device
from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.runtime.oom import PeerOutOfMemory
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tensors.sharded import is_sharded
from flatout.engine.tensors.state_tree import compact
from flatout.engine.tensors.wire import read, written
from flatout.errors import FlatoutError, UsageError
from flatout.schema.finding import Finding
from flatout.schema.units import counted_text

T = TypeVar("T")

# Where ranks meet: to vote, because memory is short, to copy, or about a value.
_VOTE, _SHORT, _COPY, _VALUE = 0.0, 1.0, 2.0, 3.0

# After the shape of a buffer that is kept out of the state_dict.
_CACHE = " (a cache)"

# Prefix of a value that rank 0 sends; without it, the text is an error.
_FINE = b"+"
_SHORT_THERE = b"short"


@dataclass(frozen=True, kw_only=True)
class StepFlags:
    """A rank's contribution to a meeting, mostly about an update whose gradient it has.

    sync_point: what is voted about, the same on all ranks.
    num_samples: that it has seen. signature: which weights have a gradient, which buffers have
    moved. is_sum: its loss is a sum with a count; loss, count: of its share, on a CPU.
    stop, is_save_due, has_moved: its requests after this update; of stop see exchange.stop_number.
    """

    sync_point: float = 0.0
    num_samples: float = 0.0
    signature: float = 0.0
    is_sum: float = 0.0
    loss: float = 0.0
    count: float = 0.0
    stop: float = 0.0
    is_save_due: float = 0.0
    has_moved: float = 0.0


class MultiRank:
    """One of several ranks; see RankGroup.

    connection: to the others; who has just met them may add tensors up through it.
    device: where gradients are.

    Args:
        connection: to the others.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rank = connection.rank_env.rank
        self.size = connection.rank_env.size
        self.num_here = connection.rank_env.num_here
        self.is_first = self.rank == 0
        self.share = BatchShard(rank=self.rank, size=self.size)
        self.device = torch.device("cpu")
        self._laid: deque[str] = deque()

    def join(self, report: Callable[[Finding], None], request: StopRequest) -> None:
        """See RankGroup."""
        self.connection.join(report, request)

    def leave(self, error: BaseException | None = None) -> None:
        """See RankGroup."""
        self.connection.leave(error)

    def device_name(self, name: str | None) -> str | None:
        """See RankGroup."""
        if name == "cpu" or chosen_device(None).type == "cpu":
            return name
        local_rank, num_gpus = self.connection.rank_env.local_rank, torch.cuda.device_count()
        if local_rank >= num_gpus:
            raise UsageError(
                "ranks-share-a-gpu",
                f"rank {self.rank} needs its own GPU, number {local_rank + 1}; this machine has "
                f"{counted_text(num_gpus, 'GPU')}.",
                because="NCCL refuses two ranks on one GPU",
                fix="start fewer ranks, or train on the CPU: --device cpu",
            )
        return f"cuda:{local_rank}"

    def attach(self, device: torch.device) -> None:
        """See RankGroup."""
        self.device = device
        self.connection.tensors.attach(device)

    def all_reduce_flags(self, flags: StepFlags) -> list[StepFlags]:
        """The flags of all ranks, by rank, once every rank has reached the same point: the
        gradient of its share, or an exchange within a pass through the model.

        Raises:
            PeerOutOfMemory: a rank has no memory for it.
            UsageError: ranks-do-not-fit, where they are not at the same place.
        """
        rows = self._met(_VOTE, flags)
        all_flags = [StepFlags(**dict(zip(_FIELDS, row, strict=True))) for row in rows]
        if len({flags.sync_point for flags in all_flags}) > 1:
            raise _unlike()
        return all_flags

    def broadcast_from_rank0(
        self, make: Callable[[], T], kind: Any = None, *, about: str = ""
    ) -> T:
        """See RankGroup."""
        error: Exception | None = None
        message: bytes | None = None
        if self.is_first:
            try:
                made = make()
                message = _FINE + written(made, kind)
            except Exception as raised:  # noqa: BLE001 - raised again, once the others know
                error = raised
                message = _SHORT_THERE if is_out_of_memory(raised) else word_of(raised, 0)
        name = self._laid_down(message)
        self._met(_sync_point("told", kind, about))
        self.connection.tensors.settle()
        if error is not None:
            # As it was, with its traceback: that says whose fault it is.
            raise error
        if self.is_first:
            return made
        message = self.connection.take(name, 0)
        if message == _SHORT_THERE:
            raise PeerOutOfMemory
        if not message.startswith(_FINE):
            raise error_in(message, 0)
        value: T = read(message.removeprefix(_FINE), kind)
        return value

    def all_gather(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """See RankGroup."""
        name = self._laid_down(written(value, kind))
        self._met(_sync_point("gathered", kind, about))
        self.connection.tensors.settle()
        return [read(self.connection.take(name, rank), kind) for rank in range(self.size)]

    def copy_from_first(self, model: nn.Module) -> None:
        """See RankGroup."""
        tensors = alike_tensors(self, model)
        self._met(_COPY)
        self.connection.tensors.settle()
        # The parts that are spread over the ranks were cut from the first one's weights.
        self.connection.tensors.copy_from_first(
            [tensor for tensor in tensors if not is_sharded(tensor)]
        )

    def agree_on_oom(self, trouble: OomReport) -> OomReport:
        """See RankGroup."""
        if not trouble.shortage.is_heard:
            # Wherever the others are, they meet next, and hear it there.
            self._met(_SHORT)
        reports: list[OomReport] | None = None
        while reports is None:
            # A notified rank may run out of memory itself before it gets here.
            with contextlib.suppress(PeerOutOfMemory):
                reports = self.all_gather(trouble, OomReport)
        [first, *_] = [report for report in reports if not report.shortage.is_heard]
        return OomReport(
            shortage=first.shortage,
            step=min(report.step for report in reports),
            place=first.place,
            can_repeat=all(report.can_repeat for report in reports)
            and len({(report.step, report.place) for report in reports}) == 1,
        )

    def _laid_down(self, value: bytes | None) -> str:
        """Lays a value down under the name of the meeting that follows; gives the name."""
        name = str(self.connection.num_met)
        if value is not None:
            self.connection.put(name, value)
            self._laid.append(name)
            # Who has come to the meeting before has taken what was laid down before that one.
            if len(self._laid) > 2:
                self.connection.drop(self._laid.popleft())
        return name

    def _met(self, sync_point: float, flags: StepFlags | None = None) -> list[tuple[float, ...]]:
        rows = self.connection.numbers([sync_point, *astuple(flags or StepFlags())])
        sync_points = {row[0] for row in rows}
        if _SHORT in sync_points:
            if sync_point != _SHORT:
                raise PeerOutOfMemory
        elif len(sync_points) > 1:
            raise _unlike()
        return [row[1:] for row in rows]


def loss_in(ranks: RankGroup, error: Exception) -> FlatoutError | None:
    """The rank that torch reports as lost in an exchange of its own; None for any other error."""
    return ranks.connection.loss_in(error) if isinstance(ranks, MultiRank) else None


def alike_tensors(group: MultiRank, model: nn.Module) -> list[Tensor]:
    """Weights and buffers as they are in memory, but for caches of what a rank has seen: buffers
    that are kept out of the state_dict and differ in shape.

    Raises:
        UsageError: ranks-do-not-fit, where anything else has another shape on another rank.
    """
    stored = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    named = dict([*model.named_parameters(), *model.named_buffers()])
    meta = {id(tensor) for tensor in named.values() if tensor.is_meta}
    own = {
        # Without memory it has no value of its own to keep.
        name: f"{tuple(tensor.shape)} {tensor.dtype}" + _CACHE * (id(tensor) not in stored | meta)
        for name, tensor in named.items()
    }
    forms_of_ranks = group.all_gather(own, dict[str, str], about="shapes")
    differing = {}
    for name in sorted({name for other in forms_of_ranks for name in other}):
        forms = [other.get(name, _CACHE) for other in forms_of_ranks]
        if len({form.removesuffix(_CACHE) for form in forms}) > 1:
            differing[name] = forms
    for name, forms in differing.items():
        first = forms[0].removesuffix(_CACHE)
        rank = next(n for n, form in enumerate(forms) if form.removesuffix(_CACHE) != first)
        if not all(form.endswith(_CACHE) for form in forms):
            there = [form.removesuffix(_CACHE) or "missing" for form in forms]
            raise UsageError(
                "ranks-do-not-fit",
                f"`{name}` differs between ranks.",
                because=f"it is {there[0]} on rank 0 and {there[rank]} on rank {rank}",
                fix="make the experiment's `model` return the same on every rank",
            )
    # What stands for several elements is sent once.
    return [compact(tensor.detach()) for name, tensor in named.items() if name not in differing]


_FIELDS = tuple(StepFlags.__dataclass_fields__)


def _sync_point(how: str, kind: Any, about: str) -> float:
    """The number of a meeting point: one for each collective, type and subject."""
    return _VALUE + zlib.crc32(f"{how} {kind} {about}".encode())


def _unlike() -> UsageError:
    return UsageError(
        "ranks-do-not-fit",
        "ranks diverged: they called different collectives.",
        because="what the experiment does, or how many samples an iterable yields, differs "
        "between ranks",
        fix="make sure that calls, and which weights get a gradient, do not depend on a rank's "
        "samples; or train without --on",
    )
