"""One trial process for both: `python -m flatout.engine.tuner.compile_trial_process RUN_DIR`.

So are those carried out that are compiled, and all that are left once a broken capture of a CUDA
graph has taken the GPU from the process that searches.

One fresh process for both: they take turns, and compiling is paid once. The gate runs there, too,
so that the process that trains is not the one that finds out what a compiler can do.

The process reads a request as a line of JSON from stdin, which then stays open: its end means that
the search no longer waits. It replies with a Result.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from flatout.engine.runtime.fast_import import COMPILER, import_quickly
from flatout.engine.tuner.trial_process import Terms, TrialContext, task_of
from flatout.errors import RunFailed
from flatout.schema.finding import finding_from
from flatout.schema.tuning import Check, GateVerdict, Result, Trial
from flatout.schema.units import seconds_text
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonProcess, JsonStdio, ProcessEnded
from flatout.system.store.run_folder import RunFolder

# With its stdin closed it exits, unless it hangs.
_END_PATIENCE_S = 5.0


class CompileTrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, for how long, on which terms.

    is_measured: else it is only judged.
    """

    trial: Trial
    limit_s: float
    terms: Terms
    is_measured: bool = True


def measured_in_child(trial: Trial, limit_s: float, context: TrialContext) -> Result:
    """Carries out a trial in one fresh process, which is ended at the trial's deadline.

    Args:
        trial: what is compared.
        limit_s: for the measurement itself.
        context: where the process finds the experiment.

    Raises:
        KeyboardInterrupt: a stop was requested.
    """
    request = CompileTrialRequest(trial=trial, limit_s=limit_s, terms=context.terms)
    return _result_from_child(request, context)


def judged_in_child(trial: Trial, context: TrialContext) -> GateVerdict:
    """The gate's verdict on a trial's candidate in a fresh process; see `measured_in_child`."""
    request = CompileTrialRequest(trial=trial, limit_s=0.0, terms=context.terms, is_measured=False)
    result = _result_from_child(request, context)
    if result.verdict is not None:
        return result.verdict
    note = result.problem.problem if result.problem is not None else "the process did not answer"
    check = Check(name="gate", is_passed=False, note=f"could not be checked: {note}")
    return GateVerdict(checks=(check,))


def _result_from_child(request: CompileTrialRequest, context: TrialContext) -> Result:
    trial, begin_s = request.trial, elapsed_s()
    assert trial.deadline_s is not None
    try:
        process = JsonProcess(
            sys.executable,
            "flatout.engine.tuner.compile_trial_process",
            str(context.folder),
            is_separate=False,
        )
    except OSError as error:
        return _died(trial, begin_s, f"the process could not be started: {error}")
    with process:
        process.send(request)
        try:
            result: Result = process.receive(
                Result,
                until_s=begin_s + trial.deadline_s,
                should_stop=lambda: context.request.reason is not None,
            )
        except TimeoutError:
            return _too_late(trial, begin_s)
        except ProcessEnded as error:
            return _died(trial, begin_s, f"exited with code {error.exit_code}")
        process.close(_END_PATIENCE_S)
    return msgspec.structs.replace(result, cost_s=elapsed_s() - begin_s)


def _too_late(trial: Trial, begin_s: float) -> Result:
    assert trial.deadline_s is not None
    return _failed(trial, begin_s, RunFailed(
        "trial-died",
        f"it was not {'compiled, ' * trial.candidate.is_compiled}measured and judged within "
        f"{seconds_text(trial.deadline_s)}, the time left for the search.",
        fix="give the search more time: --budget",
    ))  # fmt: skip


def _died(trial: Trial, begin_s: float, because: str) -> Result:
    return _failed(trial, begin_s, RunFailed(
        "trial-died",
        f"the process that measured `{trial.candidate.name}` failed.",
        because=because,
        fix="see what it printed: worker.log",
    ))  # fmt: skip


def _failed(trial: Trial, begin_s: float, error: RunFailed) -> Result:
    return Result(trial=trial, cost_s=elapsed_s() - begin_s, problem=finding_from(error, "note"))


def main(argv: list[str]) -> int:
    """Measures what is requested on stdin, and judges it if it was faster."""
    stdio = JsonStdio()
    import_quickly("flatout.engine.tuner.trials", COMPILER)
    from flatout.engine.tuner.trials import Trials
    from flatout.tune.outcomes import is_faster

    request = stdio.read(CompileTrialRequest)
    stdio.exit_when_closed()
    trials = Trials(task_of(RunFolder(Path(argv[0])), request.terms))
    result = Result(trial=request.trial, cost_s=0.0)
    if request.is_measured:
        result = trials.measured(request.trial, request.limit_s)
    if is_faster(result) or not request.is_measured:
        begin_s = elapsed_s()
        verdict = trials.judged(request.trial.changes)
        result = msgspec.structs.replace(result, verdict=verdict, gate_s=elapsed_s() - begin_s)
    stdio.answers.write(result)
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
