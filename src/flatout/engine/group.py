"""Several ranks: how they meet, decide together, and hear of each other's want of memory."""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flatout.engine.connection import Connection
from flatout.engine.facts import chosen_device
from flatout.engine.failures import is_out_of_memory
from flatout.engine.message import read, written
from flatout.engine.notices import error_in, word_of
from flatout.engine.rank_gradients import is_spread
from flatout.engine.ranks import Ranks, Share, Trouble
from flatout.engine.shortage import PeerShort
from flatout.engine.watch import StopRequest
from flatout.errors import FlatoutError, UsageError
from flatout.nouns.finding import Finding
from flatout.nouns.units import counted_text

T = TypeVar("T")

# Where ranks meet: to vote, because memory is short, to copy, or about a value.
_VOTE, _SHORT, _COPY, _VALUE = 0.0, 1.0, 2.0, 3.0

# After the shape of a buffer that is kept out of the state_dict.
_CACHE = " (a cache)"

# Before a value that the first rank tells; else it is why there is none.
_FINE = b"+"
_SHORT_THERE = b"short"


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """What a rank brings to a meeting, mostly about an update whose gradient it has.

    place: what is voted about, the same on all ranks.
    num_samples: that it has seen. signature: of which weights have a gradient, which buffers have
    moved. is_sum: its loss is a sum with a count; loss, count: of its share, on a CPU.
    stop, is_save_due, has_moved: its wishes after this update; of stop see exchange.stop_number.
    """

    place: float = 0.0
    num_samples: float = 0.0
    signature: float = 0.0
    is_sum: float = 0.0
    loss: float = 0.0
    count: float = 0.0
    stop: float = 0.0
    is_save_due: float = 0.0
    has_moved: float = 0.0


