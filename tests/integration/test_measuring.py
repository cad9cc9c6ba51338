"""Two contestants measured in turns, with made-up times."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.engine.tuner.ab_timing import TimedBlock, compared


class Scripted:
    """Somebody whose updates take as long as is said: first the warm-up, then the pairs."""

    def __init__(self, took_s: Iterator[float]) -> None:
        self._took_s = took_s
        self.num_blocks = 0

    def timed(self, num_updates: int) -> TimedBlock:
        self.num_blocks += 1
        return TimedBlock(took_s=num_updates * next(self._took_s), num_samples=num_updates)


def always(took_s: float, *first: float) -> Iterator[float]:
    yield from first
    while True:
        yield took_s


def test_a_single_stall_does_not_end_a_measurement() -> None:
    # Warmed up, the candidate is twice as fast; its second block waits for another program.
    candidate = Scripted(always(0.05, 0.05, 0.05, 9.0))
    found = compared(Scripted(always(0.1)), candidate, limit_s=0.9)
    assert candidate.num_blocks > 4 and found.speedup.high > 1.9


def test_a_candidate_that_is_much_slower_each_time_is_not_measured_on() -> None:
    candidate = Scripted(always(0.5))
    found = compared(Scripted(always(0.1)), candidate, limit_s=0.9)
    assert candidate.num_blocks == 1 + 2 and found.speedup.high < 0.5
