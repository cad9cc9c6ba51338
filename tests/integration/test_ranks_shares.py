"""Ranks look once, before they train, whether the loss of their shares is that of the batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_runs import run_ranks

from flatout.engine import shares
from flatout.engine.gate import splitting
from flatout.engine.gate.splitting import Training, why_not_split
from flatout.engine.relief import Relief
from flatout.engine.session import build
from flatout.engine.shares import check_shares
from flatout.engine.shortage import Shortage
from flatout.errors import RunFailed
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.lines import Event, RecipeSet, SharesChecked, Warned
from flatout.nouns.run import RunHeader
from flatout.system import store
from flatout.system.runs import RunFolder, create_run, read_run
from flatout.tune.relief import Means

CASES = Path(__file__).parents[1] / "cases" / "ranks"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMIT_S = 300.0
NAMES = ("contrasted", "contrasted_parts", "largest_error")
COUPLED = "the loss would change: its samples depend on each other"
Once = Callable[[str, Callable[[Path], None]], Path]
Plain = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(once: Once) -> Path:
    """Each of them trained by two ranks, and taken up again."""

    def train_all(folder: Path) -> None:
        own = [str(CASES), str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))
            patch.setenv("FLATOUT_STATE", str(folder / "state"))
            command = [str(CASES / "train_all.py"), str(folder), "twice", *NAMES]
            run_ranks(2, command, folder, LIMIT_S)

    return once("coupled", train_all)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_warn_once_of_a_loss_that_is_another_one_over_shares(
    trained: Path, name: str
) -> None:
    run = RunFolder(trained / name)
    # It trains all the same, as with DDP.
    assert read_run(run).status == "finished"
    lines = store.read_lines(run.events, Event)
    [checked] = [one for one in lines if isinstance(one, SharesChecked)]
    found = [one.finding for one in lines if isinstance(one, Warned)]
    [finding] = [one for one in found if one.rule == "loss-over-shares"]
    said = "the validation's `loss` would change" if name == "largest_error" else COUPLED
    assert checked.is_checked and said in str(checked.reason)
    assert finding.severity == "warning" and finding.because == checked.reason
    assert any("without --on" in one.text for one in finding.fixes)


class Told:
    """Keeps what a journal is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.findings: list[Any] = []

    def event(self, line: Any, *, is_synced: bool = False) -> None:
        self.events.append(line)

    def warn(self, step: int, finding: Any) -> None:
        self.findings.append(finding)


def new_folder(tmp_path: Path) -> RunFolder:
    spec = ExperimentSpec(name="x")
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    return create_run(header, tmp_path)


def told(experiment: Any, tmp_path: Path) -> Told:
    built, journal = build(experiment, 0, "cpu"), Told()
    check_shares(built, built.recipe({}), journal, new_folder(tmp_path), 0)  # type: ignore[arg-type]
    return journal


def test_a_mean_over_samples_is_said_nothing_of(plain: Plain, tmp_path: Path) -> None:
    journal = told(plain(), tmp_path)
    [line] = journal.events
    assert (line.reason, line.is_checked) == (None, True)
    assert journal.findings == []


def test_a_model_too_large_to_be_checked_is_a_note(
    plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "free_bytes", lambda device: 1000)
    journal = told(plain(), tmp_path)
    [line] = journal.events
    assert not line.is_checked and "are free" in line.reason
    [finding] = journal.findings
    assert finding.severity == "note" and "is not known" in finding.problem


@pytest.mark.parametrize("reason", [None, COUPLED])
def test_relief_goes_by_what_was_found_before(
    plain: Plain, tmp_path: Path, reason: str | None
) -> None:
    folder, built = new_folder(tmp_path), build(plain(), 0, "cpu")
    journal = store.Lines(folder.events)
    journal.append(RecipeSet(at=0.0, step=0, recipe=built.recipe({})))
    journal.append(SharesChecked(at=0.0, step=0, reason=reason))
    journal.close()

    def ask(recipe: Any) -> str | None:
        raise AssertionError("it is known already")

    means = Means(batch_size=8, has_batch_norm=False, has_own_step=False, has_blocks=False)
    relief = Relief(folder, Writing(folder), means, 0, ask=ask)  # type: ignore[arg-type]
    shortage = Shortage(part="forward", because="no memory")
    if reason is None:
        assert relief.less(shortage, 0, is_in_place=True).micro_batch_size.value == 4
    else:
        with pytest.raises(RunFailed, match="its samples depend on each other"):
            relief.less(shortage, 0, is_in_place=True)


class Writing:
    """Writes events, as a journal does."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def event(self, line: Any, *, is_synced: bool = False) -> None:
        lines = store.Lines(self._folder.events)
        lines.append(line)
        lines.close()


def test_on_a_lost_gpu_the_question_is_asked_on_the_cpu_alone(
    plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plain(model=lambda: torch.nn.Linear(6, 3))
    built = build(experiment, 0, "cpu")
    lost = Training(
        experiment=experiment, seed=0, device=torch.device("cuda", 0), data=built.train_data
    )

    def refuse(*args: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(splitting, "release_memory", refuse)
    monkeypatch.setattr(torch.cuda, "get_rng_state", refuse)
    monkeypatch.setattr(torch.cuda, "set_rng_state", refuse)
    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    recipe = built.recipe({})
    assert "could not be verified" in str(why_not_split(lost, recipe))
    assert why_not_split(lost, recipe, has_device=False) is None
    root = replace(lost, experiment=replace(experiment, loss=coupled_loss))
    assert COUPLED in str(why_not_split(root, recipe, has_device=False))


def coupled_loss(model: Any, batch: Any) -> torch.Tensor:
    """A mean that is no mean over samples."""
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).sqrt()
