"""`flatout setup --repair` as a dialog: problems, changes, confirmation, repair, test."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.cli.render import show, show_environments, show_fix, show_repair
from flatout.compat.request import SetupRequest
from flatout.errors import UsageError
from flatout.schema.change_journal import StepOutcome
from flatout.schema.environment import InstallProgress, SmokeTestResult
from flatout.setup.model.environment_repair import EnvironmentRepair
from flatout.setup.model.environment_request import EnvironmentRequest

# What says how an environment is made, or for which machine: here both are given.
_OTHERS = {
    "frameworks": "a framework", "cards": "`--for`", "driver": "`--driver`", "os": "`--os`",
    "python": "`--python`", "is_nightly": "`--nightly`", "name": "`--name`", "folder": "`--in`",
    "packages": "`--with`", "files": "`-r`", "lock": "`--from`", "bundle": "`--bundle`",
}  # fmt: skip


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a repair: without asking, only shown, or with JSON output."""

    is_agreed: bool
    is_dry: bool
    is_json: bool


def run(name: str, options: dict[str, Any], manner: RepairOptions) -> int:
    """Repairs an existing environment; returns the exit code.

    Raises:
        UsageError: options-exclude-each-other, and what finding the environment raises.
    """
    for option, text in _OTHERS.items():
        if options.get(option):
            raise UsageError(
                "options-exclude-each-other",
                f"`--repair` cannot be combined with {text}.",
                fix="leave one of them out",
            )
    how = EnvironmentRequest(
        manager=options["manager"], is_offline=options["is_offline"], mirrors=options["mirrors"]
    )
    request = SetupRequest(cuda=options["cuda"], is_cpu=options["is_cpu"])
    repair = _prepared(name, request, how, manner)
    if not manner.is_json:
        show_repair.print_repair(repair)
    if not repair.changes or manner.is_dry:
        return _report(repair, manner, 0)
    if repair.refusal:
        show.print_note(f"nothing was changed: {repair.refusal}")
        return _report(repair, manner, 1)
    if not manner.is_agreed and (manner.is_json or not show.confirm("Continue?")):
        show.print_note("nothing was changed; to do it, add --yes")
        return _report(repair, manner, 1)
    return _carry_out(repair, how, manner)


def _prepared(
    name: str, request: SetupRequest, how: EnvironmentRequest, manner: RepairOptions
) -> EnvironmentRepair:
    with show_environments.Working() as working:
        working.update(InstallProgress(name="", text="inspecting the machine"))
        from flatout.setup.env.repair import prepare_repair

        for step in prepare_repair(name, request, how, is_dry=manner.is_dry):
            if isinstance(step, EnvironmentRepair):
                return step
            working.update(step)
    raise AssertionError("the last item is the repair")


def _carry_out(repair: EnvironmentRepair, how: EnvironmentRequest, manner: RepairOptions) -> int:
    from flatout.setup.env.repair import carry_out

    outcomes: list[StepOutcome] = []
    proofs: list[SmokeTestResult] = []
    show_fix.wait_for_program()
    with show_environments.Working() as working:
        for step in carry_out(repair, how):
            if isinstance(step, InstallProgress):
                working.update(step)
            elif isinstance(step, SmokeTestResult):
                proofs.append(step)
            else:
                outcomes.append(step)
                show_fix.print_outcome(step)
    has_failed = any(outcome.how == "failed" for outcome in outcomes)
    if not manner.is_json:
        show_repair.print_repaired(repair, outcomes, proofs)
    return _report(repair, manner, int(has_failed), outcomes, proofs)


def _report(
    repair: EnvironmentRepair,
    manner: RepairOptions,
    exit_code: int,
    outcomes: list[StepOutcome] | None = None,
    proofs: list[SmokeTestResult] | None = None,
) -> int:
    if manner.is_json:
        inside = repair.inside
        show.print_json({
            "environment": {"name": inside.name, "folder": inside.folder, "kind": inside.kind,
                            "python": inside.python, "python_version": inside.python_version,
                            "frameworks": inside.frameworks},
            "problems": repair.problems,
            "changes": [{**msgspec.structs.asdict(change), "how": change.how}
                        for change in repair.changes],
            "download_bytes": repair.missing_bytes,
            "findings": [{"rule": finding.rule, "problem": finding.problem}
                         for finding in repair.findings],
            "notes": repair.notes,
            "refusal": repair.refusal,
            "plan": repair.plan,
            "outcomes": outcomes or [],
            "proofs": proofs or repair.proofs,
        })  # fmt: skip
    return exit_code
