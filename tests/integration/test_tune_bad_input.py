"""What a search is given that cannot be searched: told as a training tells it, and at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.busy_machine import wait_until

import flatout.engine
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.driver import Search, tuned_recipe
from flatout.engine.tuner.trials import Trials
from flatout.errors import FlatoutError
from flatout.schema.run_lines import Event, Tuned
from flatout.schema.tuning import Candidate, Trial, TuneRequest


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))


def rows(count: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(0))
    return inputs, torch.arange(count) % 4


def loss(model: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def experiment(**changes: Any) -> flatout.Experiment:
    fields: dict[str, Any] = {
        "model": lambda: torch.nn.Linear(16, 4),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        "loss": loss,
        "train_data": rows,
        "batch_size": 32,
        "epochs": 1,
    }
    return flatout.Experiment(**(fields | changes))


def unequal() -> list[tuple[torch.Tensor, int]]:
    return [(torch.ones(3 + number % 5, 16), number % 4) for number in range(128)]


def padded(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    texts = torch.nn.utils.rnn.pad_sequence([text for text, _ in samples], batch_first=True)
    return texts, torch.tensor([label for _, label in samples])


def of_each(model: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def not_a_number(model: Any, batch: Any) -> torch.Tensor:
    return loss(model, batch) * float("nan")


class Attending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        seen = inputs[:, None, None, :]
        # torch's flash attention on a CPU has no dropout.
        mixed = torch.nn.functional.scaled_dot_product_attention(seen, seen, seen, dropout_p=0.1)
        scores: torch.Tensor = self.last(mixed[:, 0, 0])
        return scores


BAD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("loss-is-not-a-scalar", {"loss": of_each}, {}),
    ("samples-cannot-be-stacked", {"train_data": unequal}, {}),
    ("no-data", {"train_data": lambda: rows(0)}, {}),
    ("no-data", {"train_data": list}, {}),
    ("nonfinite-loss", {"loss": not_a_number}, {}),
    ("precision-not-here", {}, {"precision": "fp16"}),
    ("precision-not-here", {}, {"precision": "tf32"}),
    ("recipe-does-not-fit", {}, {"data_path": "loader"}),
    ("recipe-does-not-fit", {"model": Attending}, {"attention": "flash"}),
]


@pytest.mark.parametrize(("rule", "changes", "use"), BAD)
def test_a_search_tells_the_news_that_a_training_tells(
    rule: str, changes: dict[str, Any], use: dict[str, Any]
) -> None:
    bad = experiment(**changes)
    fixed = {"device": "cpu", "loader_workers": 0} | use
    with pytest.raises(FlatoutError) as trained:
        flatout.engine.train(bad, use=fixed, is_quiet=True)
    with pytest.raises(FlatoutError) as tuned:
        flatout.engine.tune(bad, use=fixed, budget_s=2, is_quiet=True)
    assert tuned.value.rule == trained.value.rule == rule


def test_batches_of_changing_shape_are_measured() -> None:
    asked = experiment(
        train_data=unequal,
        collate=padded,
        loss=lambda model, batch: loss(lambda texts: model(texts).mean(1), batch),
    )
    result = measured(asked, {"optimizer_implementation": "fused"})
    assert result.problem is None and result.speedup is not None


class Picky(torch.nn.Module):
    """Adds into a buffer of fp32, which refuses what is in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        order, kept = torch.arange(len(inputs)), torch.zeros(len(inputs), 16)
        scores: torch.Tensor = self.last(kept.index_add(0, order, self.first(inputs)))
        return scores


def test_a_model_that_cannot_run_in_bf16_loses_with_its_own_words() -> None:
    result = measured(experiment(model=Picky), {"precision": "bf16"})
    assert result.problem is not None and result.problem.rule == "experiment-raised"
    assert "BFloat16" in result.problem.problem


def measured(asked: flatout.Experiment, changes: dict[str, Any]) -> Any:
    candidate = Candidate(name="tried", axis="any", changes=changes, why="")
    trial = Trial(stage="screen", candidate=candidate, incumbent=None, changes=changes)
    return Trials(TuningTask(experiment=asked, device_name="cpu")).measured(trial, 0.3)


def test_a_budget_too_short_for_a_trial_says_what_would_do_and_keeps_nothing(
    tmp_path: Path,
) -> None:
    found = flatout.engine.tune(experiment(), budget_s=0.01, is_quiet=True)
    assert found.use == {} and not found.decision.has_measured
    assert "no time for a trial" in found.decision.why and "would be enough" in found.decision.why
    assert not list(tmp_path.glob("recipes/*"))


def test_a_training_whose_loss_is_nan_is_left_to_name_its_samples() -> None:
    """The search only ends: the weights that a run is given may do better."""
    reported: list[Event] = []
    search = Search(
        subject=TuningTask(experiment=experiment(loss=not_a_number), device_name="cpu"),
        options=TuneRequest(mode="full"),
        num_steps=4,
        request=StopRequest(),
        on_event=reported.append,
        folder=None,
    )
    recipe = tuned_recipe(search)
    assert recipe is not None and recipe.deterministic.value
    assert not any(isinstance(line, Tuned) for line in reported)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_search_that_is_interrupted_ends_in_order(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "flatout", "tune", "mlp", "--budget", "600"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ),
    )  # fmt: skip
    process = psutil.Process(command.pid)
    try:
        wait_until(lambda: any('"trying"' in events(path) for path in tmp_path.glob("tunes/*")))
        children = process.children(recursive=True)
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=180)
    finally:
        command.kill()
    assert command.returncode == 130
    assert children and not psutil.wait_procs(children, timeout=120)[1]
    assert said.splitlines()[-1].startswith("stopped ") and "error" not in said


def events(folder: Path) -> str:
    file = folder / "events.jsonl"
    return file.read_text() if file.exists() else ""
