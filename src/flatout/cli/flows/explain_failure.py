"""Explains a failure after its error: for every command whose work runs in a process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.schema.exit_status import Outcome
from flatout.schema.finding import Finding


def explained(outcome: Outcome) -> Outcome:
    """The outcome with the causes found by the rules, which are printed; else unchanged."""
    if outcome.exit_code == 2:
        return outcome  # Wrong use has no cause in the machine.
    # Loaded only where something has failed: all rules are behind it.
    from flatout.cli.render import show_doctor
    from flatout.doctor import explain as explaining

    causes = explaining.causes_of(outcome)
    show_doctor.print_causes(causes)
    return msgspec.structs.replace(outcome, causes=causes)


def print_log(outcome: Outcome) -> None:
    """Prints where the log of a training is that failed before its first update and left no run."""
    from flatout.cli.render import show

    if not outcome.is_kept:
        show.print_note(f"the run was not kept; its log: {Path(outcome.run.folder) / 'worker.log'}")


def explain(finding: Finding, printed: str) -> None:
    """Prints the causes that the rules name of an error and what its process has printed."""
    from flatout.cli.render import show_doctor
    from flatout.doctor import explain as explaining

    show_doctor.print_causes(explaining.causes_in(finding, printed.encode(errors="replace")))
