"""`flatout lr EXPERIMENT`: a learning-rate range test in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from flatout.bench.limits import Doing, error_from
from flatout.compat.torch_needed import require_torch
from flatout.errors import FlatoutError, RunFailed
from flatout.monitor import plots
from flatout.runs import api as runs_api
from flatout.runs import experiment_source
from flatout.runs.experiment_params import parse_parameters
from flatout.runs.start import specify
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import finding_from
from flatout.schema.lr_range import AnyLrReply, LrRange, LrRangeMade, LrRangeRequest, LrSweep
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.suggested_command import train_command
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import TuneRequest
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.store.interpreters import resolve_with_flatout
from flatout.system.store.lr_ranges import keep_lr_range
from flatout.system.worker_process import ending_text
from flatout.tune.lr_range import check_sweep

_WORKER = "flatout.engine.training.lr_range_worker"


class KeptLrRange(msgspec.Struct, frozen=True, kw_only=True):
    """A result and its files.

    plot: None without matplotlib, or if it could not be drawn. command: trains with the rate that
    is suggested; None if there is none, or no parameter `lr` that sets it.
    """

    result: LrRange
    file: str
    plot: str | None = None
    command: str | None = None


def lr_range(request: TrainRequest, sweep: LrSweep) -> Iterator[Doing | KeptLrRange]:
    """Makes the test; the last value is its result, which is kept until the next one.

    Raises:
        UsageError: bad-lr-range; what a training would be refused for.
        RunFailed: what the experiment raises in a step; lr-range-died.
    """
    check_sweep(sweep)
    spec = specify(request)
    given_lr = _lr_parameter(request, spec)
    python, version = resolve_with_flatout(request.python, request.env)
    require_torch(runs_api.probe(python), version)
    result = None
    shown = 0
    with JsonProcess(python, _WORKER) as process:
        try:
            for reply in process.ask(LrRangeRequest(spec=spec, sweep=sweep), AnyLrReply):
                if isinstance(reply, ProcessFailed):
                    printed = reply.printed if reply.has_traceback else ""
                    raise error_from(reply.finding, reply.exit_code, printed)
                if isinstance(reply, LrRangeMade):
                    result = reply.result
                elif (tenths := int(10 * reply.done)) > shown:
                    # Where there is no progress bar, each is a line.
                    shown = tenths
                    yield Doing(what=f"learning rate {reply.lr:.2g}", done=reply.done)
        except ProcessEnded as ended:
            raise RunFailed(
                "lr-range-died",
                "the process of the learning-rate range test ended without a result.",
                because=f"it {ending_text(ended.exit_code)}",
                fix="if memory ran out, use a smaller batch",
                printed=process.printed(),
            ) from ended
    assert result is not None
    file = keep_lr_range(result)
    plot = None
    if result.points and plots.can_draw():
        try:
            plot = str(plots.draw_lr_range(result, file.with_suffix(".png")))
        except FlatoutError as error:
            # The result is complete without it.
            warnings = (*result.warnings, finding_from(error, "warning"))
            result = msgspec.structs.replace(result, warnings=warnings)
    # As `flatout train` has it: an environment by its interpreter.
    change = Change(python=None if python == sys.executable else python)
    command = _command(request, spec, change, result, given_lr)
    yield KeptLrRange(result=result, file=str(file), plot=plot, command=command)


def _lr_parameter(request: TrainRequest, spec: ExperimentSpec) -> float | None:
    """The value of the experiment's parameter `lr`; None if it has none, or no number."""
    source = experiment_source.find_source(request.experiment)
    parameters = parse_parameters(source.text, source.place)
    default = next((one.default for one in parameters if one.name == "lr"), None)
    try:
        return float(spec.parameters.get("lr") or default or "none")
    except ValueError:
        return None


def _command(
    request: TrainRequest,
    spec: ExperimentSpec,
    change: Change,
    result: LrRange,
    given_lr: float | None,
) -> str | None:
    """The training with the suggested rate, where the parameter `lr` is the experiment's rate."""
    if result.lr is None or given_lr != result.own_lr:
        return None
    parameters_now = spec.parameters | {"lr": float(f"{result.lr:.2g}")}
    training = msgspec.structs.replace(
        spec,
        parameters=parameters_now,
        fixed=request.fixed,
        # The test makes no search, but a training may.
        tuning=TuneRequest(mode="auto"),
    )
    return train_command(training, change, recipe=request.recipe)
