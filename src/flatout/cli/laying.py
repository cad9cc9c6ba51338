"""`flatout setup --driver-plan`, `--wsl`, `--toolkit`, `--docker`: shown, asked, carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout import groundwork
from flatout.cli import show, show_fix, show_groundwork
from flatout.nouns.groundwork import Groundwork, GroundworkRequest
from flatout.nouns.journal import StepOutcome
from flatout.nouns.plan import Plan


def run(goal: str, options: dict[str, Any], *, is_json: bool) -> int:
    """Plans a goal, and does it if that is agreed to; gives the exit code."""
    request = GroundworkRequest(
        goal=goal,  # type: ignore[arg-type]  # One of the options' names.
        cuda=options.get("cuda"),
        packages=tuple(options.get("packages") or ()),
        installer=options.get("lock"),
        frameworks=tuple(options.get("frameworks") or ()) or ("torch",),
    )
    for name in without_effect(goal, options):
        show.print_note(f"warning: {name} has no effect here")
    found = groundwork.lay(request)
    if not is_json:
        show_groundwork.print_groundwork(found)
    if options.get("is_dry") or not found.plan.steps:
        return _tell(found, [], is_json=is_json)
    if found.refusal:
        show.print_note(f"nothing was changed: {found.refusal}")
        return _tell(found, [], is_json=is_json, exit_code=1)
    is_agreed = bool(options.get("is_agreed"))
    if found.files:
        return _write(found, options.get("folder"), is_agreed=is_agreed, is_json=is_json)
    return _do(found, is_agreed=is_agreed, is_json=is_json)


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


def _write(found: Groundwork, folder: str | None, *, is_agreed: bool, is_json: bool) -> int:
    """Writes the script, what it needs, and the request for whoever has the rights."""
    if not is_agreed and not show.ask(f"Write {', '.join(found.files)} and install.sh here?"):
        show.print_note("nothing was written (--yes writes without asking)")
        return _tell(found, [], is_json=is_json, exit_code=1)
    texts = groundwork.with_installer(found.files)
    paths = groundwork.write_script(texts, Path(folder or "."))
    show_groundwork.print_written(paths, f"read setup.ps1, then: {found.run_line}")
    return _tell(found, [], is_json=is_json)


def _do(found: Groundwork, *, is_agreed: bool, is_json: bool) -> int:
    part = groundwork.first_part(found.plan)
    if not part.steps:
        show.print_note("the first step is yours; then run this again")
        return _tell(found, [], is_json=is_json, exit_code=1)
    for text in groundwork.previews(part):
        show_fix.print_preview(text)
    which = f"steps 1 to {len(part.steps)}" if len(part.steps) > 1 else "step 1"
    if not is_agreed and not show.ask(f"Do {which}?"):
        show.print_note("nothing was changed (--yes does it without asking)")
        return _tell(found, [], is_json=is_json, exit_code=1)
    outcomes = _apply(part)
    has_failed = any(one.how == "failed" for one in outcomes)
    if not has_failed and len(part.steps) < len(found.plan.steps):
        show.print_note(f"next, by hand: {found.plan.steps[len(part.steps)].text}")
    return _tell(found, outcomes, is_json=is_json, exit_code=int(has_failed))


def _apply(part: Plan) -> list[StepOutcome]:
    outcomes = []
    show_fix.wait_for_program()
    for outcome in groundwork.apply(part):
        show_fix.print_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


def _tell(
    found: Groundwork, outcomes: list[StepOutcome], *, is_json: bool, exit_code: int = 0
) -> int:
    if is_json:
        document = {"plan": found.plan, "commands": found.commands, "outcomes": outcomes}
        show.print_json({**document, **({"refusal": found.refusal} if found.refusal else {})})
    return exit_code
