"""`flatout setup --repair` as a talk: what is wrong, what would change, asked, done, proved."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.cli import show, show_environments, show_fix, show_repair
from flatout.errors import UsageError
from flatout.nouns.environment_repair import EnvironmentRepair
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.journal import StepOutcome
from flatout.nouns.made_environment import Progress, Proof
from flatout.nouns.setup_request import SetupRequest

# What says how an environment is made, or for which machine: here both are given.
_OTHERS = {
    "frameworks": "a framework", "cards": "`--for`", "driver": "`--driver`", "os": "`--os`",
    "python": "`--python`", "is_nightly": "`--nightly`", "name": "`--name`", "folder": "`--in`",
    "packages": "`--with`", "files": "`-r`", "lock": "`--from`", "bundle": "`--bundle`",
}  # fmt: skip


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How it is talked about: agreed to beforehand, only shown, or told to a program."""

    is_agreed: bool
    is_dry: bool
    is_json: bool


def run(name: str, options: dict[str, Any], manner: Manner) -> int:
    """Mends an environment that is there; gives the exit code.

    Raises:
        UsageError: options-exclude-each-other, and what the environment is not.
    """
    for option, text in _OTHERS.items():
        if options.get(option):
            raise UsageError(
                "options-exclude-each-other",
                f"`--repair` and {text} cannot be given together.",
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
        return _tell(repair, manner, 0)
    if repair.refusal:
        show.print_note(f"nothing was changed: {repair.refusal}")
        return _tell(repair, manner, 1)
    if not manner.is_agreed and (manner.is_json or not show.ask("Do it?")):
        show.print_note("nothing was changed. To do it: the same with --yes")
        return _tell(repair, manner, 1)
    return _carry_out(repair, how, manner)


def _prepared(
    name: str, request: SetupRequest, how: EnvironmentRequest, manner: Manner
) -> EnvironmentRepair:
    with show_environments.Working() as working:
        working.say(Progress(name="", text="reading the machine"))
        from flatout.environments.repair import prepare_repair

        for step in prepare_repair(name, request, how, is_dry=manner.is_dry):
            if isinstance(step, EnvironmentRepair):
                return step
            working.say(step)
    raise AssertionError("it ends with what it has found")


def _carry_out(repair: EnvironmentRepair, how: EnvironmentRequest, manner: Manner) -> int:
    from flatout.environments.repair import carry_out

    outcomes: list[StepOutcome] = []
    proofs: list[Proof] = []
    show_fix.wait_for_program()
    with show_environments.Working() as working:
        for step in carry_out(repair, how):
            if isinstance(step, Progress):
                working.say(step)
            elif isinstance(step, Proof):
                proofs.append(step)
            else:
                outcomes.append(step)
                show_fix.print_outcome(step)
    has_failed = any(one.how == "failed" for one in outcomes)
    if not manner.is_json:
        show_repair.print_repaired(repair, outcomes, proofs)
    return _tell(repair, manner, int(has_failed), outcomes, proofs)


def _tell(
    repair: EnvironmentRepair,
    manner: Manner,
    exit_code: int,
    outcomes: list[StepOutcome] | None = None,
    proofs: list[Proof] | None = None,
) -> int:
    if manner.is_json:
        inside = repair.inside
        show.print_json({
            "environment": {"name": inside.name, "folder": inside.folder, "kind": inside.kind,
                            "python": inside.python, "python_version": inside.python_version,
                            "frameworks": inside.frameworks},
            "troubles": repair.troubles,
            "changes": [{**msgspec.structs.asdict(one), "how": one.how} for one in repair.changes],
            "download_bytes": repair.missing_bytes,
            "findings": [{"rule": one.rule, "problem": one.problem} for one in repair.findings],
            "notes": repair.notes,
            "refusal": repair.refusal,
            "plan": repair.plan,
            "outcomes": outcomes or [],
            "proofs": proofs or repair.proofs,
        })  # fmt: skip
    return exit_code
