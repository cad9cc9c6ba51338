"""The way from the plain loop over flatout's defaults to the incumbent, rung by rung."""

from __future__ import annotations

from typing import Any

from flatout.schema.tuning import Candidate, Result, Rung


class Ladder:
    """Rungs in the order in which they were won.

    changes: all recipe fields of the incumbent.
    """

    def __init__(self) -> None:
        self.rungs: list[Rung] = []
        self.changes: dict[str, Any] = {}
        self._won: dict[str, dict[str, Any]] = {}

    def begin(self, plain: Rung) -> None:
        """The ground: the plain loop."""
        self.rungs.append(plain)

    def stand_on(self, base: Candidate, samples_per_s: float) -> None:
        """The defaults, where they were not compared with the plain loop."""
        self.changes = dict(base.changes)
        self.rungs.append(Rung(name=base.name, changes=base.changes, samples_per_s=samples_per_s))

    def climb(self, result: Result) -> None:
        """Makes the winner the incumbent."""
        candidate, gain = result.trial.candidate, result.speedup
        assert gain is not None
        self.changes = result.trial.changes
        self._won[candidate.axis] = candidate.changes
        self.rungs.append(
            Rung(
                name=candidate.name,
                changes=candidate.changes,
                # Along the ladder, not as measured: the machine's own speed drifts over time.
                samples_per_s=self.rungs[-1].samples_per_s * gain.middle,
                gain=gain,
            )
        )

    def has_won(self, axis: str) -> bool:
        """Whether a candidate of that axis is part of the incumbent."""
        return axis in self._won

    def won_since(self, before: dict[str, Any]) -> set[str]:
        """The axes that were won after an incumbent with those recipe fields."""
        return {
            axis
            for axis, changes in self._won.items()
            if any(before.get(name) != value for name, value in changes.items())
        }
