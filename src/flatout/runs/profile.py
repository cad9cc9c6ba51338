"""`flatout profile EXPERIMENT`: a report of a step, and advice that can be proved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.bench.api import known_limit, usable_limits
from flatout.bench.limits import Doing, error_from, is_busy
from flatout.bench.report import check_writable
from flatout.compat.torch_needed import require_torch
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.monitor.advice import advice_for
from flatout.runs import experiment_source
from flatout.runs.experiment_params import parse_parameters
from flatout.runs.start import specify
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.machine import Machine
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.profile_protocol import (
    AnyProfileReply,
    BlockMade,
    BlocksReady,
    BlocksRequest,
    ProfileRequest,
    Profiling,
    StepBlock,
    StepProfiled,
)
from flatout.schema.shell_quoting import typed_here
from flatout.schema.step_profile import Advice, RoofUse, StepProfile
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import Interval
from flatout.system.clock import elapsed_s
from flatout.system.host_system import LocalSystem
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.probes.machine import probe
from flatout.system.store.interpreters import resolve_with_flatout
from flatout.system.store.profile_reports import keep_report
from flatout.system.worker_process import ending_text
from flatout.tune.statistics import speedup, speedup_over_processes

_WORKER = "flatout.engine.profile.worker"
_START_TIMEOUT_S, _BLOCK_TIMEOUT_S = 300.0, 600.0
# Pairs of fresh processes, and in each of them blocks of steps in turns.
_NUM_PAIRS, _NUM_BLOCKS, _BLOCK_S = 3, 6, 0.4
# Of all that is done, the profile itself, where advice is proved afterwards.
_PROFILE_SHARE = 0.3


class ProfileCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout profile EXPERIMENT` as data.

    request: what would be trained. num_steps: under the profiler; None chooses by their time.
    trace: a file for the trace. is_proved: advice is tried out.
    """

    request: TrainRequest
    num_steps: int | None = None
    trace: str | None = None
    is_proved: bool = False


def profile(command: ProfileCommand) -> Iterator[Doing | StepProfile]:
    """Profiles an experiment; the last value is the report, with advice. The state folder keeps it.

    Raises:
        UsageError: what a training would be refused for; bench-report-not-writable.
        RunFailed: what the experiment raises in a step; profile-died.
    """
    trace = None
    if command.trace is not None:
        trace = Path(command.trace).expanduser().absolute()
        check_writable(trace, "--trace")
    spec = _specified(command.request)
    python, version = resolve_with_flatout(command.request.python, command.request.env)
    machine = probe(LocalSystem(), python)
    require_torch(machine, version)
    request = ProfileRequest(
        spec=spec,
        num_steps=command.num_steps,
        trace=str(trace) if trace else None,
        # A recipe in a file is used as it is.
        is_tuned=command.request.recipe is None,
    )
    scale = _PROFILE_SHARE if command.is_proved else 1.0
    report = None
    for value in _profiled(python, request):
        if isinstance(value, Profiling):
            yield Doing(what=value.what, done=scale * value.share)
        else:
            report = value
    assert report is not None
    report = _with_limits(_with_parameters(report, spec), machine)
    report = msgspec.structs.replace(report, advice=advice_for(report))
    if command.is_proved:
        # With one more field set, a stored recipe is not found, so it is passed on.
        spec = msgspec.structs.replace(spec, fixed=spec.fixed | report.tuned)
        proved: list[Advice] = []
        for number, advice in enumerate(report.advice):
            done = scale + (1 - scale) * number / len(report.advice)
            yield Doing(what=f"proving {advice.id}", done=done)
            proved.append(_proved(python, spec, advice))
        report = msgspec.structs.replace(report, advice=tuple(proved))
    keep_report(report)
    yield report


def _specified(request: TrainRequest) -> ExperimentSpec:
    """What would be trained; of a script that is no experiment, the error names the other command.

    Raises:
        UsageError: what a training would be refused for.
    """
    try:
        return specify(request)
    except UsageError as error:
        if error.rule != "no-experiment-function":
            raise
        typed = typed_here(["python", request.experiment or ""])
        raise UsageError(
            error.rule, error.problem, because=error.because,
            fix=f"profile it as it is: flatout profile -- {typed}",
        ) from error  # fmt: skip


def _profiled(python: str, request: ProfileRequest) -> Iterator[Profiling | StepProfile]:
    """What the process does and finds.

    Raises:
        UsageError, RunFailed: as it reports.
    """
    with JsonProcess(python, _WORKER) as process:
        try:
            for reply in process.ask(request, AnyProfileReply):
                if isinstance(reply, ProcessFailed):
                    raise _error(reply)
                if isinstance(reply, StepProfiled):
                    yield reply.profile
                elif isinstance(reply, Profiling):
                    yield reply
        except ProcessEnded as ended:
            raise _died(ended, process.printed()) from ended


def _error(failed: ProcessFailed) -> FlatoutError:
    printed = failed.printed if failed.has_traceback else ""
    return error_from(failed.finding, failed.exit_code, printed)


def _died(ended: ProcessEnded, printed: str) -> RunFailed:
    return RunFailed(
        "profile-died",
        "the process that profiles ended without a result.",
        because=f"it {ending_text(ended.exit_code)}",
        fix="try fewer steps (--steps 3); if memory ran out, a smaller batch",
        printed=printed,
    )


