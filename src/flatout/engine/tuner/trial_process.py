"""A contestant in a process of its own: `python -m flatout.engine.tuner.trial_process RUN_DIR`.

A plain loop and a recipe that are compared here share nothing: neither the allocator nor threads
nor the environment that flatout gives its workers. Only one of the two has work at any moment.

The process reads a request as a line of JSON from stdin and replies when all is built; then it
reads numbers of updates, and replies to each with the block of them. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flatout.engine.runtime.fast_import import COMPILER, import_quickly
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tuner.ab_timing import (
    SpeedComparison,
    TimedBlock,
    TimedLoop,
    compared,
    out_of_time,
)
from flatout.errors import RunFailed
from flatout.schema.finding import Finding, finding_from
from flatout.schema.run import RunHeader
from flatout.schema.tuning import Load, Result, Trial
from flatout.system import atomic_files
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonProcess, JsonStdio, ProcessEnded
from flatout.system.load import LoadWatch
from flatout.system.process_env import plain_environment
from flatout.system.store.run_folder import RunFolder
from flatout.tune.memory import ReservedMemory
from flatout.tune.statistics import mean_load, speedup_over_processes

if TYPE_CHECKING:
    # It brings torch, which takes seconds.
    from flatout.engine.tuner.candidate_builder import TuningTask

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

    fixed: recipe fields that the user has set. baseline: those that the plain loop needs to fit
    into the memory. room: what is left to other programs. part_size: samples of the part on which
    a cache is measured; None reads all of them.
    """

    device_name: str | None
    fixed: dict[str, Any]
    baseline: dict[str, Any] = {}
    room: ReservedMemory | None = None
    part_size: int | None = None


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The contestant to build.

    changes: all recipe fields; None is the plain loop. proved: of them, those that must be seen to
    take effect.
    """

    changes: dict[str, Any] | None
    proved: dict[str, Any]
    terms: Terms


class TrialReply(msgspec.Struct, frozen=True, kw_only=True):
    """To a request, in which way the proved fields were seen; to a number, the block; or neither.

    problem: why it could not be done.
    """

    effect: str | None = None
    block: TimedBlock | None = None
    problem: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class TrialContext:
    """Where the processes of a trial find the experiment, and how long they may be waited for.

    folder: of the run, from which they load it. usual_s: about what a pair takes, from its start
    to its end. request: no further pair is started once a stop is requested. ends_at_s: by the
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


def measured_in_fresh_processes(trial: Trial, limit_s: float, context: TrialContext) -> Result:
    """Carries out a trial in as many pairs of fresh processes as it requests, one after another.

    Args:
        trial: what is compared.
        limit_s: for the measurement in each pair.
        context: what the processes have alike.

    Raises:
        KeyboardInterrupt: a stop was requested.
    """
    begin_s = elapsed_s()
    comparisons: list[SpeedComparison] = []
    loads: list[Load | None] = []
    effect: str | None = None
    for _ in range(trial.num_processes):
        if context.request.reason is not None:
            raise KeyboardInterrupt
        try:
            comparison, effect, load = _one_pair(trial, limit_s, context)
        except _NotMeasuredError as error:
            if comparisons and error.finding.rule == "search-out-of-time":
                break
            return Result(trial=trial, cost_s=elapsed_s() - begin_s, problem=error.finding)
        comparisons.append(comparison)
        loads.append(load)
    speedups = tuple(comparison.speedup for comparison in comparisons)
    return Result(
        trial=trial,
        cost_s=elapsed_s() - begin_s,
        effect=effect,
        # A first look is not final: the confirmation shows whether the process is like others.
        speedup=speedups[0] if trial.stage == "screen" else speedup_over_processes(speedups),
        by_process=speedups,
        samples_per_s=_middle(comparisons, lambda comparison: comparison.samples_per_s),
        incumbent_samples_per_s=_middle(
            comparisons, lambda comparison: comparison.incumbent_samples_per_s
        ),
        excess_bytes=max(comparison.excess_bytes for comparison in comparisons),
        load=mean_load([(load, 1.0) for load in loads]),
        load_by_process=tuple(loads),
    )


