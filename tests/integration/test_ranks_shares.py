"""Ranks look once, before they train, whether the loss of their shares is that of the batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked_ranks import ForkedRanks

from flatout.engine.gate import batch_splitting
from flatout.engine.gate.batch_splitting import Training, why_not_split
from flatout.engine.ranks.protocol import ALONE, SingleRank
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runlog.history import History
from flatout.engine.runtime.oom import OutOfMemory
from flatout.engine.session.session import build
from flatout.engine.training import shard_loss_check
from flatout.engine.training.oom_recovery import OomRecovery
from flatout.engine.training.shard_loss_check import check_shares
from flatout.errors import RunFailed
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Event, RecipeSet, SharesChecked, Warned
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, create_run, read_run
from flatout.tune.oom_policy import OomOptions

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases" / "ranks"
LIMIT_S = 300.0
NAMES = ("contrasted", "contrasted_parts", "largest_error")
COUPLED = "the loss would change: its samples depend on each other"
Once = Callable[[str, Callable[[Path], None]], Path]
Plain = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(once: Once, forked_ranks: ForkedRanks) -> Path:
    """Each of them trained by two ranks, and taken up again."""

    def train_all(folder: Path) -> None:
        own = [str(CASES), str(TESTS), os.environ.get("PYTHONPATH", "")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))
            patch.setenv("FLATOUT_STATE", str(folder / "state"))
            command = [str(CASES / "train_all.py"), str(folder), "twice", *NAMES]
            forked_ranks.run(2, command, folder, LIMIT_S)

    return once("coupled", train_all)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_warn_once_of_a_loss_that_is_another_one_over_shares(
    trained: Path, name: str
) -> None:
    run = RunFolder(trained / name)
    # It trains all the same, as with DDP.
    assert read_run(run).status == "finished"
    lines = atomic_files.read_lines(run.events, Event)
    # The first is from before it was asked.
    [begun, checked] = [one for one in lines if isinstance(one, SharesChecked)]
    assert not begun.is_checked
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
        self.history = History()

    def event(self, line: Any, *, is_synced: bool = False) -> None:
        self.events.append(line)

    def warn(self, step: int, finding: Any) -> None:
        self.findings.append(finding)


def new_folder(tmp_path: Path) -> RunFolder:
    spec = ExperimentSpec(name="x")
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    return create_run(header, tmp_path)


def reported(experiment: Any) -> Told:
    built, journal = build(experiment, 0, "cpu"), Told()
    check_shares(built, built.recipe({}), journal, 0)  # type: ignore[arg-type]
    return journal


def test_a_mean_over_samples_is_said_nothing_of(plain: Plain, tmp_path: Path) -> None:
    journal = reported(plain())
    [_, line] = journal.events
    assert (line.reason, line.is_checked) == (None, True)
    assert journal.findings == []


def test_a_model_too_large_to_be_checked_is_a_note(
    plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_loss_check, "free_bytes", lambda device: 1000)
    journal = reported(plain())
    [_, line] = journal.events
    assert not line.is_checked and "is free" in line.reason
    [finding] = journal.findings
    assert finding.severity == "note" and "cannot tell" in finding.problem


def test_a_process_that_ends_over_the_question_is_not_asked_again(
    plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any) -> str | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shard_loss_check, "why_not_split", die)
    folder, built = new_folder(tmp_path), build(plain(), 0, "cpu")
    with pytest.raises(KeyboardInterrupt):
        check_shares(built, built.recipe({}), EventLog(folder), 0)
    check_shares(built, built.recipe({}), EventLog(folder), 0)
    [line] = atomic_files.read_lines(folder.events, Event)
    assert isinstance(line, SharesChecked) and not line.is_checked


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"limit_s": 0.0}, "the check took too long"),
        ({"limit_s": 60.0, "num_parameters": 10**9}, "too long on the CPU"),
        ({"num_parameters": 10**9}, None),
        ({"limit_s": 600.0}, None),
    ],
)
def test_nobody_is_kept_waiting_for_the_answer(
    plain: Plain, change: dict[str, Any], reason: str | None
) -> None:
    built = build(plain(model=lambda: torch.nn.Linear(6, 3)), 0, "cpu")
    cpu = torch.device("cpu")
    training = Training(experiment=built.experiment, seed=0, device=cpu, data=built.train_data)
    found = why_not_split(replace(training, **change), built.recipe({}))
    assert found is None if reason is None else reason in str(found)
    assert found is None or found.startswith(batch_splitting.UNCHECKED)


@pytest.mark.parametrize("has_second_try", [True, False])
def test_what_a_gpu_has_no_memory_for_is_asked_on_the_cpu_only_where_it_may_be(
    plain: Plain, monkeypatch: pytest.MonkeyPatch, has_second_try: bool
) -> None:
    asked: list[str] = []

    def short(training: Any, recipe: Any, device: torch.device, *_: Any, **__: Any) -> str | None:
        asked.append(device.type)
        if device.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return None

    monkeypatch.setattr(batch_splitting, "_split_problem", short)
    monkeypatch.setattr(batch_splitting.rng, "untouched_generators", lambda device: nullcontext())
    built = build(plain(), 0, "cpu")
    training = Training(
        experiment=built.experiment, seed=0, device=torch.device("cuda", 0),
        data=built.train_data, has_second_try=has_second_try,
    )  # fmt: skip
    found = why_not_split(training, built.recipe({}))
    assert asked == (["cuda", "cuda", "cpu"] if has_second_try else ["cuda", "cuda"])
    assert (found is None) == has_second_try


@pytest.mark.parametrize("reason", [None, COUPLED])
def test_relief_goes_by_what_was_found_before(
    plain: Plain, tmp_path: Path, reason: str | None
) -> None:
    folder, built = new_folder(tmp_path), build(plain(), 0, "cpu")
    journal = atomic_files.Lines(folder.events)
    journal.append(RecipeSet(at=0.0, step=0, recipe=built.recipe({})))
    journal.append(SharesChecked(at=0.0, step=0, reason=reason))
    journal.close()

    def ask(recipe: Any) -> str | None:
        raise AssertionError("it is known already")

    means = OomOptions(batch_size=8, has_batch_norm=False, has_own_step=False, has_blocks=False)
    relief = OomRecovery(EventLog(folder), means, 0, check_split=ask)
    shortage = OutOfMemory(part="forward", because="no memory")
    if reason is None:
        assert relief.less(shortage, 0, is_in_place=True).micro_batch_size.value == 4
    else:
        with pytest.raises(RunFailed, match="its samples depend on each other"):
            relief.less(shortage, 0, is_in_place=True)


class Second(SingleRank):
    """A rank that is not the first."""

    rank, size, is_first = 1, 2, False


@pytest.mark.parametrize("ranks", [Second(), ALONE], ids=["second", "first"])
def test_the_first_rank_alone_asks_what_to_do_when_another_has_lost_its_gpu(
    plain: Plain, tmp_path: Path, ranks: Any
) -> None:
    folder, built = new_folder(tmp_path), build(plain(), 0, "cpu")
    journal = atomic_files.Lines(folder.events)
    journal.append(RecipeSet(at=0.0, step=0, recipe=built.recipe({})))
    journal.close()
    asked: list[Any] = []
    means = OomOptions(batch_size=8, has_batch_norm=False, has_own_step=False, has_blocks=False)
    relief = OomRecovery(EventLog(folder), means, 0, ranks, asked.append)
    relief.lost_elsewhere(RunFailed("gpu-state-lost", "rank 2: it is gone.", fix="resume"), 0)
    assert len(asked) == int(ranks.is_first)


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

    monkeypatch.setattr(batch_splitting, "release_memory", refuse)
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