def _with_parameters(report: StepProfile, spec: ExperimentSpec) -> StepProfile:
    """With the name of the experiment's parameter for the size of batches, if it has one."""
    source = experiment_source.find_source(spec.file or spec.name)
    names = [one.name for one in parse_parameters(source.text, source.place)]
    if "batch_size" not in names:
        return report
    traits = msgspec.structs.replace(report.traits, batch_parameter="batch_size")
    return msgspec.structs.replace(report, traits=traits)


def _with_limits(report: StepProfile, machine: Machine) -> StepProfile:
    """With FLOP and bytes as shares of what was measured on this machine, if something was."""
    limits = usable_limits(machine, report.device)
    use = report.roofs
    if isinstance(limits, str):
        reasons = {**use.reasons, "flop_limit": limits, "byte_limit": limits}
        return msgspec.structs.replace(report, roofs=msgspec.structs.replace(use, reasons=reasons))
    use = msgspec.structs.replace(
        use,
        flop_limit=known_limit(limits, f"limits/matmul/{use.dtype}"),
        byte_limit=known_limit(limits, "limits/memory/triad"),
        is_limit_doubtful=is_busy(limits),
    )
    return msgspec.structs.replace(report, roofs=_shares(use, report))


def _shares(use: RoofUse, report: StepProfile) -> RoofUse:
    products_s = report.seconds("matrix") + report.seconds("convolution")
    memory_s = report.seconds("memory")
    changes: dict[str, Any] = {}
    if use.flops is not None and use.flop_limit:
        if products_s:
            changes["flop_share"] = use.flops / products_s / use.flop_limit
        changes["step_flop_share"] = use.flops / report.mean_step_s / use.flop_limit
    if use.num_bytes is not None and use.byte_limit and memory_s:
        changes["byte_share"] = use.num_bytes / memory_s / use.byte_limit
    return msgspec.structs.replace(use, **changes)


def _proved(python: str, spec: ExperimentSpec, advice: Advice) -> Advice:
    """The advice with the speed-up that it has, or the reason why that is unknown."""
    if not advice.changes:
        reason = "only you can make this change"
        return msgspec.structs.replace(advice, not_proved=reason)
    try:
        measured = measured_speedup(python, spec, advice.changes)
    except FlatoutError as error:
        return msgspec.structs.replace(advice, not_proved=error.problem)
    return msgspec.structs.replace(advice, measured=measured)


def measured_speedup(
    python: str,
    spec: ExperimentSpec,
    changes: dict[str, Any],
    other: ExperimentSpec | None = None,
    num_pairs: int = _NUM_PAIRS,
) -> Interval:
    """The speed-up of samples per second by a change, in pairs of fresh processes.

    Args:
        python: the interpreter.
        spec: the experiment without the change.
        changes: recipe fields.
        other: the experiment with a change that is none of the recipe.
        num_pairs: of processes.

    Raises:
        UsageError, RunFailed: one of the two could not be built, or has failed.
    """
    changed = other or spec
    changed = msgspec.structs.replace(changed, fixed=changed.fixed | changes)
    found: list[Interval] = []
    for number in range(num_pairs):
        specs = (spec, changed) if number % 2 == 0 else (changed, spec)
        times = _pair(python, specs)
        found.append(speedup(times if number % 2 == 0 else [(b, a) for a, b in times]))
    return speedup_over_processes(found)


def _pair(python: str, specs: Sequence[ExperimentSpec]) -> list[tuple[float, float]]:
    """Seconds per sample of blocks of two fresh processes in turns."""
    with JsonProcess(python, _WORKER) as first, JsonProcess(python, _WORKER) as second:
        processes = (first, second)
        for process, spec in zip(processes, specs, strict=True):
            process.send(BlocksRequest(spec=spec))
            # One after the other: together they would warm up for longer.
            _reply(process, BlocksReady, _START_TIMEOUT_S)
        pairs: list[tuple[float, float]] = []
        for number in range(_NUM_BLOCKS):
            order = processes if number % 2 == 0 else processes[::-1]
            times = [_block(process) for process in order]
            pairs.append((times[0], times[1]) if number % 2 == 0 else (times[1], times[0]))
        for process in processes:
            process.close(_BLOCK_TIMEOUT_S)
    # The first block still fills caches.
    return pairs[1:]


def _block(process: JsonProcess) -> float:
    process.send(StepBlock(least_s=_BLOCK_S))
    sample_s: float = _reply(process, BlockMade, _BLOCK_TIMEOUT_S).sample_s
    return sample_s


def _reply(process: JsonProcess, kind: Any, timeout_s: float) -> Any:
    try:
        reply = process.receive(AnyProfileReply, until_s=elapsed_s() + timeout_s)
    except ProcessEnded as ended:
        raise _died(ended, process.printed()) from ended
    except TimeoutError as error:
        raise RunFailed(
            "profile-died",
            "the process that proves advice does not respond.",
            because=f"a block of steps has taken more than {timeout_s:.0f} s",
            fix="leave out --prove",
        ) from error
    if isinstance(reply, ProcessFailed):
        raise _error(msgspec.structs.replace(reply, printed=process.printed()))
    assert isinstance(reply, kind)
    return reply
