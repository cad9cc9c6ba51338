"""`flatout lr` with torch: real steps at larger and larger rates."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout
from flatout.cli.main import run
from flatout.engine import Experiment
from flatout.errors import FlatoutError, UsageError
from flatout.schema.environment import EnvironmentSpec, MadeEnvironment, SmokeTestResult
from flatout.system import atomic_files

Plain = Callable[..., Experiment]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def seen_rates(plain: Plain, **fields: Any) -> tuple[Any, list[list[float]]]:
    """A test's result, and the rates of all groups in each of its steps."""
    made: list[Any] = []
    experiment = plain(**fields)

    def optimizer(parameters: Any) -> Any:
        made.append(experiment.optimizer(parameters))
        return made[-1]

    seen: list[list[float]] = []

    def note() -> None:
        given = made[-1]
        optimizers = given.values() if isinstance(given, dict) else [given]
        seen.append([float(group["lr"]) for one in optimizers for group in one.param_groups])

    def loss(model: Any, batch: Any) -> Any:
        note()
        assert experiment.loss is not None
        return experiment.loss(model, batch)

    def step(updates: Any, model: Any, batch: Any) -> Any:
        note()
        assert experiment.step is not None
        return experiment.step(updates, model, batch)

    own = {"loss": loss} if experiment.step is None else {"step": step}
    watched = dataclasses.replace(experiment, optimizer=optimizer, **own)
    return flatout.lr_range(watched, from_lr=1e-4, to_lr=1.0, steps=25), seen


def test_fast_rate_is_suggested_for_a_model_that_learns(plain: Plain) -> None:
    result = flatout.lr_range(plain(), use={"num_threads": 1}, steps=60)
    assert result.lr is not None and 1e-5 < result.lr < 10
    assert result.own_lr == 1e-2
    again = flatout.lr_range(plain(), use={"num_threads": 1}, steps=60)
    assert again.points == result.points


def test_groups_keep_their_ratio_and_schedule_and_hooks_are_left_out(plain: Plain) -> None:
    def optimizer(parameters: Any) -> Any:
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first], "lr": 1e-3}, {"params": rest, "lr": 1e-2}])

    class Fails:
        def on_step(self, context: Any) -> None:
            raise AssertionError

    result, seen = seen_rates(
        plain, optimizer=optimizer, hooks=Fails, schedule_every="step",
        schedule=lambda one: torch.optim.lr_scheduler.ExponentialLR(one, 0.5),
    )  # fmt: skip
    assert result.group_ratios == pytest.approx((0.1, 1.0))
    assert [pair[1] for pair in seen] == pytest.approx([10 ** (-4 + n / 6) for n in range(25)])
    assert [pair[0] for pair in seen] == pytest.approx([pair[1] / 10 for pair in seen])


def test_own_step_with_two_optimizers(plain: Plain) -> None:
    def step(updates: Any, model: Any, batch: Any) -> Any:
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return {"a": updates["a"](value, retain_graph=True), "b": updates["b"](value)}

    def optimizers(parameters: Any) -> Any:
        first, *rest = parameters
        return {"a": torch.optim.SGD([first], lr=0.2), "b": torch.optim.SGD(rest, lr=0.1)}

    result, seen = seen_rates(
        plain, loss=None, step=step, optimizer=optimizers, validation_data=None
    )
    assert len(seen) >= 20 and result.points[0].loss > 1
    assert all(b == pytest.approx(a / 2) for a, b in seen)


def test_divergence_ends_the_test(plain: Plain) -> None:
    result = flatout.lr_range(
        plain(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        from_lr=1e-3, to_lr=1e12, steps=60,
    )  # fmt: skip
    assert result.diverged_at is not None and len(result.points) < 60


def test_optimizer_without_a_rate_is_refused(plain: Plain) -> None:
    class Rateless(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self.param_groups[0]["lr"] = None

    with pytest.raises(UsageError) as refused:
        flatout.lr_range(plain(optimizer=Rateless))
    assert refused.value.rule == "bad-lr-range"


def test_error_of_the_experiment_is_its_own(plain: Plain) -> None:
    with pytest.raises(FlatoutError) as raised:
        flatout.lr_range(plain(loss=lambda model, batch: model(batch)))
    assert raised.value.rule == "experiment-raised"


def test_command_prints_keeps_and_draws(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lr", "digits", "--steps", "20", "--device", "cpu", "--use", "num_threads=1"]) == 0
    out = capsys.readouterr().out
    assert "learning rate" in out and "suggested" in out and "in the experiment" in out
    kept = json.loads((state / "lr" / "digits.json").read_text())
    suggested = float(f"{kept['lr']:.2g}")
    assert f"flatout train digits -s lr={suggested!r} --use" in out and "--tune" not in out
    assert len(kept["points"]) == 20
    assert (state / "lr" / "digits.png").read_bytes()[:4] == b"\x89PNG"
    assert not (state / "runs").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for an interpreter")
def test_next_command_trains_with_the_recipe_and_in_the_environment_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLATOUT_ENVIRONMENTS", str(tmp_path / "environments"))
    folder = tmp_path / "environments" / "mine"
    folder.mkdir(parents=True)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    proof = SmokeTestResult(device="cpu", version="2.13.0", losses=(1.0, 0.5), deviation=0.0,
                            tolerance=0.1, at="2026-01-01T00:00:00Z")  # fmt: skip
    made = MadeEnvironment(
        name="mine", folder=str(folder), python=str(python), python_version="3.12",
        version="2.13.0", cuda="cpu", index=None, installer="pip",
        spec=EnvironmentSpec(framework="torch"), machine="", pins=(), size_bytes=1,
        made_at="2026-01-01T00:00:00Z", proof=proof,
    )  # fmt: skip
    atomic_files.write_json(folder / "flatout-environment.json", made)
    recipe = Path(__file__).parents[1] / "cases" / "written_before" / "recipe.json"
    arguments = ["lr", "digits", "--steps", "20", "--env", "mine", "--recipe", str(recipe)]
    assert run([*arguments, "--use", "num_threads=1", "--json"]) == 0
    command = shlex.split(json.loads(capsys.readouterr().out)["command"])
    assert command[:5] == ["flatout", "train", "digits", "-s", command[4]]
    assert command[5:] == ["--recipe", str(recipe), "--use", "num_threads=1", "--python",
                           str(python)]  # fmt: skip


def test_command_gives_one_document(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["lr", "digits", "--steps", "20", "--device", "cpu", "--from", "1e-3", "--json"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["result"]["sweep"]["from_lr"] == 1e-3
    assert Path(document["file"]).is_file()


def test_result_is_shown_where_matplotlib_is_broken(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = state / "broken"
    (broken / "matplotlib").mkdir(parents=True)
    (broken / "matplotlib" / "__init__.py").write_text("raise RuntimeError('built for NumPy 1')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(broken))
    assert run(["lr", "digits", "--steps", "20", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "suggested" in shown.out and "plots-not-drawn" in shown.err


@pytest.mark.parametrize(
    "arguments", [["--from", "1", "--to", "0.1"], ["--steps", "3"], ["--from", "0"]]
)
def test_command_refuses_an_impossible_range(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lr", "digits", *arguments]) == 2
    assert "bad-lr-range" in capsys.readouterr().err
