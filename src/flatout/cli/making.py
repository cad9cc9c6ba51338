"""`flatout setup`, from its plan to environments that are proved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from flatout.cli import show, show_environments
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.made_environment import MadeEnvironment, Progress
from flatout.nouns.prepared_environment import Prepared
from flatout.nouns.setup_request import SetupRequest

# What is told of another machine (`--for`) is told of this one, too.
_ANSWER = ("choice", "why", "ruled_out", "nearest")
_HOW = tuple(msgspec.structs.fields(EnvironmentRequest))


def run(options: dict[str, Any], *, is_json: bool) -> int:
    """What the options of `flatout setup` ask for; gives the exit code."""
    is_agreed, is_dry = options.pop("is_agreed"), options.pop("is_dry")
    removed, repaired = options.pop("remove"), options.pop("repair")
    if removed is not None:
        return _remove(removed, is_agreed=is_agreed, is_dry=is_dry, is_json=is_json)
    if repaired is not None:
        from flatout.cli import repairing

        manner = repairing.Manner(is_agreed=is_agreed, is_dry=is_dry, is_json=is_json)
        return repairing.run(repaired, options, manner)
    how = EnvironmentRequest(
        is_offline=options["is_offline"],
        **{one.name: options.pop(one.name) for one in _HOW if one.name != "is_offline"},
    )
    request = SetupRequest(**options)
    if request.cards or request.driver or request.os:
        for option in how.given:
            show.print_note(f"warning: {option} has no effect with --for")
        return _answer(request, is_json=is_json)
    return _set_up(request, how, is_dry=is_dry, is_agreed=is_agreed, is_json=is_json)


def _answer(request: SetupRequest, *, is_json: bool) -> int:
    """What fits a machine that is not here."""
    from flatout import setting_up
    from flatout.cli import show_setup

    chosen = setting_up.choose(request)
    for warning in chosen.warnings:
        show.print_note(f"warning: {warning}")
    if is_json:
        show.print_json(setting_up.report(chosen))
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
    prepared: list[Prepared] = []
    with show_environments.Working() as working:
        # Said before anything is loaded: nobody waits in front of an empty screen.
        working.say(Progress(name="", text="reading the machine"))
        from flatout.environments.prepare import prepare

        for step in prepare(request, how, is_dry=is_dry):
            if isinstance(step, Progress):
                working.say(step)
            else:
                prepared.append(step)
    if not is_json:
        show_environments.print_prepared(prepared)
    made: list[MadeEnvironment] = []
    todo = [one for one in prepared if one.state != "ready" or how.bundle]
    exit_code = 0
    if todo and not is_dry:
        # With --json no plan was shown that a person could agree to.
        if is_agreed or (not is_json and show.ask("Do it?")):
            made = _make(prepared, how, is_json=is_json)
        else:
            show.print_note("nothing was changed. To do it: the same with --yes")
            exit_code = 1
    if is_json:
        plans = [_document(one) for one in prepared]
        answer = {name: plans[0][name] for name in _ANSWER} if len(plans) == 1 else {}
        there = made or [one.environment for one in prepared if one.environment]
        show.print_json({**answer, "plans": plans, "environments": there})
    return exit_code


def _remove(name: str, *, is_agreed: bool, is_dry: bool, is_json: bool) -> int:
    from flatout.environments import keep

    found = keep.find(name)
    if not is_json:
        show_environments.print_environments([found])
    is_removed = not is_dry and (is_agreed or (not is_json and show.ask(f"Remove {name}?")))
    if is_removed:
        keep.remove(name)
        show.print_note(f"removed {name}: {found.folder}")
    else:
        show.print_note("nothing was changed. To remove it: --yes, without --dry-run")
    if is_json:
        show.print_json({
            "removed": name if is_removed else None, "folder": found.folder,
            "size_bytes": found.size_bytes,
        })  # fmt: skip
    return int(not is_removed and not is_dry)


def _make(
    prepared: Sequence[Prepared], how: EnvironmentRequest, *, is_json: bool
) -> list[MadeEnvironment]:
    from flatout.environments.make import fetch_only, make

    steps = fetch_only(prepared[0], how) if how.bundle else make(prepared, how)
    made: list[MadeEnvironment] = []
    with show_environments.Working() as working:
        for step in steps:
            if isinstance(step, Progress):
                working.say(step)
            elif isinstance(step, MadeEnvironment):
                made.append(step)
            else:
                show.print_note(f"the wheels are in {step}: flatout setup --offline --from {step}")
    for one in made if not is_json else ():
        show_environments.print_made(one)
    return made


def _document(one: Prepared) -> dict[str, Any]:
    """A plan for programs."""
    # As the tables name the index that pip asks by itself.
    index = one.index or "pypi"
    choice = {"framework": one.wish.framework, "version": one.version, "cuda": one.cuda,
              "index": index, "python": one.python_version}  # fmt: skip
    return {
        "name": one.name, "state": one.state, "folder": one.folder, "choice": choice,
        "why": one.why, "ruled_out": one.ruled_out, "nearest": [], "notes": one.notes,
        "steps": [msgspec.structs.asdict(step) for step in one.steps],
        "installer": one.installer, "num_packages": len(one.pins),
        "download_bytes": one.missing_bytes, "needed_bytes": one.needed_bytes,
    }  # fmt: skip