def _middle(comparisons: list[SpeedComparison], read: Callable[[SpeedComparison], float]) -> float:
    values = sorted(map(read, comparisons))
    return values[len(values) // 2]


def _one_pair(
    trial: Trial, limit_s: float, context: TrialContext
) -> tuple[SpeedComparison, str | None, Load | None]:
    ends_at_s, watch = context.ends_at_s, LoadWatch()
    terms = context.terms
    incumbent_request = TrialRequest(changes=trial.incumbent, proved={}, terms=terms)
    candidate_request = TrialRequest(
        changes=trial.changes, proved=trial.candidate.changes, terms=terms
    )
    with contextlib.ExitStack() as stack:
        # Both start at the same time: each needs only one core for that.
        incumbent = stack.enter_context(
            _ContestantProcess("the incumbent", incumbent_request, context)
        )
        candidate = stack.enter_context(
            _ContestantProcess(f"`{trial.candidate.name}`", candidate_request, context)
        )
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


class _ContestantProcess(contextlib.AbstractContextManager["_ContestantProcess"]):
    """A contestant in a process of its own, as TimedLoop has it.

    Args:
        name: in messages.
        request: which contestant.
        context: what it has in common with the other one.

    Raises:
        _NotMeasuredError: no process could be started.
    """

    def __init__(self, name: str, request: TrialRequest, context: TrialContext) -> None:
        self._name = name
        environment = plain_environment() if request.changes is None else None
        try:
            self._process = JsonProcess(
                sys.executable,
                "flatout.engine.tuner.trial_process",
                str(context.folder),
                environment=environment,
                is_separate=False,
            )
        except OSError as error:
            raise self._died(f"the process could not be started: {error}") from error
        self._patience_s = patience_s(context.usual_s)
        self._search_ends_at_s = context.ends_at_s
        self._given_up_at_s = elapsed_s() + self._patience_s
        self._process.send(request)

    def __exit__(self, *error: object) -> None:
        # Killed, it would leave the workers of its loader behind, which notice it after seconds.
        self._process.close(_END_PATIENCE_S)
        self._process.__exit__(*error)

    def wait_until_ready(self) -> str | None:
        """Waits until it is built; gives the effect that its settings were seen to have."""
        return self._receive().effect

    def timed(self, num_updates: int) -> TimedBlock:
        """See TimedLoop."""
        self._process.send(num_updates)
        block = self._receive().block
        assert block is not None, "an answer without a problem to a number of updates is a block"
        return block

    def _receive(self) -> TrialReply:
        until_s = min(self._given_up_at_s, self._search_ends_at_s)
        try:
            reply: TrialReply = self._process.receive(TrialReply, until_s=until_s)
        except TimeoutError as error:
            self._process.end()
            if self._search_ends_at_s < self._given_up_at_s:
                raise _NotMeasuredError(finding_from(out_of_time(), "note")) from error
            because = f"it did not finish within {self._patience_s:.0f} s, and was killed"
            raise self._died(because) from error
        except ProcessEnded as error:
            # A candidate that crashes its process is a candidate that lost.
            raise self._died(f"exited with code {error.exit_code}") from error
        if reply.problem is not None:
            raise _NotMeasuredError(reply.problem)
        return reply

    def _died(self, because: str) -> _NotMeasuredError:
        error = RunFailed(
            "trial-died",
            f"the process that measured {self._name} failed.",
            because=because,
            fix="see what it printed: worker.log",
        )
        return _NotMeasuredError(finding_from(error, "note"))


def main(argv: list[str]) -> int:
    """Builds what is requested on stdin, and times it."""
    stdio = JsonStdio()
    import_quickly("flatout.engine.tuner.trials", COMPILER)
    from flatout.engine.runtime.error_map import to_flatout_error

    def reply_with(action: Callable[[], TrialReply]) -> None:
        try:
            reply = action()
        except Exception as error:
            known_error = to_flatout_error(error)
            if known_error is None:
                raise
            reply = TrialReply(problem=finding_from(known_error, "note"))
        stdio.answers.write(reply)

    with contextlib.ExitStack() as stack:
        built: list[TimedLoop] = []

        def build() -> TrialReply:
            contestant, effect = _built(stdio.read(TrialRequest), RunFolder(Path(argv[0])))
            stack.callback(contestant.runner.close)
            built.append(contestant)
            return TrialReply(effect=effect)

        def time(num_updates: int) -> TrialReply:
            if num_updates >= _QUICK_UPDATES:
                built[0].timed(num_updates)
            return TrialReply(block=built[0].timed(num_updates))

        reply_with(build)
        for num_updates in stdio.requests(int) if built else ():
            reply_with(functools.partial(time, num_updates))
    return 0


def _built(request: TrialRequest, folder: RunFolder) -> tuple[TimedLoop, str | None]:
    """The requested contestant, and the effect that its settings were seen to have."""
    from flatout.engine.tuner.trials import Trials

    trials = Trials(task_of(folder, request.terms))
    is_of_part = request.terms.part_size is not None
    contestant, proof = trials.contestant(request.changes, request.proved, is_of_part=is_of_part)
    return contestant, proof.effect


def task_of(folder: RunFolder, terms: Terms) -> TuningTask:
    """What is tuned in this process, with the memory that it may take."""
    from flatout.engine.runtime.device import chosen_device
    from flatout.engine.runtime.gpu_memory import MemoryCap
    from flatout.engine.session.load_experiment import load_experiment
    from flatout.engine.tuner.candidate_builder import TuningTask

    spec = atomic_files.read_json(folder.header, RunHeader).spec
    subject = TuningTask(
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
    end(main(sys.argv[1:]))
