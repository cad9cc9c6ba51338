"""A contestant in a process of its own: `python -m flatout.engine.trial RUN_DIR`.

A plain loop and a recipe that are compared here share nothing: neither the allocator nor threads
nor the environment that flatout gives its workers. Only one of the two has work at any moment.

The process reads a Request as a line of JSON from stdin and answers it when all is built; then it
reads numbers of updates, and answers each with the Block that they were. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flatout.engine.measuring import Block, Comparison, Contestant, compared, out_of_time
from flatout.engine.quick_import import COMPILER, import_quickly
from flatout.engine.watch import StopRequest
from flatout.errors import RunFailed
from flatout.nouns.finding import Finding, finding_from
from flatout.nouns.run import RunHeader
from flatout.nouns.tuning import Load, Result, Trial
from flatout.system import store
from flatout.system.clock import elapsed_s
from flatout.system.load import LoadWatch
from flatout.system.runs import RunFolder
from flatout.system.variables import plain_environment
from flatout.tune.memory import Room
from flatout.tune.statistics import mean_load, speedup_over_processes

if TYPE_CHECKING:
    # It brings torch, which takes seconds.
    from flatout.engine.contestants import Subject

# A process that has taken so many times what is usual, but at least so long, is given up.
_PATIENCE = 5
_LEAST_PATIENCE_S = 20.0

# While the other one was measured, its threads slept; woken up, they may share a CPU for a while,
# which no training does (LOG.md, 2026-11-23). Of blocks of so many updates and more, as many are
# made before the clock is read.
_QUICK_UPDATES = 4

# Then it has ended who reads its data, or it never will.
_END_PATIENCE_S = 5.0


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What all contestants of a search have alike.

    fixed: recipe fields that the person has set. baseline: those that the plain loop needs to fit
    into the memory. room: what is left to other programs. part_size: samples of the part on which
    a cache is measured; None reads all of them.
    """

    device_name: str | None
    fixed: dict[str, Any]
    baseline: dict[str, Any] = {}
    room: Room | None = None
    part_size: int | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be built.

    changes: all recipe fields; None is the plain loop. proved: of them, those that must be seen to
    take effect.
    """

    changes: dict[str, Any] | None
    proved: dict[str, Any]
    terms: Terms


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """To a Request, in which way the proved fields were seen; to a number, the block; or neither.

    problem: why it could not be done.
    """

    effect: str | None = None
    block: Block | None = None
    problem: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where the processes of a trial find the experiment, and how long they may be waited for.

    folder: of the run, from which they load it. usual_s: about what a pair takes, from its start
    to its end. request: no further pair is begun once somebody asks to stop. ends_at_s: by the
    clock, when the search ends, and they with it.
    """

    folder: Path
    usual_s: float
    terms: Terms
    request: StopRequest
    ends_at_s: float = math.inf


def patience_s(usual_s: float) -> float:
    """How long a process is waited for that usually takes so long."""
    return max(_LEAST_PATIENCE_S, _PATIENCE * usual_s)


def measured_apart(trial: Trial, limit_s: float, surroundings: Surroundings) -> Result:
    """Carries out a trial in as many pairs of fresh processes as it asks for, one after another.

    Args:
        trial: what is compared.
        limit_s: for the measurement in each pair.
        surroundings: what the processes have alike.

    Raises:
        KeyboardInterrupt: somebody asked to stop.
    """
    begin_s = elapsed_s()
    comparisons: list[Comparison] = []
    loads: list[Load | None] = []
    effect: str | None = None
    for _ in range(trial.num_processes):
        if surroundings.request.reason is not None:
            raise KeyboardInterrupt
        try:
            comparison, effect, load = _one_pair(trial, limit_s, surroundings)
        except _NotMeasuredError as error:
            if comparisons and error.finding.rule == "search-out-of-time":
                break
            return Result(trial=trial, cost_s=elapsed_s() - begin_s, problem=error.finding)
        comparisons.append(comparison)
        loads.append(load)
    speedups = tuple(one.speedup for one in comparisons)
    return Result(
        trial=trial,
        cost_s=elapsed_s() - begin_s,
        effect=effect,
        # A first look is no last word: whether the process is like others is seen there.
        speedup=speedups[0] if trial.stage == "screen" else speedup_over_processes(speedups),
        by_process=speedups,
        samples_per_s=_middle(comparisons, lambda one: one.samples_per_s),
        incumbent_samples_per_s=_middle(comparisons, lambda one: one.incumbent_samples_per_s),
        excess_bytes=max(one.excess_bytes for one in comparisons),
        load=mean_load([(load, 1.0) for load in loads]),
        load_by_process=tuple(loads),
    )


