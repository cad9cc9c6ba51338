"""Trainings of several ranks, many of them in the same processes: for tests and oom_ranks.py.

python benchmarks/ranks_runs.py PROGRAM ARGUMENTS   is what each rank runs, with its variables
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from flatout.engine import Experiment
from flatout.engine.connection import Connection
from flatout.engine.course import Task
from flatout.engine.group import Group
from flatout.engine.launch.job import rank_variables
from flatout.engine.place import place_here
from flatout.engine.ranks import ALONE, Ranks, Trouble
from flatout.engine.training import train_in
from flatout.engine.watch import StopRequest
from flatout.nouns.change import Change
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.finding import Finding
from flatout.nouns.run import RunHeader
from flatout.system.runs import RunFolder, create_run, read_run
from flatout.system.variables import loopback_variables

T = TypeVar("T")


class Together(Group):
    """Ranks that stay together from run to run.

    settling: called when they report want of memory to each other. saving: called before the state
        is put together and copied for a checkpoint. is_asking: the first rank finds out on whole
        models, before the first step, whether shares of a batch compute the same.
    """

    settling: Callable[[], None] = staticmethod(lambda: None)
    saving: Callable[[], None] = staticmethod(lambda: None)
    is_asking = False

    def join(self, tell: Callable[[Finding], None], request: StopRequest) -> None:
        """They have met already."""

    def leave(self, error: BaseException | None = None) -> None:
        """They stay, unless one of them fails."""
        if error is not None:
            super().leave(error)

    def told(self, make: Callable[[], T], kind: Any = None, *, about: str = "") -> T:
        """See Ranks."""
        self.is_asking = about == "shares"
        try:
            return super().told(make, kind, about=about)
        finally:
            self.is_asking = False

    def gathered(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """See Ranks."""
        values = super().gathered(value, kind, about=about)
        if about == "generators":
            self.saving()
        return values

    def settle(self, trouble: Trouble) -> Trouble:
        """See Ranks."""
        self.settling()
        return super().settle(trouble)


def ranks_here() -> Ranks:
    """The ranks that this process is one of, joined."""
    if "RANK" not in os.environ:
        return ALONE
    connection = Connection(place_here())
    connection.join(print, StopRequest())
    return Together(connection)


def new_run(folder: Path, ranks: Ranks, **fixed: Any) -> RunFolder:
    """The folder of a new run, made by the first rank."""

    def make() -> None:
        spec = ExperimentSpec(name=folder.name, fixed={"num_threads": 1} | fixed)
        header = RunHeader(
            id=folder.name, created_at=0.0, flatout_version="0", python="", spec=spec
        )
        create_run(header, folder.parent)

    ranks.told(make)
    return RunFolder(folder)


def train(
    folder: RunFolder, experiment: Experiment, ranks: Ranks, epochs: int | None = None
) -> nn.Module:
    """Trains a run to its end, or to so many epochs; gives the model."""
    spec = read_run(folder).header.spec
    task = Task(folder, spec, Change(epochs=epochs), StopRequest(), ranks=ranks)
    return train_in(task, lambda: experiment)


def start_ranks(
    num_ranks: int, command: list[str], folder: Path, **variables: str
) -> list[subprocess.Popen[bytes]]:
    """Starts a Python program once for each rank; what each prints is in rankN.log there."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    for rank in range(num_ranks):
        own = rank_variables(
            rank, num_ranks, local_rank=rank, num_local=num_ranks, place=("127.0.0.1", port)
        )
        environment = {**os.environ, **loopback_variables(), **own, **variables}
        with open(folder / f"rank{rank}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return started


def run_ranks(num_ranks: int, command: list[str], folder: Path, limit_s: float = 600.0) -> None:
    """Runs a Python program once for each rank, to its end."""
    ranks = start_ranks(num_ranks, command, folder)
    try:
        codes = [rank.wait(limit_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        logs = [(folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(num_ranks)]
        raise RuntimeError(f"the ranks ended with {codes}:\n" + "\n".join(logs))
