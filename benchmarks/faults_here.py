"""Faults of processes, ports, names and disks: two ranks on this machine, without containers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
from faults_runs import LIMIT_S, Blow, Row, Runs, Training, Unexpected, judged, story, strike

from flatout.engine.launch.job import rank_variables

# Where the fault lands: in the midst of the run, and of an epoch.
AT_STEP = 330
STILL_S = 15.0
_DISK = "24m"
# For as long as somebody else takes to be refused.
_SLOW_S = 0.2
_NO_HOST = "no-such-host.invalid"


def faults() -> dict[str, Callable[[Runs], Row]]:
    """What can be brought about here, by name."""
    found: dict[str, Callable[[Runs], Row]] = {
        "rank 1 killed": lambda runs: killed(runs, "rank 1 killed", 1),
        "rank 0 killed": lambda runs: killed(runs, "rank 0 killed", 0),
        "launcher of the ranks killed": launcher_killed,
        "command line killed": command_line_killed,
        "all processes killed": all_killed,
        f"rank 1 stands still {STILL_S:.0f} s": straggler,
        "rank 1 out of memory": out_of_memory,
        "run trained by a second": second_writer,
        "run taken up twice at once": taken_up_twice,
        "rank 0's port wanted": port_wanted,
        "rank 0's name unknown": name_unknown,
    }
    if sys.platform == "linux" and os.geteuid() == 0:
        found["disk full"] = disk_full
    return found


def killed(runs: Runs, fault: str, rank: int) -> Row:
    """SIGKILL to a rank."""
    training = runs.begin(f"killed-{rank}", "dropout=0.1")
    blow = strike(training, AT_STEP, lambda: training.ranks()[rank].kill())
    training.end()
    return judged(fault, training, runs.reference("dropout=0.1"), blow)


def launcher_killed(runs: Runs) -> Row:
    """SIGKILL to the process that has started the ranks."""
    training = runs.begin("launcherless", "dropout=0.1")
    blow = strike(training, AT_STEP, lambda: _launcher(training).kill())
    training.end()
    reference = runs.reference("dropout=0.1")
    return judged("launcher of the ranks killed", training, reference, blow)


def _launcher(training: Training) -> psutil.Process:
    return next(one for one in training.processes() if "flatout.engine.launch" in one.cmdline())


def command_line_killed(runs: Runs) -> Row:
    """SIGKILL to `flatout train` itself, and the run taken up again."""
    training = runs.begin("leaderless", "dropout=0.1")
    blow = strike(training, AT_STEP, training.process.kill)
    _wait(lambda: not training.folder.lock().is_taken())
    again = runs.resume("leaderless")
    again.end()
    row = judged("command line killed", again, runs.reference("dropout=0.1"), blow)
    return replace(row, told=f"{row.told} (--resume)")


def all_killed(runs: Runs) -> Row:
    """All of it at once, as a power cut does, and the run taken up again."""
    training = runs.begin("powerless", "dropout=0.1")
    blow = strike(training, AT_STEP, training.kill)
    again = runs.resume("powerless")
    again.end()
    row = judged("all processes killed", again, runs.reference("dropout=0.1"), blow)
    return replace(row, told=f"{row.told} (--resume)")


def straggler(runs: Runs) -> Row:
    """SIGSTOP to a rank, and SIGCONT after a while."""
    training = runs.begin("slow", "dropout=0.1")

    def stand_still() -> None:
        rank = training.ranks()[1]
        rank.send_signal(signal.SIGSTOP)
        time.sleep(STILL_S)
        rank.send_signal(signal.SIGCONT)

    blow = strike(training, AT_STEP, stand_still)
    training.end()
    fault = f"rank 1 stands still {STILL_S:.0f} s"
    return judged(fault, training, runs.reference("dropout=0.1"), blow)


def out_of_memory(runs: Runs) -> Row:
    """torch's own error, raised in the loss of one rank."""
    training = runs.begin("short", f"short_at={AT_STEP}")
    # The last line of progress comes a little before.
    blow = replace(strike(training, AT_STEP - 30, lambda: None), step=AT_STEP - 1)
    training.end()
    return judged("rank 1 out of memory", training, runs.reference(), blow)


