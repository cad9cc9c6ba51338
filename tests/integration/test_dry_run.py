"""A dry run: one step and one validation batch, their report, and nothing kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked_commands import ForkedCommands
from torch import Tensor, nn

from flatout.engine import Experiment, dry_run
from flatout.errors import FlatoutError

SRC = str(Path(__file__).resolve().parents[2] / "src")

Plain = Callable[..., Experiment]


def test_report_says_sizes_shapes_loss_and_metrics(plain: Plain) -> None:
    found = dry_run(plain(), use={"num_threads": 1})
    assert found.num_parameters == found.num_trained == 6 * 16 + 16 + 32 + 16 * 3 + 3
    assert found.train.shapes == ("float32 (8, 6)", "int64 (8,)") and found.train.size == 8
    assert found.train.num_samples == 50 and found.num_steps == 21 and found.num_epochs == 3
    assert found.validation is not None and found.validation.num_samples == 20
    assert 0 < (found.losses["loss"] or 0) < 5 and 0 < (found.metrics["loss"] or 0) < 5
    assert found.best == "loss" and found.learning_rate == pytest.approx(1e-2)


def test_nothing_is_left_of_it(plain: Plain, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    before = torch.get_rng_state()
    dry_run(plain())
    assert torch.equal(before, torch.get_rng_state())
    assert not (tmp_path / "state").exists()


def test_step_of_ones_own_is_made(plain: Plain) -> None:
    def step(updates: Any, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return {"mine": updates["optimizer"](loss)}

    found = dry_run(plain(loss=None, step=step, validation_data=None))
    assert list(found.losses) == ["mine"] and found.validation is None and found.best is None


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"best": "acc"}, "unknown-metric"),
        ({"loss": lambda model, batch: model(batch[0])}, "loss-is-not-a-scalar"),
        (
            {
                "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=4),
                "schedule_every": "step",
            },
            "schedule-is-over",
        ),
    ],
    ids=["best", "loss", "schedule"],
)
def test_mistake_is_reported_as_a_training_would(
    plain: Plain, fields: dict[str, Any], rule: str
) -> None:
    with pytest.raises(FlatoutError) as caught:
        dry_run(plain(**fields))
    assert caught.value.rule == rule


def test_command_reports_and_leaves_no_run(tmp_path: Path, forked: ForkedCommands) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = forked.run(
        ("train", "digits", "--dry-run", "--json"), folder=tmp_path,
        environment={
            **os.environ, "FLATOUT_STATE": str(tmp_path / "state"), "TMPDIR": str(temporary),
            "OMP_NUM_THREADS": "1", "PYTHONPATH": SRC,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["dry_run"]["train"]["shapes"][0] == "float32 (64, 1, 8, 8)"
    assert "accuracy" in reported["dry_run"]["metrics"] and reported["finding"] is None
    runs = tmp_path / "state" / "runs"
    assert not runs.exists() or not list(runs.iterdir())
    assert not list(temporary.glob("flatout-dry-run-*"))


RAISING = """
import torch
import flatout

def loss(model, batch):
    raise ValueError("mine")

def experiment():
    return flatout.Experiment(
        model=lambda: torch.nn.Linear(2, 1), loss=loss, batch_size=2, steps=1,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=lambda: (torch.zeros(4, 2), torch.zeros(4, 1)),
    )
"""


@pytest.mark.parametrize("is_dry", [True, False])
def test_the_log_is_named_only_where_it_is_kept(
    tmp_path: Path, is_dry: bool, forked: ForkedCommands
) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    done = forked.run(
        ("train", "raising.py", "--tune", "off", "--json", *(["--dry-run"] if is_dry else [])),
        folder=tmp_path,
        environment={
            **os.environ, "FLATOUT_STATE": str(tmp_path / "state"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": SRC,
        },
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    [fix] = json.loads(done.stdout)["finding"]["fixes"]
    assert fix["text"] == ("fix it" if is_dry else "fix it; worker.log has the full traceback")
    assert ("worker.log" in done.stderr) != is_dry


def test_a_notebook_has_no_log(plain: Plain) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("mine")

    with pytest.raises(FlatoutError) as caught:
        dry_run(plain(loss=loss))
    assert caught.value.fix == "fix it"
