"""Trainings of several ranks, many of them in the same processes: for tests and oom_ranks.py.

Each rank runs `python tests/support/ranks_runs.py PROGRAM ARGUMENTS` with its variables.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from flatout.engine import Experiment
from flatout.engine.launch.job import rank_variables
from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import ALONE, OomReport, RankGroup
from flatout.engine.ranks.rank_env import rank_env_here
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.run import RunHeader
from flatout.system.process_env import loopback_variables
from flatout.system.store.run_folder import RunFolder, create_run, read_run
from support.free_port import free_port

T = TypeVar("T")


class Together(MultiRank):
    """Ranks that stay connected from run to run.

    settling: called when they report an out-of-memory error to each other. saving: called before
        the state is gathered and copied for a checkpoint. is_asking: rank 0 checks with whole
        models, before the first step, whether shares of a batch compute the same.
    """

    settling: Callable[[], None] = staticmethod(lambda: None)
    saving: Callable[[], None] = staticmethod(lambda: None)
    is_asking = False

    def join(self, tell: Callable[[Finding], None], request: StopRequest) -> None:
        """They are connected already."""

    def leave(self, error: BaseException | None = None) -> None:
        """They stay connected, unless one of them fails."""
        if error is not None:
            super().leave(error)

    def broadcast_from_rank0(
        self, make: Callable[[], T], kind: Any = None, *, about: str = ""
    ) -> T:
        """See Ranks."""
        self.is_asking = about == "shares"
        try:
            return super().broadcast_from_rank0(make, kind, about=about)
        finally:
            self.is_asking = False

    def all_gather(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """See Ranks."""
        values = super().all_gather(value, kind, about=about)
        if about == "generators":
            self.saving()
        return values

    def agree_on_oom(self, trouble: OomReport) -> OomReport:
        """See Ranks."""
        self.settling()
        return super().agree_on_oom(trouble)


def ranks_here() -> RankGroup:
    """The ranks of this process group, joined; this process is prepared as a worker is."""
    defer_compiler_on_cpu()
    if "RANK" not in os.environ:
        return ALONE
    connection = Connection(rank_env_here())
    connection.join(print, StopRequest())
    return Together(connection)


def new_run(folder: Path, ranks: RankGroup, **fixed: Any) -> RunFolder:
    """The folder of a new run, created by rank 0."""

    def make() -> None:
        spec = ExperimentSpec(name=folder.name, fixed={"num_threads": 1} | fixed)
        header = RunHeader(
            id=folder.name, created_at=0.0, flatout_version="0", python="", spec=spec
        )
        create_run(header, folder.parent)

    ranks.broadcast_from_rank0(make)
    return RunFolder(folder)


def train(
    folder: RunFolder, experiment: Experiment, ranks: RankGroup, epochs: int | None = None
) -> nn.Module:
    """Trains a run to its end, or for so many epochs; returns the model."""
    spec = read_run(folder).header.spec
    task = TrainTask(folder, spec, Change(epochs=epochs), StopRequest(), ranks=ranks)
    return train_in(task, lambda: experiment)


def rank_environments(num_ranks: int) -> list[dict[str, str]]:
    """The variables of each rank; they meet at a free port."""
    meet = ("127.0.0.1", free_port())
    return [
        {
            **os.environ,
            **loopback_variables(),
            **rank_variables(
                rank, num_ranks, local_rank=rank, num_local=num_ranks, rendezvous=meet
            ),
        }
        for rank in range(num_ranks)
    ]


def start_ranks(
    num_ranks: int, command: list[str], folder: Path, **variables: str
) -> list[subprocess.Popen[bytes]]:
    """Starts a Python program once for each rank; each rank's output is in rankN.log."""
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    for rank, environment in enumerate(rank_environments(num_ranks)):
        with open(folder / f"rank{rank}.log", "wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**environment, **variables},
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
        raise RanksFailed(codes, folder)


class RanksFailed(RuntimeError):
    """Some of the ranks have failed; with the ends of all their outputs. codes: their exit codes,
    below zero for a signal.
    """

    def __init__(self, codes: list[int], folder: Path) -> None:
        logs = [(folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(len(codes))]
        super().__init__(f"the ranks ended with {codes}:\n" + "\n".join(logs))
        self.codes = codes
