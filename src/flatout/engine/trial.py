"""A contestant in a process of its own: `python -m flatout.engine.trial RUN_DIR`.

A plain loop and a recipe that are compared here share nothing: neither the allocator nor threads
nor the environment that flatout gives its workers. Only one of the two has work at any moment.

The process reads a Request as a line of JSON from stdin and answers it when all is built; then it
reads numbers of updates, and answers each with the Block that they were. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flatout.engine.measuring import Block, Comparison, Contestant, compared
from flatout.errors import RunFailed
from flatout.nouns.finding import Finding, finding_from
from flatout.nouns.run import RunHeader
from flatout.nouns.tuning import Result, Trial
from flatout.system import store
from flatout.system.clock import elapsed_s
from flatout.system.runs import RunFolder
from flatout.system.variables import plain_environment
from flatout.tune.memory import Room
from flatout.tune.statistics import speedup_over_processes

# A process that has not answered after so many times what this one took to start is given up.
_START_PATIENCE = 5
_LEAST_PATIENCE_S = 20.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to be built.

    changes: all recipe fields; None is the plain loop. proved: of them, those that must be seen to
    take effect. baseline: what the plain loop needs to fit into the memory. room: what is left to
    other programs. part_size: samples of the part that is read; None reads all of them.
    """

    name: str
    changes: dict[str, Any] | None
    proved: dict[str, Any]
    device_name: str | None
    fixed: dict[str, Any]
    baseline: dict[str, Any] = {}
    room: Room | None = None
    part_size: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """To a Request, in which way the proved fields were seen; to a number, the block; or neither.

    problem: why it could not be done.
    """

    effect: str | None = None
    block: Block | None = None
    problem: Finding | None = None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of a search have alike.

    folder: of the run, from which they load the experiment. start_s: what one takes to start.
    part_size: samples of the part on which a cache is measured; None where nobody keeps any.
    """

    folder: Path
    device_name: str | None
    fixed: dict[str, Any]
    start_s: float
    baseline: dict[str, Any] = {}
    room: Room | None = None
    part_size: int | None = None


def measured_apart(trial: Trial, limit_s: float, surroundings: Surroundings) -> Result:
    """Carries out a trial in as many pairs of fresh processes as it asks for, one after another.

    Args:
        trial: what is compared.
        limit_s: for the measurement in each pair.
        surroundings: what the processes have alike.
    """
    begin_s = elapsed_s()
    comparisons: list[Comparison] = []
    effect: str | None = None
    for _ in range(trial.num_processes):
        try:
            comparison, effect = _one_pair(trial, limit_s, surroundings)
        except _NotMeasuredError as error:
            return Result(trial=trial, cost_s=elapsed_s() - begin_s, problem=error.finding)
        comparisons.append(comparison)
    return Result(
        trial=trial,
        cost_s=elapsed_s() - begin_s,
        effect=effect,
        speedup=speedup_over_processes([one.speedup for one in comparisons]),
        by_process=tuple(one.speedup for one in comparisons),
        samples_per_s=_middle(comparisons, lambda one: one.samples_per_s),
        incumbent_samples_per_s=_middle(comparisons, lambda one: one.incumbent_samples_per_s),
        excess_bytes=max(one.excess_bytes for one in comparisons),
    )


def _middle(comparisons: list[Comparison], read: Callable[[Comparison], float]) -> float:
    values = sorted(map(read, comparisons))
    return values[len(values) // 2]


def _one_pair(
    trial: Trial, limit_s: float, surroundings: Surroundings
) -> tuple[Comparison, str | None]:
    with contextlib.ExitStack() as stack:
        # Both start at once: each needs a core for that, and no more.
        pair = [
            stack.enter_context(_Apart(trial, changes, limit_s, surroundings))
            for changes in (trial.incumbent, trial.changes)
        ]
        incumbent, candidate = pair
        incumbent.wait_until_ready()
        effect = candidate.wait_until_ready()
        return compared(incumbent, candidate, limit_s=limit_s), effect


class _NotMeasuredError(Exception):
    """A contestant in another process could not be built, or died."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.problem)
        self.finding = finding


class _Apart(contextlib.AbstractContextManager["_Apart"]):
    """A contestant in a process of its own, as Timed has it.

    Args:
        trial: which it is part of.
        changes: its recipe fields; None is the plain loop.
        limit_s: for its measurement.
        surroundings: what it has in common with the other one.
    """

    def __init__(
        self,
        trial: Trial,
        changes: dict[str, Any] | None,
        limit_s: float,
        surroundings: Surroundings,
    ) -> None:
        self._name = trial.candidate.name
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout.engine.trial", str(surroundings.folder)],
            env=plain_environment() if changes is None else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        patience_s = max(_LEAST_PATIENCE_S, _START_PATIENCE * surroundings.start_s) + 4 * limit_s
        self._patience = threading.Timer(patience_s, self._process.kill)
        self._patience.start()
        self._request = Request(
            name=self._name,
            changes=changes,
            proved=trial.candidate.changes if changes is trial.changes else {},
            device_name=surroundings.device_name,
            fixed=surroundings.fixed,
            baseline=surroundings.baseline,
            room=surroundings.room,
            part_size=surroundings.part_size,
        )
        self._tell(self._request)

    def __exit__(self, *error: object) -> None:
        self._patience.cancel()
        self._process.kill()
        self._process.communicate()

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
            died = RunFailed(
                "trial-died",
                f"the process that measured `{self._name}` broke off.",
                because=f"it ended with exit code {self._process.wait()}",
                fix="see what it printed: worker.log",
            )
            raise _NotMeasuredError(finding_from(died, "note")) from error
        if answer.problem is not None:
            raise _NotMeasuredError(answer.problem)
        return answer


def main(argv: list[str]) -> int:
    """Builds what stdin asks for, and times it."""
    # What the experiment prints must not get into the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from flatout.engine.contest import Contest
    from flatout.engine.contestants import Subject
    from flatout.engine.facts import chosen_device
    from flatout.engine.failures import bad_news
    from flatout.engine.loading import load_experiment
    from flatout.engine.memory import MemoryCap

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
            request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
            spec = store.read_json(RunFolder(Path(argv[0])).header, RunHeader).spec
            subject = Subject(
                experiment=load_experiment(spec),
                seed=spec.seed,
                device_name=request.device_name,
                fixed=request.fixed,
                baseline=request.baseline,
                part_size=request.part_size,
            )
            if request.room is not None and request.room.is_capped:
                MemoryCap(chosen_device(request.device_name), request.room.leave_bytes)
            contestant, effect = Contest(subject).contestant(
                request.changes, request.proved, is_of_part=request.part_size is not None
            )
            stack.callback(contestant.runner.close)
            built.append(contestant)
            return Answer(effect=effect)

        def time(line: bytes) -> Answer:
            num_updates = msgspec.json.decode(line, type=int)
            return Answer(block=built[0].timed(num_updates))

        answer(build)
        for line in sys.stdin.buffer if built else ():
            answer(functools.partial(time, line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