def _middle(comparisons: list[Comparison], read: Callable[[Comparison], float]) -> float:
    values = sorted(map(read, comparisons))
    return values[len(values) // 2]


def _one_pair(
    trial: Trial, limit_s: float, surroundings: Surroundings
) -> tuple[Comparison, str | None, Load | None]:
    ends_at_s, watch = surroundings.ends_at_s, LoadWatch()
    terms = surroundings.terms
    beside = Request(changes=trial.incumbent, proved={}, terms=terms)
    tried = Request(changes=trial.changes, proved=trial.candidate.changes, terms=terms)
    with contextlib.ExitStack() as stack:
        # Both start at once: each needs a core for that, and no more.
        incumbent = stack.enter_context(_Apart("what it is compared with", beside, surroundings))
        candidate = stack.enter_context(_Apart(f"`{trial.candidate.name}`", tried, surroundings))
        incumbent.wait_until_ready()
        effect = candidate.wait_until_ready()
        try:
            comparison = compared(incumbent, candidate, limit_s=limit_s, ends_at_s=ends_at_s)
        except RunFailed as error:
            raise _NotMeasuredError(finding_from(error, "note")) from error
        # Before they end: not every system keeps what those that have ended took.
        return comparison, effect, watch.load()


class _NotMeasuredError(Exception):
    """A contestant in another process could not be built, or died."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.problem)
        self.finding = finding


class _Apart(contextlib.AbstractContextManager["_Apart"]):
    """A contestant in a process of its own, as Timed has it.

    Args:
        name: in messages.
        request: who it is.
        surroundings: what it has in common with the other one.

    Raises:
        _NotMeasuredError: no process could be started.
    """

    def __init__(self, name: str, request: Request, surroundings: Surroundings) -> None:
        self._name = name
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flatout.engine.trial", str(surroundings.folder)],
                env=plain_environment() if request.changes is None else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise self._died(f"it could not be started: {error}") from error
        longest_s = patience_s(surroundings.usual_s)
        left_s = surroundings.ends_at_s - elapsed_s()
        self._is_bound = left_s < longest_s
        self._patience_s = max(0.0, min(longest_s, left_s))
        self._is_given_up = False
        self._patience = threading.Timer(self._patience_s, self._give_up)
        self._patience.start()
        self._tell(request)

    def __exit__(self, *error: object) -> None:
        self._patience.cancel()
        assert self._process.stdin is not None and self._process.stdout is not None
        # Killed, it would leave the workers of its loader behind, which notice it after seconds.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._process.kill()

    def wait_until_ready(self) -> str | None:
        """Waits until it is built; gives the effect that its settings were seen to have."""
        return self._answer().effect

    def timed(self, num_updates: int) -> Block:
        """See Timed."""
        self._tell(num_updates)
        block = self._answer().block
        assert block is not None, "an answer without a problem to a number of updates is a block"
        return block

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        # What has died is found out when its answer is read.
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(what) + b"\n")
            self._process.stdin.flush()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:
            # A candidate that takes its process along is a candidate that lost.
            because = f"it ended with exit code {self._process.wait()}"
            if self._is_given_up and self._is_bound:
                raise _NotMeasuredError(finding_from(out_of_time(), "note")) from error
            if self._is_given_up:
                because = f"it was not done after {self._patience_s:.0f} s, and was ended"
            raise self._died(because) from error
        if answer.problem is not None:
            raise _NotMeasuredError(answer.problem)
        return answer

    def _died(self, because: str) -> _NotMeasuredError:
        died = RunFailed(
            "trial-died",
            f"the process that measured {self._name} broke off.",
            because=because,
            fix="see what it printed: worker.log",
        )
        return _NotMeasuredError(finding_from(died, "note"))


def main(argv: list[str]) -> int:
    """Builds what stdin asks for, and times it."""
    # What the experiment prints must not get into the answers, and no program that it starts may
    # read what is asked.
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import_quickly("flatout.engine.contest", COMPILER)
    from flatout.engine.failures import bad_news

    def answer(action: Callable[[], Answer]) -> None:
        try:
            answered = action()
        except Exception as error:
            news = bad_news(error)
            if news is None:
                raise
            answered = Answer(problem=finding_from(news, "note"))
        answers.write(msgspec.json.encode(answered) + b"\n")
        answers.flush()

    with contextlib.ExitStack() as stack:
        built: list[Contestant] = []

        def build() -> Answer:
            request = msgspec.json.decode(questions.readline(), type=Request)
            contestant, effect = _built(request, RunFolder(Path(argv[0])))
            stack.callback(contestant.runner.close)
            built.append(contestant)
            return Answer(effect=effect)

        def time(line: bytes) -> Answer:
            num_updates = msgspec.json.decode(line, type=int)
            if num_updates >= _QUICK_UPDATES:
                built[0].timed(num_updates)
            return Answer(block=built[0].timed(num_updates))

        answer(build)
        for line in questions if built else ():
            answer(functools.partial(time, line))
    return 0


def _built(request: Request, folder: RunFolder) -> tuple[Contestant, str | None]:
    """The contestant that is asked for, and the effect that its settings were seen to have."""
    from flatout.engine.contest import Contest

    contest = Contest(subject_of(folder, request.terms))
    is_of_part = request.terms.part_size is not None
    contestant, proof = contest.contestant(request.changes, request.proved, is_of_part=is_of_part)
    return contestant, proof.effect


def subject_of(folder: RunFolder, terms: Terms) -> Subject:
    """What is tuned in this process, with the memory that it may take."""
    from flatout.engine.contestants import Subject
    from flatout.engine.facts import chosen_device
    from flatout.engine.loading import load_experiment
    from flatout.engine.memory import MemoryCap

    spec = store.read_json(folder.header, RunHeader).spec
    subject = Subject(
        experiment=load_experiment(spec),
        seed=spec.seed,
        device_name=terms.device_name,
        fixed=terms.fixed,
        baseline=terms.baseline,
        part_size=terms.part_size,
    )
    if terms.room is not None and terms.room.is_capped:
        MemoryCap(chosen_device(terms.device_name), terms.room.leave_bytes)
    return subject


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
