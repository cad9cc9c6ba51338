"""The same trials as those of a sweep, driven by other tools: what a person would write."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BY_HAND = "optuna, flatout train"
# Optuna by hand, with a process for each trial: the value is read from `flatout show --json`.
_OPTUNA = """
import json, subprocess, sys
import optuna
lrs, words = json.loads(sys.argv[1]), json.loads(sys.argv[2])
def objective(trial):
    lr = trial.suggest_float("lr", 1e-6, 1.0)
    flatout = [sys.executable, "-P", "-m", "flatout"]
    name = f"hand-{trial.number:03d}"
    options = ["-s", f"lr={lr!r}", "--name", name, "--tune", "off", "--use", "device=cpu"]
    done = subprocess.run([*flatout, "train", *words, *options, "--json"], check=True,
                          stdout=subprocess.PIPE)
    validations = json.loads(done.stdout)["run"]["validations"]
    return max(one["metrics"]["accuracy"] for one in validations)
study = optuna.create_study(direction="maximize", storage="sqlite:///study.db")
for lr in lrs:
    study.enqueue_trial({"lr": lr})
study.optimize(objective, n_trials=len(lrs))
"""
# Optuna by hand, all trials in one process: torch is loaded once, and a crash ends them all.
_OPTUNA_INSIDE = """
import json, sys
import optuna
from flatout.engine import train
from flatout.experiments import digits
lrs, words = json.loads(sys.argv[1]), json.loads(sys.argv[2])
def objective(trial):
    lr = trial.suggest_float("lr", 1e-6, 1.0)
    trained = train(digits.experiment(lr=lr), epochs=int(words[-1]), device="cpu", is_quiet=True,
                    name=f"inside-{trial.number:03d}")
    return max(one.metrics["accuracy"] for one in trained.run.validations)
study = optuna.create_study(direction="maximize", storage="sqlite:///study.db")
for lr in lrs:
    study.enqueue_trial({"lr": lr})
study.optimize(objective, n_trials=len(lrs))
"""
_RAY_TUNE = """
import json, os, subprocess, sys
import ray
from ray import tune
lrs, words = json.loads(sys.argv[1]), json.loads(sys.argv[2])
def trainable(config):
    flatout = [sys.executable, "-P", "-m", "flatout"]
    name = f"ray-{lrs.index(config['lr']):03d}"
    options = ["-s", f"lr={config['lr']!r}", "--name", name, "--tune", "off"]
    done = subprocess.run([*flatout, "train", *words, *options, "--use", "device=cpu", "--json"],
                          check=True, stdout=subprocess.PIPE)
    validations = json.loads(done.stdout)["run"]["validations"]
    tune.report({"accuracy": max(one["metrics"]["accuracy"] for one in validations)})
ray.init(num_cpus=os.cpu_count(), include_dashboard=False)
whole = tune.with_resources(trainable, {"cpu": os.cpu_count()})
config = tune.TuneConfig(metric="accuracy", mode="max")
tune.Tuner(whole, param_space={"lr": tune.grid_search(lrs)}, tune_config=config).fit()
"""


@dataclass(frozen=True)
class Taken:
    """How long the whole took, and how much of it the runs spent in training."""

    whole_s: float
    training_s: float


def _driven(
    package: str, program: str
) -> Callable[[Path, Sequence[str], list[float]], Taken | None]:
    def drive(state: Path, words: Sequence[str], lrs: list[float]) -> Taken | None:
        if importlib.util.find_spec(package) is None:
            return None
        state.mkdir(parents=True)
        began_s = time.perf_counter()
        subprocess.run(
            [sys.executable, "-P", "-c", program, json.dumps(lrs), json.dumps(list(words))],
            cwd=state, env={**os.environ, "FLATOUT_STATE": str(state)}, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        whole_s = time.perf_counter() - began_s
        return Taken(whole_s, sum(map(_training_s, (state / "runs").iterdir())))

    return drive


def _training_s(run: Path) -> float:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    (finished,) = [line for line in events if line["kind"] == "finished"]
    return float(finished["train_s"])


PEERS = {
    BY_HAND: _driven("optuna", _OPTUNA),
    "optuna, all in one process": _driven("optuna", _OPTUNA_INSIDE),
    "ray tune, flatout train": _driven("ray.tune" if importlib.util.find_spec("ray") else "ray",
                                       _RAY_TUNE),
}  # fmt: skip
