"""`flatout setup --driver-plan`, `--wsl`, `--toolkit`, `--docker`: show, ask, carry out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.cli.render import show, show_fix, show_host_plan
from flatout.schema.change_journal import StepOutcome
from flatout.schema.plan import Plan
from flatout.setup.host import api as host_api
from flatout.setup.model.host_plan import HostPlan, HostPlanRequest
from flatout.system.changes import api as changes_api


def run(goal: str, options: dict[str, Any], *, is_json: bool) -> int:
    """Plans a goal, and does it if that is agreed to; gives the exit code."""
    request = HostPlanRequest(
        goal=goal,  # type: ignore[arg-type]  # One of the options' names.
        cuda=options.get("cuda"),
        packages=tuple(options.get("packages") or ()),
        installer=options.get("lock"),
        frameworks=tuple(options.get("frameworks") or ()) or ("torch",),
    )
    for name in without_effect(goal, options):
        show.print_note(f"warning: {name} has no effect here")
    host_plan = host_api.plan_host(request)
    if not is_json:
        show_host_plan.print_host_plan(host_plan)
    if options.get("is_dry") or not host_plan.plan.steps:
        return _report(host_plan, [], is_json=is_json)
    if host_plan.refusal:
        show.print_note(f"nothing was changed: {host_plan.refusal}")
        return _report(host_plan, [], is_json=is_json, exit_code=1)
    is_agreed = bool(options.get("is_agreed"))
    if host_plan.files:
        return _write(host_plan, options.get("folder"), is_agreed=is_agreed, is_json=is_json)
    return _do(host_plan, is_agreed=is_agreed, is_json=is_json)


def without_effect(goal: str, options: dict[str, Any]) -> list[str]:
    """Options that were given and do nothing for this goal."""
    used = {"is_dry", "is_agreed", *_USED.get(goal, ())}
    return [
        _TYPED.get(name) or f"--{name.removeprefix('is_').replace('_', '-')}"
        for name, value in options.items()
        if value and name not in used
    ]


_USED = {"toolkit": ("cuda", "packages", "lock"), "wsl": ("frameworks", "folder")}
# Options whose values have another name than what is typed.
_TYPED = {
    "cards": "--for", "folder": "--in", "packages": "--with", "files": "-r", "lock": "--from",
    "mirrors": "--mirror", "frameworks": "FRAMEWORK",
}  # fmt: skip


def _write(host_plan: HostPlan, folder: str | None, *, is_agreed: bool, is_json: bool) -> int:
    """Writes the script, what it needs, and the request to the administrator."""
    if not is_agreed and not show.confirm(
        f"Write {', '.join(host_plan.files)} and install.sh here?"
    ):
        show.print_note("nothing was written (--yes writes without asking)")
        return _report(host_plan, [], is_json=is_json, exit_code=1)
    texts = host_api.with_installer(host_plan.files)
    paths = host_api.write_script(texts, Path(folder or "."))
    show_host_plan.print_written(paths, f"review setup.ps1, then run: {host_plan.run_line}")
    return _report(host_plan, [], is_json=is_json)


def _do(host_plan: HostPlan, *, is_agreed: bool, is_json: bool) -> int:
    part = host_api.first_part(host_plan.plan)
    if not part.steps:
        show.print_note("do the first step by hand, then run this again")
        return _report(host_plan, [], is_json=is_json, exit_code=1)
    for text in changes_api.previews(part):
        show_fix.print_preview(text)
    which = f"steps 1 to {len(part.steps)}" if len(part.steps) > 1 else "step 1"
    if not is_agreed and not show.confirm(f"Do {which}?"):
        show.print_note("nothing was changed (--yes continues without asking)")
        return _report(host_plan, [], is_json=is_json, exit_code=1)
    outcomes = _apply(part)
    has_failed = any(outcome.how == "failed" for outcome in outcomes)
    if not has_failed and len(part.steps) < len(host_plan.plan.steps):
        show.print_note(f"next, by hand: {host_plan.plan.steps[len(part.steps)].text}")
    return _report(host_plan, outcomes, is_json=is_json, exit_code=int(has_failed))


def _apply(part: Plan) -> list[StepOutcome]:
    outcomes = []
    show_fix.wait_for_program()
    for outcome in changes_api.apply(part):
        show_fix.print_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def _report(
    host_plan: HostPlan, outcomes: list[StepOutcome], *, is_json: bool, exit_code: int = 0
) -> int:
    if is_json:
        document = {"plan": host_plan.plan, "commands": host_plan.commands, "outcomes": outcomes}
        show.print_json(
            {**document, **({"refusal": host_plan.refusal} if host_plan.refusal else {})}
        )
    return exit_code
