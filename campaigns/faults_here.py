"""Faults of processes, ports, names and disks: two ranks on this machine, no containers."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil
from faults_runs import (
    AT_STEP,
    LIMIT_S,
    STILL_LIMIT_S,
    STILL_S,
    Blow,
    Row,
    Runs,
    Training,
    Unexpected,
    filled_up,
    judged,
    limited,
    strike,
    taken_up,
    wait_until_left,
)
from support.small_disk import can_be_mounted, small_disk

from flatout.engine.launch.job import rank_variables

_DISK = "24m"
# Draws of each rank, which a resume has to give back.
_DROPOUT = "dropout=0.1"
# Slow enough that the other processes are refused before the run ends.
_SLOW_S = 0.2
_NO_HOST = "no-such-host.invalid"


@dataclass(frozen=True, kw_only=True)
class Kill:
    """SIGKILL to processes of a training.

    act: sends it. is_of_all: also to the process that would restart the ranks, so that the run has
    to be resumed by hand.
    """

    fault: str
    act: Callable[[Training], object]
    is_of_all: bool = False


def _launcher(training: Training) -> psutil.Process:
    return next(one for one in training.processes() if "flatout.engine.launch" in one.cmdline())


_KILLS = (
    Kill(fault="rank 1 killed", act=lambda training: training.ranks()[1].kill()),
    Kill(fault="rank 0 killed", act=lambda training: training.ranks()[0].kill()),
    Kill(fault="launcher of the ranks killed", act=lambda training: _launcher(training).kill()),
    Kill(fault="command line killed", act=lambda one: one.process.kill(), is_of_all=True),
    # As a power cut does.
    Kill(fault="all processes killed", act=Training.kill, is_of_all=True),
)


def faults() -> dict[str, Callable[[Runs], Row]]:
    """The faults that can be injected here, by name."""
    found: dict[str, Callable[[Runs], Row]] = {
        **{one.fault: functools.partial(killed, kill=one) for one in _KILLS},
        f"rank 1 stopped for {STILL_S:.0f} s": straggler,
        f"rank 0 stopped for over {STILL_LIMIT_S:.0f} s": hung,
        "rank 1 out of memory": out_of_memory,
        "run trained by a second process": second_writer,
        "run resumed twice at once": taken_up_twice,
        "rank 0's port in use": port_wanted,
        "rank 0's name unknown": name_unknown,
    }
    if can_be_mounted():
        found["disk full"] = disk_full
    return found


def killed(runs: Runs, kill: Kill) -> Row:
    """SIGKILL during a run, which continues or is resumed."""
    training = runs.begin(kill.fault.replace(" ", "-"), _DROPOUT)
    blow = strike(training, AT_STEP, lambda: kill.act(training))
    if not kill.is_of_all:
        training.end()
        return judged(kill.fault, training, runs.reference(_DROPOUT), blow)
    # Ranks whose command line is gone are writing a checkpoint.
    wait_until_left(training.folder)
    again = runs.resume(training.folder.path.name)
    return taken_up(kill.fault, again, runs.reference(_DROPOUT), blow)


def straggler(runs: Runs) -> Row:
    """SIGSTOP to a rank, and SIGCONT a while later."""
    training = runs.begin("slow", _DROPOUT)

    def stand_still() -> None:
        rank = training.ranks()[1]
        rank.send_signal(signal.SIGSTOP)
        time.sleep(STILL_S)
        rank.send_signal(signal.SIGCONT)

    blow = strike(training, AT_STEP, stand_still)
    training.end()
    fault = f"rank 1 stopped for {STILL_S:.0f} s"
    return judged(fault, training, runs.reference(_DROPOUT), blow)


def hung(runs: Runs) -> Row:
    """SIGSTOP to rank 0, which hosts the rendezvous, for longer than the timeout of ranks."""
    training = limited(runs).begin("hung", _DROPOUT)
    blow = strike(training, AT_STEP, lambda: training.ranks()[0].suspend())
    training.end()
    fault = f"rank 0 stopped for over {STILL_LIMIT_S:.0f} s"
    return judged(fault, training, runs.reference(_DROPOUT), blow)


def out_of_memory(runs: Runs) -> Row:
    """torch's own error, raised in the loss of one rank."""
    training = runs.begin("short", f"short_at={AT_STEP}")
    # The last line of progress comes a little before.
    blow = replace(strike(training, AT_STEP - 30, lambda: None), step=AT_STEP - 1)
    training.end()
    return judged("rank 1 out of memory", training, runs.reference(), blow)