def second_writer(runs: Runs) -> Row:
    """While a run is trained, somebody resumes it, and somebody else starts ranks by hand."""
    training = runs.begin("wanted", f"dropout=0.1 pause={_SLOW_S}")
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
        raise Unexpected("the run had ended before the others were refused")
    blow = Blow(at=time.time(), step=training.step())
    training.end()
    row = judged("run trained by a second", training, runs.reference("dropout=0.1"), blow)
    return replace(row, told="run-in-use; the first went on", lost_s=refused_s)


def taken_up_twice(runs: Runs) -> Row:
    """Two resume a stopped run in the same moment."""
    training = runs.begin("raced", "dropout=0.1")
    blow = strike(training, AT_STEP, training.stop)
    both = [runs.resume("raced") for _ in range(2)]
    codes = sorted(one.wait() for one in both)
    if codes != [0, 2] or "run-in-use" not in both[0].output():
        raise Unexpected(f"they ended with {codes}: {both[0].output()[-1500:]}")
    row = judged("run taken up twice at once", both[0], runs.reference("dropout=0.1"), blow)
    return replace(row, told=f"run-in-use; {row.told}")


def port_wanted(runs: Runs) -> Row:
    """Somebody wants the port at which rank 0 is to listen, before that one has started."""
    training = runs.begin("wanted-port", "dropout=0.1")
    training.wait_until(lambda: 0 in training.ranks())
    blow = Blow(at=time.time(), step=0)
    with socket.socket() as thief:
        try:
            thief.bind(("127.0.0.1", int(training.ranks()[0].environ()["MASTER_PORT"])))
        except OSError:
            told = "refused to the other: rank 0 was handed it"
        else:
            thief.listen()
            told = "taken"
        training.wait_for_step(1)
    training.end()
    row = judged("rank 0's port wanted", training, runs.reference("dropout=0.1"), blow)
    return replace(row, told=told if row.told == "went on" else f"{told}, {row.told}", lost_s=0.0)


def name_unknown(runs: Runs) -> Row:
    """Ranks started by hand, with a name for rank 0's machine that nobody knows."""
    training = runs.begin("nameless", "dropout=0.1")
    blow = strike(training, AT_STEP, training.stop)
    began_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "flatout.engine.worker", str(training.folder.path)]
    ranks = []
    for rank in range(2):
        own = rank_variables(rank, 2, local_rank=rank, num_local=2, place=(_NO_HOST, 29400))
        ranks.append(
            subprocess.Popen([*command, "--ranked"], env={**os.environ, **own},
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        )  # fmt: skip
    codes = [rank.wait(LIMIT_S) for rank in ranks]
    told_s = time.monotonic() - began_s
    if codes != [1, 1]:
        raise Unexpected(f"the ranks ended with {codes}")
    again = runs.resume("nameless")
    again.end()
    row = judged("rank 0's name unknown", again, runs.reference("dropout=0.1"), blow)
    return replace(row, told=f"{row.told} (--resume)", lost_s=told_s)


def disk_full(runs: Runs) -> Row:
    """Somebody else takes all room on the disk of the run, and gives it back."""
    with _small_disk(runs.logs / "disk") as folder:
        own = replace(runs, state=folder)
        training = own.begin("cramped", "dropout=0.1")
        other = folder / "other"
        blow = strike(training, AT_STEP, lambda: _fill(other))
        code = training.wait()
        if code != 1 or "disk-full" not in training.output():
            raise Unexpected(f"ended with {code}: {training.output()[-1500:]}")
        other.unlink()
        again = own.resume("cramped")
        again.end()
        row = judged("disk full", again, runs.reference("dropout=0.1"), blow)
        told = story(again).removeprefix("disk-full, ")
    return replace(row, told=f"disk-full, {told} (--resume)")


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(path: Path) -> None:
    """Writes until nothing more goes in."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        for size in (2**16, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


def _wait(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > until_s:
            raise Unexpected("waited in vain")
        time.sleep(0.05)
