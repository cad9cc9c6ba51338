"""Several ranks give what one gives; a lost one costs no more than the time since a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
import safetensors.torch
from support.forked_ranks import ForkedRanks
from support.free_port import free_port
from torch import Tensor

from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.rank_env import RankEnv, rank_env_here
from flatout.engine.ranks.rendezvous import unlike, versions_here
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.errors import RunFailed, UsageError
from flatout.runs.supervisor import Supervisor, conclude, follow
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.placement import Placement
from flatout.schema.run import Run, RunHeader
from flatout.schema.run_lines import (
    DESERTED,
    EpochEnded,
    Event,
    Failed,
    Metric,
    Started,
    Stopped,
    Validated,
)
from flatout.system import atomic_files, worker_process
from flatout.system.signals import Interrupts
from flatout.system.store.run_folder import RunFolder, create_run, read_run
from flatout.system.store.run_tail import RunTail

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases" / "ranks"
CAMPAIGNS = TESTS.parent / "campaigns"
# A rank's share of the cores; torch takes a second to import in each.
LIMIT_S = 300.0
Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    _set_paths(monkeypatch.setenv)


def _set_paths(setenv: Callable[[str, str], None]) -> None:
    own = [str(CASES), str(TESTS), os.environ.get("PYTHONPATH", "")]
    setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))


def trained(forked_ranks: ForkedRanks, folder: Path, num_ranks: int, mode: str) -> None:
    """Runs the cases on so many ranks, or takes `rows` up again; one trains by itself."""
    command = [str(CASES / "train_all.py"), str(folder), mode, "rows"]
    forked_ranks.run(num_ranks, command, folder, LIMIT_S)


@pytest.fixture(scope="module")
def by_ranks(once: Once, forked_ranks: ForkedRanks) -> dict[int, Path]:
    """All cases, trained on 1, 2 and 4 ranks; and two epochs of `rows`, to be taken up."""

    def train_all(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            _set_paths(patch.setenv)
            for num_ranks in (1, 2, 4):
                place = folder / str(num_ranks)
                patch.setenv("FLATOUT_STATE", str(place / "state"))
                trained(forked_ranks, place, num_ranks, "all")

    folder = once("ranks", train_all)
    return {num_ranks: folder / str(num_ranks) for num_ranks in (1, 2, 4)}


def curve(run: Path) -> list[float | None]:
    """Validation losses and mean training losses in the order in which they were told."""
    lines = atomic_files.read_lines(RunFolder(run).metrics, Metric)
    return [
        line.metrics["loss"] if isinstance(line, Validated) else line.loss
        for line in lines
        if isinstance(line, Validated | EpochEnded)
    ]


def weights(run: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(RunFolder(run).weights)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", ["rows", "accumulated", "sentences", "stream", "frozen"])
def test_ranks_give_what_one_gives(by_ranks: dict[int, Path], name: str, num_ranks: int) -> None:
    one, several = curve(by_ranks[1] / name), curve(by_ranks[num_ranks] / name)
    assert len(one) > 30
    assert several == pytest.approx(one, rel=1e-9, abs=1e-9)
    run = read_run(RunFolder(by_ranks[num_ranks] / name))
    assert run.started is not None and run.started.num_ranks == num_ranks
    alone = read_run(RunFolder(by_ranks[1] / name))
    assert run.finished is not None and alone.finished is not None
    assert run.finished.num_samples_seen == alone.finished.num_samples_seen


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_first_gradient_when_in_fp32(by_ranks: dict[int, Path], num_ranks: int) -> None:
    one, several = (weights(by_ranks[n] / "first_gradient") for n in (1, num_ranks))
    for name, value in one.items():
        assert (several[name] - value).abs().max() <= 1e-6 * value.abs().max()


def test_batch_norm_says_what_it_does(by_ranks: dict[int, Path]) -> None:
    findings = {n: read_run(RunFolder(by_ranks[n] / "norm")).findings for n in (1, 2)}
    assert [one.rule for one in findings[2]] == ["batch-norm-per-rank"]
    assert findings[1] == ()
    means = {n: weights(by_ranks[n] / "norm")["1.running_mean"] for n in (1, 2, 4)}
    assert means[1].abs().max() > 0.01
    assert (means[2] - means[1]).abs().max() < 1e-9
    assert (means[4] - means[1]).abs().max() < 1e-9
    assert int(weights(by_ranks[2] / "norm")["1.num_batches_tracked"]) == 1


def test_resume_at_another_number_of_ranks(
    by_ranks: dict[int, Path], forked_ranks: ForkedRanks
) -> None:
    folder = by_ranks[2]
    trained(forked_ranks, folder, 3, "4")
    trained(forked_ranks, folder, 1, "5")
    several = curve(folder / "moved")
    # Five epochs of six updates, each with a validation: a run that nobody stopped begins so.
    assert len(several) == 5 * (6 + 1)
    assert several == pytest.approx(curve(by_ranks[1] / "rows")[: len(several)], rel=1e-9, abs=1e-9)
    run = read_run(RunFolder(folder / "moved"))
    notes = [one.problem for one in run.findings]
    assert notes == [
        "the run continues with 3 ranks instead of 2: every batch has the same samples in the same "
        "order.",
        "the run continues with 1 rank instead of 3: every batch has the same samples in the same "
        "order.",
    ]


def attend(tmp_path: Path, on: str, **spec: object) -> Supervisor:
    """A training of `mlp` on ranks of this machine, just started."""
    launcher, _, num_ranks = on.partition(":")
    placement = Placement(launcher=launcher, num_ranks=int(num_ranks))
    fixed = {"num_threads": 1, "checkpoint_every": 20}
    header = RunHeader(
        id="mine", created_at=0.0, flatout_version="0.1.0", python=sys.executable,
        spec=ExperimentSpec(name="digits", fixed=fixed, **spec),  # type: ignore[arg-type]
    )  # fmt: skip
    folder = create_run(header, tmp_path / "runs")
    start = partial(
        worker_process.start_worker, sys.executable, folder, is_attached=True, on=placement
    )
    return Supervisor(
        folder=folder, machine=None, worker=start(None), start=start,  # type: ignore[arg-type]
        tail=RunTail(folder), are_ranks=True,
    )  # fmt: skip


def rank_processes(attendance: Supervisor) -> dict[int, psutil.Process]:
    """The ranks' processes by their numbers, as their variables say."""
    found = {}
    for process in psutil.Process(attendance.worker.pid).children(recursive=True):
        if "--ranked" in process.cmdline():
            found[int(process.environ()["RANK"])] = process
    return found


