"""What `flatout self remove` would take away, and that it takes away nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import RunFailed, UsageError
from flatout.schema.plan import Plan, PlanStep, Write
from flatout.setup.flatout import api as flatout_api
from flatout.system.changes import apply
from flatout.system.store import change_journal


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of flatout's own, and none of the person's."""
    for name in ("FLATOUT_DATA", "XDG_STATE_HOME", "FLATOUT_CACHE", "FLATOUT_ENVIRONMENTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "share"))
    monkeypatch.setenv("HOME", str(tmp_path))
    if flatout_api.installed().way != "checkout":
        pytest.skip("needs flatout run from its sources: an installed one would be taken away")
    return tmp_path


def change(file: Path, text: str) -> None:
    """A change as the doctor makes it."""
    step = PlanStep(text="write it", action=Write(file=str(file), text=text), changes=str(file))
    plan = Plan(goal=f"have {file.name}", steps=(step,))
    assert [one.how for one in apply.apply(plan)] == ["done"]


def test_removal_puts_back_what_flatout_has_changed(home: Path) -> None:
    mine, made = home / "mine.conf", home / "made.conf"
    mine.write_text("before")
    change(mine, "first")
    change(mine, "second")
    change(made, "new")
    removal = flatout_api.plan_removal((), is_with_runs=False)
    (edits,) = [part for part in removal.parts if part.name == "edits"]
    assert "have mine.conf" in edits.text and removal.parts[0] is edits
    flatout_api.remove_part(edits, removal.installation)
    assert mine.read_text() == "before" and not made.exists()
    assert {one.status for one in change_journal.entries()} == {"undone"}


def test_removal_keeps_what_was_asked_to_stay(home: Path) -> None:
    change(home / "mine.conf", "new")
    removal = flatout_api.plan_removal(("edits",), is_with_runs=False)
    assert "edits" not in [part.name for part in removal.parts]
    assert "undo" in [use.kind for use in removal.kept]


def test_removal_puts_back_all_but_what_somebody_has_changed_and_says_so(home: Path) -> None:
    other, file = home / "other.conf", home / "mine.conf"
    change(other, "flatout's")
    change(file, "flatout's")
    file.write_text("somebody's")
    removal = flatout_api.plan_removal((), is_with_runs=False)
    with pytest.raises(RunFailed) as reported:
        flatout_api.remove_part(removal.parts[0], removal.installation)
    assert reported.value.rule == "not-all-put-back" and "mine.conf" in (
        reported.value.because or ""
    )
    assert file.read_text() == "somebody's" and not other.exists()


def test_removal_leaves_runs_and_recipes_that_are_kept(home: Path) -> None:
    for name in ("recipes/a.json", "runs/one/run.json"):
        (home / "state" / name).parent.mkdir(parents=True)
        (home / "state" / name).write_text("{}")
    removal = flatout_api.plan_removal(("recipes",), is_with_runs=False)
    assert removal.installation.way == "checkout" and removal.parts[-1].commands == ()
    for part in removal.parts:
        flatout_api.remove_part(part, removal.installation)
    assert (home / "state/recipes/a.json").exists() and (home / "state/runs/one/run.json").exists()
    removal = flatout_api.plan_removal((), is_with_runs=True)
    for part in removal.parts:
        flatout_api.remove_part(part, removal.installation)
    assert not (home / "state").exists()


def test_removal_refuses_to_keep_what_it_does_not_know(home: Path) -> None:
    with pytest.raises(UsageError, match="not a known kind"):
        flatout_api.plan_removal(("enviroments",), is_with_runs=False)
