"""`flatout setup`, from the plan to tested environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from flatout.cli.render import show, show_environments
from flatout.compat.request import SetupRequest
from flatout.schema.environment import InstallProgress, MadeEnvironment
from flatout.setup.model.environment_plan import EnvironmentPlan
from flatout.setup.model.environment_request import EnvironmentRequest

# What describes another machine (`--for`) also describes this one.
_COMPAT_KEYS = ("choice", "why", "ruled_out", "nearest")
_HOW = tuple(msgspec.structs.fields(EnvironmentRequest))


def run(options: dict[str, Any], *, is_json: bool) -> int:
    """Does what the options of `flatout setup` request; returns the exit code."""
    is_agreed, is_dry = options.pop("is_agreed"), options.pop("is_dry")
    removed, repaired = options.pop("remove"), options.pop("repair")
    if removed is not None:
        return _remove(removed, is_agreed=is_agreed, is_dry=is_dry, is_json=is_json)
    if repaired is not None:
        from flatout.cli.flows import repair_env

        manner = repair_env.RepairOptions(is_agreed=is_agreed, is_dry=is_dry, is_json=is_json)
        return repair_env.run(repaired, options, manner)
    how = EnvironmentRequest(
        is_offline=options["is_offline"],
        **{
            parameter.name: options.pop(parameter.name)
            for parameter in _HOW
            if parameter.name != "is_offline"
        },
    )
    request = SetupRequest(**options)
    if request.cards or request.driver or request.os:
        for option in how.given:
            show.print_note(f"warning: {option} has no effect with --for")
        return _print_compat(request, is_json=is_json)
    return _set_up(request, how, is_dry=is_dry, is_agreed=is_agreed, is_json=is_json)


def _print_compat(request: SetupRequest, *, is_json: bool) -> int:
    """Shows what fits another machine."""
    from flatout.cli.render import show_setup
    from flatout.compat import api as compat_api

    chosen = compat_api.choose(request)
    for warning in chosen.warnings:
        show.print_note(f"warning: {warning}")
    if is_json:
        show.print_json(compat_api.report(chosen))
    else:
        show_setup.print_chosen(chosen)
    return int(any(answer.choice is None for answer in chosen.answers))


def _set_up(
    request: SetupRequest,
    how: EnvironmentRequest,
    *,
    is_dry: bool,
    is_agreed: bool,
    is_json: bool,
) -> int:
    prepared: list[EnvironmentPlan] = []
    with show_environments.Working() as working:
        # Shown before the slow imports, so that the screen is never empty.
        working.update(InstallProgress(name="", text="inspecting the machine"))
        from flatout.setup.env.plan import prepare

        for step in prepare(request, how, is_dry=is_dry):
            if isinstance(step, InstallProgress):
                working.update(step)
            else:
                prepared.append(step)
    if not is_json:
        show_environments.print_prepared(prepared)
    made: list[MadeEnvironment] = []
    todo = [plan for plan in prepared if plan.state != "ready" or how.bundle]
    exit_code = 0
    if todo and not is_dry:
        # With --json no plan was shown that a user could agree to.
        if is_agreed or (not is_json and show.confirm("Continue?")):
            made = _make(prepared, how, is_json=is_json)
        else:
            show.print_note("nothing was changed; to do it, add --yes")
            exit_code = 1
    if is_json:
        plans = [_document(plan) for plan in prepared]
        summary = {name: plans[0][name] for name in _COMPAT_KEYS} if len(plans) == 1 else {}
        there = made or [plan.environment for plan in prepared if plan.environment]
        show.print_json({**summary, "plans": plans, "environments": there})
    return exit_code


def _remove(name: str, *, is_agreed: bool, is_dry: bool, is_json: bool) -> int:
    from flatout.setup.env import manage

    environment = manage.find(name)
    if not is_json:
        show_environments.print_environments([environment])
    is_removed = not is_dry and (is_agreed or (not is_json and show.confirm(f"Remove {name}?")))
    if is_removed:
        manage.remove(name)
        show.print_note(f"removed {name}: {environment.folder}")
    else:
        show.print_note("nothing was changed; to remove it, add --yes and leave out --dry-run")
    if is_json:
        show.print_json({
            "removed": name if is_removed else None, "folder": environment.folder,
            "size_bytes": environment.size_bytes,
        })  # fmt: skip
    return int(not is_removed and not is_dry)


def _make(
    prepared: Sequence[EnvironmentPlan], how: EnvironmentRequest, *, is_json: bool
) -> list[MadeEnvironment]:
    from flatout.setup.env.create import fetch_only, make

    steps = fetch_only(prepared[0], how) if how.bundle else make(prepared, how)
    made: list[MadeEnvironment] = []
    with show_environments.Working() as working:
        for step in steps:
            if isinstance(step, InstallProgress):
                working.update(step)
            elif isinstance(step, MadeEnvironment):
                made.append(step)
            else:
                show.print_note(f"the wheels are in {step}: flatout setup --offline --from {step}")
    for environment in made if not is_json else ():
        show_environments.print_made(environment)
    return made


def _document(plan: EnvironmentPlan) -> dict[str, Any]:
    """The plan as a JSON document."""
    # As the tables name the index that pip queries by default.
    index = plan.index or "pypi"
    choice = {"framework": plan.spec.framework, "version": plan.version, "cuda": plan.cuda,
              "index": index, "python": plan.python_version}  # fmt: skip
    return {
        "name": plan.name, "state": plan.state, "folder": plan.folder, "choice": choice,
        "why": plan.why, "ruled_out": plan.ruled_out, "nearest": [], "notes": plan.notes,
        "steps": [msgspec.structs.asdict(step) for step in plan.steps],
        "installer": plan.installer, "num_packages": len(plan.pins),
        "download_bytes": plan.missing_bytes, "needed_bytes": plan.needed_bytes,
    }  # fmt: skip