def second_writer(runs: Runs) -> Row:
    """During a run, a second process resumes it, and a third starts ranks by hand."""
    training = runs.begin("wanted", f"{_DROPOUT} pause={_SLOW_S}")
    training.wait_for_step(1)
    began_s = time.monotonic()
    other = runs.resume("wanted")
    code = other.process.wait(LIMIT_S)
    refused_s = time.monotonic() - began_s
    if code != 2 or "run-in-use" not in other.output():
        raise Unexpected(f"the second ended with {code}: {other.output()[-1000:]}")
    command = [sys.executable, "-P", "-m", "flatout.engine.launch", str(training.folder.path)]
    done = subprocess.run([*command, "--on", "local:2"], capture_output=True, check=False,
                          timeout=LIMIT_S, stdin=subprocess.DEVNULL)  # fmt: skip
    if done.returncode != 2:
        raise Unexpected(f"ranks by hand ended with {done.returncode}: {done.stderr!r}")
    if training.process.poll() is not None:
        raise Unexpected("the run ended before the others were refused")
    blow = Blow(at=time.time(), step=training.step())
    training.end()
    row = judged("run trained by a second process", training, runs.reference(_DROPOUT), blow)
    return replace(row, reported="run-in-use; the first continued", lost_s=refused_s)


def taken_up_twice(runs: Runs) -> Row:
    """Two processes resume a stopped run at the same moment."""
    training = runs.begin("raced", _DROPOUT)
    blow = strike(training, AT_STEP, training.stop)
    both = [runs.resume("raced") for _ in range(2)]
    codes = sorted(one.wait() for one in both)
    if codes != [0, 2] or "run-in-use" not in both[0].output():
        raise Unexpected(f"they ended with {codes}: {both[0].output()[-1500:]}")
    row = judged("run resumed twice at once", both[0], runs.reference(_DROPOUT), blow)
    return replace(row, reported=f"run-in-use; {row.reported}")


def port_wanted(runs: Runs) -> Row:
    """Another process tries to bind rank 0's port before rank 0 has started."""
    training = runs.begin("wanted-port", _DROPOUT)
    training.wait_until(lambda: 0 in training.ranks())
    blow = Blow(at=time.time(), step=0)
    with socket.socket() as thief:
        try:
            thief.bind(("127.0.0.1", int(training.ranks()[0].environ()["MASTER_PORT"])))
        except OSError:
            reported = "bind failed: rank 0 already had the port"
        else:
            thief.listen()
            reported = "taken"
        training.wait_for_step(1)
    training.end()
    row = judged("rank 0's port in use", training, runs.reference(_DROPOUT), blow)
    return replace(
        row,
        reported=reported if row.reported == "continued" else f"{reported}, {row.reported}",
        lost_s=0.0,
    )


def name_unknown(runs: Runs) -> Row:
    """Ranks started by hand, with a name for rank 0's machine that does not resolve."""
    training = runs.begin("nameless", _DROPOUT)
    blow = strike(training, AT_STEP, training.stop)
    began_s = time.monotonic()
    command = [
        sys.executable,
        "-P",
        "-m",
        "flatout.engine.training.worker",
        str(training.folder.path),
    ]
    ranks = []
    for rank in range(2):
        own = rank_variables(rank, 2, local_rank=rank, num_local=2, rendezvous=(_NO_HOST, 29400))
        ranks.append(
            subprocess.Popen([*command, "--ranked"], env={**os.environ, **own},
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        )  # fmt: skip
    codes = [rank.wait(LIMIT_S) for rank in ranks]
    reported_s = time.monotonic() - began_s
    if codes != [1, 1]:
        raise Unexpected(f"the ranks ended with {codes}")
    again = runs.resume("nameless")
    row = taken_up("rank 0's name unknown", again, runs.reference(_DROPOUT), blow)
    return replace(row, lost_s=reported_s)


def disk_full(runs: Runs) -> Row:
    """Another process fills the disk of the run, then frees it."""
    reference = runs.reference(_DROPOUT)
    with small_disk(runs.logs / "disk", _DISK) as folder:
        own = replace(runs, state=folder)
        training = own.begin("cramped", _DROPOUT)
        return filled_up(own, training, folder / "other", reference)
