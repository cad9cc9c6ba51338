"""Sweeps as `flatout sweep` leaves them, for the pages of `flatout web`, without a training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from flatout.schema.experiment_spec import SweepRun
from flatout.schema.run import RunHeader
from flatout.schema.sweep import Choices, Range, SweepHeader, SweepTrial
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files
from flatout.system.store import sweep_folder
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.sweep_folder import SweepFolder
from support.web_runs import CREATED_AT, whole_run

NAME = "digits-sweep-0001"
LR = Range(low=1e-3, high=1e-1, is_log=True)
SPACE: dict[str, Range | Choices] = {"lr": LR, "batch_size": Choices(values=(32, 64, 128))}


def new_sweep(name: str = NAME, trials: Iterable[SweepTrial] = (), **facts: Any) -> SweepFolder:
    """A sweep in the state folder, with these trials."""
    known: dict[str, Any] = {
        "training": TrainRequest(experiment="digits", settings=("width=8",)), "sha256": None,
        "space": SPACE, "num_trials": 4, "sampler": "tpe", "pruner": "none", "metric": "accuracy",
        "direction": "maximize", **facts,
    }  # fmt: skip
    header = SweepHeader(id=name, created_at=CREATED_AT, flatout_version="0.1.0", **known)
    folder = sweep_folder.new_sweep(name)
    atomic_files.write_json(folder.header, header)
    written = atomic_files.Lines(folder.trials)
    for one in trials:
        written.append(msgspec.structs.replace(one, run=header.run_id(one.trial)))
    written.close()
    return folder


def trial(number: int, value: float | None = None, **facts: Any) -> SweepTrial:
    """A trial that has finished, unless it has no value."""
    known: dict[str, Any] = {
        "parameters": {"lr": 0.01, "batch_size": 64}, "duration_s": 4.0,
        "status": "finished" if value is not None else "interrupted", **facts,
    }  # fmt: skip
    return SweepTrial(at=CREATED_AT, trial=number, run="", value=value, **known)


def trial_run(number: int, accuracy: float, sweep: str = NAME) -> RunFolder:
    """The run of a trial, which has finished."""
    folder = whole_run(f"{sweep}-{number:03d}", accuracy)
    header = atomic_files.read_json(folder.header, RunHeader)
    header = msgspec.structs.replace(header, sweep=SweepRun(id=sweep, trial=number))
    atomic_files.write_json(folder.header, header)
    return folder


def whole_sweep(name: str = NAME) -> SweepFolder:
    """Four trials that have finished, the third of them best, with their runs."""
    values = (0.7, 0.8, 0.9, 0.6)
    rates, sizes = (0.001, 0.005, 0.01, 0.1), (32, 64, 64, 128)
    for number, value in enumerate(values, 1):
        trial_run(number, value, name)
    return new_sweep(name, [
        trial(number, value, parameters={"lr": rate, "batch_size": size})
        for number, (value, rate, size) in enumerate(zip(values, rates, sizes, strict=True), 1)
    ])  # fmt: skip
