"""A candidate beside its incumbent: `python -m flatout.engine.beside RUN_DIR`.

So are those carried out that are compiled, and all that are left once a broken capture of a CUDA
graph has taken the GPU from the process that searches.

One fresh process for both: they take turns, and compiling is paid once. The gate is asked there,
too, so that the process that trains is not the one that finds out what a compiler can do.

The process reads a Request as a line of JSON from stdin, which then stays open: its end means that
nobody waits any more. It answers with a Result.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil

from flatout.engine.quick_import import COMPILER, import_quickly
from flatout.engine.trial import Surroundings, Terms, subject_of
from flatout.errors import RunFailed
from flatout.nouns.finding import finding_from
from flatout.nouns.tuning import Check, Result, Trial, Verdict
from flatout.nouns.units import seconds_text
from flatout.system.clock import elapsed_s
from flatout.system.runs import RunFolder

# How often it is looked whether somebody asks to stop.
_LOOK_EVERY_S = 0.2


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, for how long, on which terms.

    is_measured: else it is only judged.
    """

    trial: Trial
    limit_s: float
    terms: Terms
    is_measured: bool = True


def measured_beside(trial: Trial, limit_s: float, surroundings: Surroundings) -> Result:
    """Carries out a trial in one fresh process, which is ended at the trial's deadline.

    Args:
        trial: what is compared.
        limit_s: for the measurement itself.
        surroundings: where the process finds the experiment.

    Raises:
        KeyboardInterrupt: somebody asked to stop.
    """
    request = Request(trial=trial, limit_s=limit_s, terms=surroundings.terms)
    return _answered(request, surroundings)


def judged_beside(trial: Trial, surroundings: Surroundings) -> Verdict:
    """What the gate says of a trial's candidate in a fresh process; see `measured_beside`."""
    request = Request(trial=trial, limit_s=0.0, terms=surroundings.terms, is_measured=False)
    result = _answered(request, surroundings)
    if result.verdict is not None:
        return result.verdict
    note = result.problem.problem if result.problem is not None else "it did not answer"
    check = Check(name="gate", is_passed=False, note=f"could not be asked: {note}")
    return Verdict(checks=(check,))


def _answered(request: Request, surroundings: Surroundings) -> Result:
    trial, begin_s = request.trial, elapsed_s()
    assert trial.deadline_s is not None
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout.engine.beside", str(surroundings.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
    except OSError as error:
        return _died(trial, begin_s, f"it could not be started: {error}")
    # `communicate` would close it.
    questions, process.stdin = process.stdin, None
    assert questions is not None
    with questions:
        # What has died is found out when its answer is read.
        with contextlib.suppress(OSError):
            questions.write(msgspec.json.encode(request) + b"\n")
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                answer, _ = process.communicate(timeout=_LOOK_EVERY_S)
                break
            is_over = elapsed_s() - begin_s > trial.deadline_s
            if is_over or surroundings.request.reason is not None:
                _end(process)
                if not is_over:
                    raise KeyboardInterrupt
                return _too_late(trial, begin_s)
    try:
        result = msgspec.json.decode(answer, type=Result)
    except msgspec.DecodeError:
        return _died(trial, begin_s, f"it ended with exit code {process.returncode}")
    return msgspec.structs.replace(result, cost_s=elapsed_s() - begin_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it, and the compilers that it has started."""
    _end_children(process.pid)
    process.kill()
    process.communicate()


def _end_children(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()


def _too_late(trial: Trial, begin_s: float) -> Result:
    assert trial.deadline_s is not None
    return _failed(trial, begin_s, RunFailed(
        "trial-died",
        f"it was not {'compiled, ' * trial.candidate.is_compiled}measured and judged within "
        f"{seconds_text(trial.deadline_s)}, all that was left of the search.",
        fix="give the search more time: --budget",
    ))  # fmt: skip


def _died(trial: Trial, begin_s: float, because: str) -> Result:
    return _failed(trial, begin_s, RunFailed(
        "trial-died",
        f"the process that measured `{trial.candidate.name}` broke off.",
        because=because,
        fix="see what it printed: worker.log",
    ))  # fmt: skip


def _failed(trial: Trial, begin_s: float, error: RunFailed) -> Result:
    return Result(trial=trial, cost_s=elapsed_s() - begin_s, problem=finding_from(error, "note"))


def main(argv: list[str]) -> int:
    """Measures what stdin asks for, and judges it if it was faster."""
    # What the experiment prints must not get into the answer, and no program that it starts may
    # read what is asked.
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import_quickly("flatout.engine.contest", COMPILER)
    from flatout.engine.contest import Contest
    from flatout.tune.doubt import is_faster

    request = msgspec.json.decode(questions.readline(), type=Request)
    threading.Thread(target=_end_with, args=(questions.fileno(),), daemon=True).start()
    contest = Contest(subject_of(RunFolder(Path(argv[0])), request.terms))
    result = Result(trial=request.trial, cost_s=0.0)
    if request.is_measured:
        result = contest.measured(request.trial, request.limit_s)
    if is_faster(result) or not request.is_measured:
        begin_s = elapsed_s()
        verdict = contest.judged(request.trial.changes)
        result = msgspec.structs.replace(result, verdict=verdict, gate_s=elapsed_s() - begin_s)
    answers.write(msgspec.json.encode(result) + b"\n")
    answers.flush()
    return 0


def _end_with(questions: int) -> None:
    """Ends this process, and what it has started, when nobody waits any more."""
    while os.read(questions, 1024):
        pass
    _end_children(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
