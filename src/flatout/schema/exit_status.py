"""The end of a training as seen from outside, which decides what follows."""

from __future__ import annotations

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.placement import RANK_DIED
from flatout.schema.run import Run
from flatout.schema.run_lines import DESERTED, Failed, Finished, Stopped

# Who has started the ranks was killed; where it ran in a shell, the shell reports it as 128 + 9.
_KILLED = (-9, 137)


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a training: its last report, and the exit code of the process.

    line: the last word in the run's history; None where it ended without one.
    code: of the worker, or of who has started its ranks; None where no one knows it.
    """

    line: Finished | Stopped | Failed | None
    code: int | None

    @property
    def rule(self) -> str | None:
        """The rule of the reported failure."""
        return self.line.finding.rule if isinstance(self.line, Failed) else None

    @property
    def is_loss(self) -> bool:
        """Whether a rank was lost, or who has started one; the training itself is as it should be.

        Ranks whose starter has gone stop in good order, and say that they were left alone. They
        say the same where it has asked them to; then it ends in good order itself.
        """
        if isinstance(self.line, Stopped):
            is_left_alone = self.line.reason == DESERTED
        else:
            is_left_alone = self.line is None
        is_killed = self.code == RANK_DIED or self.code in _KILLED
        return self.rule == "rank-lost" or (is_left_alone and is_killed)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it stands then. finding: why it failed; exit_code: 0 for an end in good order.

    is_kept: it is one of the runs; else it failed before its first update, and its folder is
        somewhere else until the next one fails.
    causes: what `flatout explain` names as the cause of that, most likely first.
    """

    run: Run
    finding: Finding | None = None
    causes: tuple[Finding, ...] = ()
    exit_code: int = 0
    is_kept: bool = True
