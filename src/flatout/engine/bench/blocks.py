"""Measures quantities in blocks that take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flatout.schema.bench import BenchRow, Unit
from flatout.system.clock import elapsed_s

# The first call loads a kernel, the second still finds cold caches.
_NUM_WARM_UPS = 2
_MOST_CALLS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Roof:
    """A quantity that can be measured.

    run: makes so many calls, and waits until the device has finished them.
    work: FLOPs or bytes of one call; None for a latency, which is the time of one call.
    """

    id: str
    label: str
    unit: Unit
    run: Callable[[int], None]
    work: float | None = None
    conditions: dict[str, str] = field(default_factory=dict)

    def row(self, samples: Sequence[float]) -> BenchRow:
        """The row with these samples."""
        return BenchRow(
            id=self.id,
            label=self.label,
            unit=self.unit,
            samples=tuple(samples),
            is_higher_better=self.work is not None,
            conditions=self.conditions,
        )


def unread_row(id: str, label: str, unit: Unit, reason: str) -> BenchRow:
    """A row for what cannot be measured here."""
    is_higher_better = unit != "s"
    return BenchRow(id=id, label=label, unit=unit, unread=reason, is_higher_better=is_higher_better)


def measured(roofs: Sequence[Roof], num_blocks: int, block_s: float) -> list[BenchRow]:
    """The rows of some quantities, whose blocks take turns: what disturbs one disturbs all.

    A quantity that fails, such as for lack of memory, becomes a row with the reason.
    """
    calls: dict[str, int] = {}
    samples: dict[str, list[float]] = {roof.id: [] for roof in roofs}
    failures: dict[str, str] = {}
    for roof in roofs:
        try:
            roof.run(_NUM_WARM_UPS)
            calls[roof.id] = calls_per_block(roof.run, block_s)
        # Not implemented for this dtype, out of memory, no kernel for this GPU: torch's own words.
        except (RuntimeError, NotImplementedError, ValueError) as error:
            failures[roof.id] = failure_text(error)
    for _ in range(num_blocks):
        for roof in roofs:
            if roof.id not in failures:
                num = calls[roof.id]
                call_s = _seconds(roof.run, num) / num
                samples[roof.id].append(roof.work / call_s if roof.work else call_s)
    return [
        unread_row(roof.id, roof.label, roof.unit, failures[roof.id])
        if roof.id in failures
        else roof.row(samples[roof.id])
        for roof in roofs
    ]


def calls_per_block(run: Callable[[int], None], block_s: float) -> int:
    """How many calls take at least `block_s`."""
    num = 1
    while num < _MOST_CALLS:
        took_s = _seconds(run, num)
        if took_s >= block_s:
            break
        # A call that is slow because it is the first one must not end the search.
        factor = block_s / took_s if took_s > 0 else 10.0
        num = min(_MOST_CALLS, max(num + 1, round(num * min(10.0, 1.1 * factor))))
    return num


def failure_text(error: Exception) -> str:
    """The first line of an error, short enough for a table."""
    lines = str(error).strip().splitlines()
    return f"{lines[0][:200]}" if lines else type(error).__name__


def _seconds(run: Callable[[int], None], num: int) -> float:
    began_s = elapsed_s()
    run(num)
    # A clock that stands still would divide by zero.
    return max(elapsed_s() - began_s, 1e-9)
