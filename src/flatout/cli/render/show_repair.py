"""Output of `flatout setup --repair`: problems, each package before and after, the smoke test."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from flatout.cli.render import wording
from flatout.cli.render.show import make_console, print_lines
from flatout.cli.render.tables import plain_table
from flatout.schema.change_journal import StepOutcome
from flatout.schema.environment import SmokeTestResult
from flatout.schema.plan_rows import step_rows
from flatout.schema.units import bytes_text, count_text
from flatout.setup.model.environment_repair import EnvironmentRepair, PackageChange


def print_repair(repair: EnvironmentRepair) -> None:
    """The environment, what is wrong in it, and exactly what would change."""
    console = make_console()
    inside = repair.inside
    frameworks = [f"{framework.name} {framework.version}" for framework in inside.frameworks
                  if framework.name in ("torch", "tensorflow", "paddlepaddle", "jax")]  # fmt: skip
    parts = [inside.kind, f"Python {inside.python_version}", *(frameworks or ["no framework"])]
    console.print(
        Text.assemble((wording.home_text(inside.folder), "bold"), "  ", wording.DOT.join(parts)),
        soft_wrap=True,
    )
    labelled = [("wrong" if number == 0 else "", problem.problem)
                for number, problem in enumerate(repair.problems)]  # fmt: skip
    print_lines(console, [*labelled, *(("note", note) for note in repair.notes)])
    if not repair.problems:
        print_lines(console, [("well", _healthy_text(repair))])
    for finding in repair.findings:
        print_lines(console, [("doctor", f"{finding.problem} (flatout explain {finding.rule})")])
    if repair.changes:
        console.print()
        _print_changes(repair.changes)
        console.print()
        _print_steps(repair)


def print_repaired(
    repair: EnvironmentRepair, outcomes: Sequence[StepOutcome], proved: Sequence[SmokeTestResult]
) -> None:
    """Prints the repaired environment, and how to undo the repair."""
    console = make_console()
    id = next((outcome.id for outcome in outcomes if outcome.id), None)
    if not any(outcome.how == "failed" for outcome in outcomes):
        num = count_text(len(repair.changes))
        packages = "package" if len(repair.changes) == 1 else "packages"
        print_lines(console, [
            ("repaired", f"{wording.home_text(repair.inside.folder)}{wording.DOT}{num} {packages}"),
            *(("proved", wording.proof_text(proof)) for proof in proved),
        ])  # fmt: skip
    if id is not None:
        print_lines(console, [("undo", f"flatout undo {id}")])


def _healthy_text(repair: EnvironmentRepair) -> str:
    proved = [wording.proof_text(proof) for proof in repair.proofs]
    return "; ".join(["nothing to repair", *proved])


def _print_changes(changes: Sequence[PackageChange]) -> None:
    table = plain_table("package", "from", "to", "download")
    for change in changes:
        size = bytes_text(change.size_bytes) if change.size_bytes else ""
        if change.how == "removed" and size:
            size = f"frees {size}"
        to = {"removed": "removed", "reinstalled": f"{change.after} again"}.get(
            change.how, change.after or ""
        )
        table.add_row(change.name, change.before or "missing", to, size)
    make_console().print(table)


def _print_steps(repair: EnvironmentRepair) -> None:
    steps = repair.plan.steps if repair.plan else ()
    console = make_console()
    for number, step in enumerate(steps, 1):
        print_lines(console, [(f"step {number}", step.text)])
        runs = next(text for label, text in step_rows(step) if label == "runs")
        # A command is never broken, so that it can be copied.
        console.print(Text(f"{'runs':<12}{runs}"), soft_wrap=True)
    size = bytes_text(repair.missing_bytes) if repair.missing_bytes else "nothing to download"
    devices = ", ".join(dict.fromkeys(device.upper() for device in repair.devices.values()))
    proof = f"training steps on the {devices}" if devices else "none: it has no framework"
    if repair.refusal:
        print_lines(console, [("not done", repair.refusal)])
        return
    print_lines(console, [("takes", size), ("proof", proof), ("undo", "flatout undo")])