def followed(attendance: Supervisor, at_step: int, act: Callable[[], None]) -> Run:
    """Follows a training to its end; does something once it has come to that step."""
    has_acted = False
    for _ in follow(attendance, Interrupts()):
        if not has_acted and any(step >= at_step for step in attendance.folder.checkpoint_steps()):
            has_acted = True
            act()
    assert has_acted
    return conclude(attendance).run


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Linux does")
@pytest.mark.parametrize(
    ("on", "lost"), [("local:2", 0), ("local:2", 1), ("torchrun:2", 1), ("local:2", "launcher")]
)
def test_lost_process_is_started_again(tmp_path: Path, on: str, lost: int | str) -> None:
    attendance = attend(tmp_path, on, epochs=6)

    def kill() -> None:
        if lost == "launcher":
            os.kill(attendance.worker.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        else:
            rank_processes(attendance)[int(lost)].kill()

    run = followed(attendance, 20, kill)
    assert run.status == "finished", attendance.folder.log.read_text()[-3000:]
    events = atomic_files.read_lines(attendance.folder.events, Event)
    starts = [one for one in events if isinstance(one, Started)]
    assert [one.resumed for one in starts] == [False, True]
    assert run.step == 6 * 23
    if lost == "launcher":
        # Its ranks have written a checkpoint, and nothing was computed again.
        (stopped,) = [one for one in events if isinstance(one, Stopped)]
        assert (stopped.reason, stopped.step) == (DESERTED, starts[1].step)


def test_ranks_that_cannot_meet_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    here = RankEnv(rank=0, size=2, local_rank=0, host="127.0.0.1", port=0, limit_s=1.0)
    reported: list[Finding] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = replace(here, port=other.getsockname()[1])
        with pytest.raises(RunFailed, match="the port is in use") as news:
            Connection(taken).join(reported.append, StopRequest())
        assert news.value.rule == "rendezvous-port-taken"
    with pytest.raises(RunFailed, match="cannot resolve no-such-host.invalid"):
        Connection(replace(here, host="no-such-host.invalid")).join(reported.append, StopRequest())
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("FLATOUT_RANKS_LIMIT_S", "soon")
    with pytest.raises(UsageError, match="is not a number of seconds"):
        rank_env_here()


def test_ranks_with_other_versions_do_not_train() -> None:
    own = json.loads(versions_here())
    assert unlike([versions_here(), versions_here()]) is None
    wrong = unlike([versions_here(), json.dumps(own | {"torch": "1.0"})])
    assert isinstance(wrong, UsageError) and wrong.rule == "ranks-differ"
    assert wrong.because == f"torch {own['torch']} on rank 0, 1.0 on rank 1"


@pytest.mark.skipif(sys.platform == "win32", reason="signals as Linux has them")
def test_torchrun_that_is_asked_to_end_stops_its_ranks(tmp_path: Path) -> None:
    attendance = attend(tmp_path, "torchrun:2", epochs=100)
    launcher = psutil.Process(attendance.worker.pid)  # type: ignore[attr-defined]
    run = followed(attendance, 20, launcher.terminate)
    assert run.status == "stopped" and run.checkpoint_step == run.step
    assert attendance.worker.exit_code() == 0
    assert "Traceback" not in attendance.folder.log.read_text()


def launchers(folder: RunFolder, nodes: range, port: int) -> list[int]:
    """Starts torchrun as if each were on a machine of its own, of two; gives how they ended."""
    words = [sys.executable, "-P", "-m", "flatout.engine.launch", str(folder.path)]
    words += ["--on", "torchrun:1", "--nodes", "2", "--meet", f"127.0.0.1:{port}"]
    with open(folder.log, "ab") as log:
        started = [
            subprocess.Popen([*words, "--node", str(node)], stdin=subprocess.DEVNULL, stdout=log,
                             stderr=log)
            for node in nodes
        ]  # fmt: skip
    return [one.wait(LIMIT_S) for one in started]


def test_launchers_of_two_nodes_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ExperimentSpec(name="digits", fixed={"num_threads": 1}, epochs=2)
    header = RunHeader(
        id="pair", created_at=0.0, flatout_version="0.1.0", python=sys.executable, spec=spec
    )
    folder = create_run(header, tmp_path / "runs")
    assert launchers(folder, range(2), free_port()) == [0, 0], folder.log.read_text()[-3000:]
    run = read_run(folder)
    assert run.status == "finished" and run.step == 2 * 23
    assert run.started is not None and run.started.num_ranks == 2
    # The other one does not come.
    monkeypatch.setenv("FLATOUT_RANKS_LIMIT_S", "1")
    assert launchers(folder, range(1), free_port()) == [1]
    reported = atomic_files.read_lines(folder.events, Event)[-1]
    assert isinstance(reported, Failed) and reported.finding.rule == "ranks-not-together"
    # Or the port is another program's by now: flatout meets at another one.
    with socket.create_server(("", 0)) as other:
        assert launchers(folder, range(1), other.getsockname()[1]) == [1]
    reported = atomic_files.read_lines(folder.events, Event)[-1]
    assert isinstance(reported, Failed) and reported.finding.rule == "rendezvous-port-taken"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_exit_codes_hold_when_the_disk_of_the_log_is_full(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "flatout.engine.launch", str(tmp_path / "none")]
    # Python loses what it could not print where it buffers nothing, and ends as if all was well.
    buffered = {name: one for name, one in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*words, "--on", "torchrun:1"], stdin=subprocess.DEVNULL, stdout=full, stderr=full,
            timeout=LIMIT_S, check=False, env=buffered,
        )  # fmt: skip
    # The rank could not read its run, and said so by its code: nobody takes that for a death.
    assert done.returncode == 1


def test_memory_that_runs_out_on_one_rank(tmp_path: Path, forked_ranks: ForkedRanks) -> None:
    command = [str(CAMPAIGNS / "oom_ranks.py"), "--as-rank", str(tmp_path), "--trials", "10"]
    forked_ranks.run(2, [*command, "--seed", "3"], tmp_path, LIMIT_S)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    assert [row for row in rows if row["problem"]] == []
    assert all(row["is_same_on_all"] and row["is_close"] for row in rows)
    assert sum(row["failed"] is not None for row in rows) > 4
