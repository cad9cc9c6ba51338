"""The models that benchmarks/no_regret.py measures: each trains, and each is named."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from flatout.engine import train
from flatout.engine.session.load_experiment import load_experiment
from flatout.runs.experiment_source import built_in_names
from flatout.schema.experiment_spec import ExperimentSpec

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FILES = sorted((BENCHMARKS / "zoo").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_model_of_the_zoo_trains_three_steps(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    experiment = load_experiment(ExperimentSpec(name=file.stem, file=str(file)))
    short = dataclasses.replace(experiment, batch_size=4, steps=3, epochs=None)
    # Three steps are over before a loader's worker has started.
    run = train(short, use={"num_threads": 1, "loader_workers": 0}, is_quiet=True).run
    # A loss that is no number would have ended it.
    assert (run.status, run.step) == ("finished", 3)


def test_every_model_there_is_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    models = importlib.import_module("no_regret_models")
    named = {model.file for model in models.MODELS.values() if model.file}
    # timm, whose models those are, need not be installed.
    assert named == {*FILES, BENCHMARKS / "timm_pictures.py"}
    built_ins = {model.name for model in models.MODELS.values() if model.file is None}
    assert built_ins == set(built_in_names())
    assert len(models.CHOSEN) >= 14
    assert set(models.CHOSEN) | set(models.QUICK) <= set(models.MODELS)
