"""A failure, explained after it was told: for every command whose work runs in a process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.nouns.finding import Finding
from flatout.nouns.outcome import Outcome


def explained(outcome: Outcome) -> Outcome:
    """The outcome with the causes that the rules name, which are printed; else as it was."""
    if outcome.exit_code == 2:
        return outcome  # Wrong use has no cause in the machine.
    # Loaded only where something has failed: all rules are behind it.
    from flatout import explaining
    from flatout.cli import show_doctor

    causes = explaining.causes_of(outcome)
    show_doctor.print_causes(causes)
    return msgspec.structs.replace(outcome, causes=causes)


def print_log(outcome: Outcome) -> None:
    """Where a training's log is that failed before its first update: there is no run to ask."""
    from flatout.cli import show

    if not outcome.is_kept:
        show.print_note(f"no run was kept; its log: {Path(outcome.run.folder) / 'worker.log'}")


def explain(finding: Finding, printed: str) -> None:
    """Prints the causes that the rules name of an error and what its process has printed."""
    from flatout import explaining
    from flatout.cli import show_doctor

    show_doctor.print_causes(explaining.causes_in(finding, printed.encode(errors="replace")))
