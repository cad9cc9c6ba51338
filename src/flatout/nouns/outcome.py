"""What came of a training that was watched."""

from __future__ import annotations

import msgspec

from flatout.nouns.finding import Finding
from flatout.nouns.run import Run


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
