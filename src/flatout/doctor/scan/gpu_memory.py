"""The numbers in messages that a GPU's memory ran out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from flatout.doctor.signature import Sign

_AMOUNT = r"(\d[\d.]{0,15}) ?(bytes|[KMGT]i?B)"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Shares of the card's memory, chosen to keep quiet rather than to blame the wrong thing. Unused
# memory of the allocator below the first is its usual slack.
_FRAGMENTED_SHARE = 0.15
# Other processes that torch names: below this it is a desktop, or a CUDA context or two.
_NAMED_SHARE = 0.1
# Memory that nobody is named for: CUDA's own context, the display and what the driver reserves are
# part of it, so more is requested, and on a small card at least so many bytes.
_FOREIGN_SHARE = 0.25
_FOREIGN_BYTES = 2 * 2**30


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of torch's message, in bytes. others: total of the other processes it names."""

    requested: float
    total: float | None = None
    free: float | None = None
    allocated: float | None = None
    reserved: float | None = None
    own: float | None = None
    others: float = 0.0

    @property
    def unallocated(self) -> float:
        """Reserved by torch but not in use."""
        return max(0.0, (self.reserved or 0.0) - (self.allocated or 0.0))

    @property
    def foreign(self) -> float:
        """Memory in use on the card, but not by this process.

        Inside a container, the driver's process ids differ from ours, and the process may list
        itself among the others.
        """
        if self.total is None or self.free is None or self.reserved is None:
            return 0.0
        return max(0.0, self.total - self.free - max(self.own or 0.0, self.reserved))

    @property
    def is_spilled(self) -> bool:
        """More is allocated than the card has: Windows fell back to host memory."""
        return bool(self.total and self.allocated and self.allocated > self.total)

    @property
    def is_fragmented(self) -> bool:
        """The request would fit into torch's unused memory, which is a large share."""
        if self.total is None or self.is_spilled:
            return False
        is_large = self.unallocated >= _FRAGMENTED_SHARE * self.total
        return is_large and self.requested <= self.unallocated + (self.free or 0.0)

    @property
    def is_used_by_others(self) -> bool:
        """It would fit without other processes, which use more than a desktop and CUDA do."""
        if self.total is None or self.is_spilled:
            return False
        is_named = self.own is not None and self.others >= _NAMED_SHARE * self.total
        is_much = self.foreign >= max(_FOREIGN_BYTES, _FOREIGN_SHARE * self.total)
        return (is_named or is_much) and self.requested <= (self.free or 0.0) + self.foreign


def memory_from_text(signs: Mapping[str, Sequence[Sign]]) -> GpuMemory | None:
    """The numbers in torch's first message that has any."""
    for sign in signs["torch-out-of-memory"]:
        text = sign.values.get("numbers", "")
        requested = _amount(rf"allocate {_AMOUNT}", text)
        if requested is None:
            continue
        allocated = _amount(
            rf"{_AMOUNT} (?:already allocated|is allocated by PyTorch)"
            rf"|allocated memory {_AMOUNT}",
            text,
        )
        unallocated = _amount(rf"{_AMOUNT} (?:is reserved by PyTorch but|cached)", text)
        reserved = _amount(rf"{_AMOUNT} reserved in total", text)
        if reserved is None and allocated is not None:
            reserved = allocated + (unallocated or 0.0)
        named = re.findall(rf"Process \d+ has {_AMOUNT} memory in use", text)
        return GpuMemory(
            requested=requested,
            total=_amount(rf"{_AMOUNT} total capac|total capac\w{{1,4}} of {_AMOUNT}", text),
            free=_amount(rf"{_AMOUNT} (?:is )?free", text),
            allocated=allocated,
            reserved=reserved,
            own=_amount(rf"this process has {_AMOUNT}", text),
            others=sum(_bytes(number, unit) for number, unit in named),
        )
    return None


def _amount(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> float:
    return float(number.rstrip(".")) * _UNITS[unit[0].lower()]
