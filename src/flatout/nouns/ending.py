"""How a training ended, as seen from outside: what follows depends on it."""

from __future__ import annotations

import msgspec

from flatout.nouns.lines import DESERTED, Failed, Finished, Stopped
from flatout.nouns.placement import RANK_DIED

# Who has started the ranks was killed; where it ran in a shell, the shell tells it as 128 + 9.
_KILLED = (-9, 137)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a training ended: what it told last, and the exit code of whoever has carried it out.

    line: the last word in the run's history; None where it ended without one.
    code: of the worker, or of who has started its ranks; None where nobody knows it.
    """

    line: Finished | Stopped | Failed | None
    code: int | None

    @property
    def rule(self) -> str | None:
        """The rule of the failure that was told."""
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