class Group:
    """One of several ranks; see Ranks.

    connection: to the others; who has just met them may add tensors up through it.
    device: where gradients lie.

    Args:
        connection: to the others.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rank = connection.place.rank
        self.size = connection.place.size
        self.num_here = connection.place.num_here
        self.is_first = self.rank == 0
        self.share = Share(rank=self.rank, size=self.size)
        self.device = torch.device("cpu")
        self._laid: deque[str] = deque()

    def join(self, tell: Callable[[Finding], None], request: StopRequest) -> None:
        """See Ranks."""
        self.connection.join(tell, request)

    def leave(self, error: BaseException | None = None) -> None:
        """See Ranks."""
        self.connection.leave(error)

    def device_name(self, name: str | None) -> str | None:
        """See Ranks."""
        if name == "cpu" or chosen_device(None).type == "cpu":
            return name
        local_rank, num_gpus = self.connection.place.local_rank, torch.cuda.device_count()
        if local_rank >= num_gpus:
            raise UsageError(
                "ranks-share-a-gpu",
                f"rank {self.rank} would be number {local_rank + 1} on a machine of "
                f"{counted_text(num_gpus, 'GPU')}.",
                because="NCCL refuses two ranks on one GPU",
                fix="start fewer ranks, or train on the CPU: --device cpu",
            )
        return f"cuda:{local_rank}"

    def attach(self, device: torch.device) -> None:
        """See Ranks."""
        self.device = device
        self.connection.tensors.attach(device)

    def vote(self, ballot: Ballot) -> list[Ballot]:
        """The ballots of all ranks, by rank, once each has come so far: to the gradient of its
        share, or to what they exchange in the midst of a pass through the model.

        Raises:
            PeerShort: a rank has no memory for it.
            UsageError: ranks-do-not-fit, where they are not at the same place.
        """
        rows = self._met(_VOTE, ballot)
        ballots = [Ballot(**dict(zip(_FIELDS, row, strict=True))) for row in rows]
        if len({one.place for one in ballots}) > 1:
            raise _unlike()
        return ballots

    def told(self, make: Callable[[], T], kind: Any = None, *, about: str = "") -> T:
        """See Ranks."""
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
        self._met(_place("told", kind, about))
        if error is not None:
            # As it was, with its traceback: that says whose fault it is.
            raise error
        if self.is_first:
            return made
        message = self.connection.take(name, 0)
        if message == _SHORT_THERE:
            raise PeerShort
        if not message.startswith(_FINE):
            raise error_in(message, 0)
        told: T = read(message.removeprefix(_FINE), kind)
        return told

    def gathered(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """See Ranks."""
        name = self._laid_down(written(value, kind))
        self._met(_place("gathered", kind, about))
        return [read(self.connection.take(name, rank), kind) for rank in range(self.size)]

    def copy_from_first(self, model: nn.Module) -> None:
        """See Ranks."""
        tensors = alike_tensors(self, model)
        self._met(_COPY)
        # The parts that are spread over the ranks were cut from the first one's weights.
        self.connection.tensors.copy_from_first([one for one in tensors if not is_spread(one)])

    def settle(self, trouble: Trouble) -> Trouble:
        """See Ranks."""
        if not trouble.shortage.is_heard:
            # Wherever the others are, they meet next, and hear it there.
            self._met(_SHORT)
        told: list[Trouble] | None = None
        while told is None:
            # A rank that heard of it may come into want of memory itself before it is here.
            with contextlib.suppress(PeerShort):
                told = self.gathered(trouble, Trouble)
        [first, *_] = [one for one in told if not one.shortage.is_heard]
        return Trouble(
            shortage=first.shortage,
            step=min(one.step for one in told),
            place=first.place,
            can_repeat=all(one.can_repeat for one in told)
            and len({(one.step, one.place) for one in told}) == 1,
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

    def _met(self, place: float, ballot: Ballot | None = None) -> list[tuple[float, ...]]:
        rows = self.connection.numbers([place, *astuple(ballot or Ballot())])
        places = {row[0] for row in rows}
        if _SHORT in places:
            if place != _SHORT:
                raise PeerShort
        elif len(places) > 1:
            raise _unlike()
        return [row[1:] for row in rows]


def loss_in(ranks: Ranks, error: Exception) -> FlatoutError | None:
    """Which rank was lost, where torch has said that of an exchange of its own; else None."""
    return ranks.connection.loss_in(error) if isinstance(ranks, Group) else None


def alike_tensors(group: Group, model: nn.Module) -> list[Tensor]:
    """Weights and buffers, but for caches of what a rank has seen: buffers that are kept out
    of the state_dict and differ in shape.

    Raises:
        UsageError: ranks-do-not-fit, where anything else has another shape on another rank.
    """
    stored = {id(one) for one in model.state_dict(keep_vars=True).values()}
    named = dict([*model.named_parameters(), *model.named_buffers()])
    meta = {id(one) for one in named.values() if one.is_meta}
    own = {
        # Without memory it has no value of its own to keep.
        name: f"{tuple(one.shape)} {one.dtype}" + _CACHE * (id(one) not in stored | meta)
        for name, one in named.items()
    }
    told = group.gathered(own, dict[str, str], about="shapes")
    differing = {}
    for name in sorted({name for other in told for name in other}):
        forms = [other.get(name, _CACHE) for other in told]
        if len({form.removesuffix(_CACHE) for form in forms}) > 1:
            differing[name] = forms
    for name, forms in differing.items():
        first = forms[0].removesuffix(_CACHE)
        rank = next(n for n, form in enumerate(forms) if form.removesuffix(_CACHE) != first)
        if not all(form.endswith(_CACHE) for form in forms):
            there = [form.removesuffix(_CACHE) or "not there" for form in forms]
            raise UsageError(
                "ranks-do-not-fit",
                f"`{name}` is not the same on all ranks.",
                because=f"it is {there[0]} on rank 0, and {there[rank]} on rank {rank}",
                fix="let the experiment's `model` build the same on every rank",
            )
    return [one.detach() for name, one in named.items() if name not in differing]


_FIELDS = tuple(Ballot.__dataclass_fields__)


def _place(how: str, kind: Any, about: str) -> float:
    """Where ranks meet about a value, as a number: one for each kind of value, and what it is."""
    return _VALUE + zlib.crc32(f"{how} {kind} {about}".encode())


def _unlike() -> UsageError:
    return UsageError(
        "ranks-do-not-fit",
        "the ranks do not do the same: one goes on where another waits for it.",
        because="what the experiment does, or how many samples an iterable gives, differs between "
        "them",
        fix="let what is called, and which weights get a gradient, not depend on a rank's samples; "
        "or train without --on",
    )
