"""The process that profiles an experiment: `python -m flatout.engine.profile.worker`."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from flatout.engine.runtime.fast_import import import_quickly

if __name__ == "__main__":
    # Before all that imports it.
    import_quickly("torch")

from flatout.engine.profile.report import Profiler
from flatout.engine.profile.steps import StepLoop, built_for, session_of
from flatout.engine.profile.tuned_fields import stored_fields, usable_fields
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import BuiltExperiment, process_settings
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.profile_protocol import (
    AnyProfileRequest,
    BlockMade,
    BlocksReady,
    BlocksRequest,
    ProfileRequest,
    StepBlock,
    StepProfiled,
)
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.step_profile import StepProfile
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

_Built = tuple[BuiltExperiment, Recipe, list[Finding]]


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()
    try:
        request = stdio.read(AnyProfileRequest)
        defer_compiler_on_cpu()
        if isinstance(request, ProfileRequest):
            stdio.exit_when_closed()
            profile(request, stdio.answers.write)
        else:
            make_blocks(request, stdio)
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = _failed(error)
        stdio.answers.write(failure)
        return failure.exit_code
    return 0


def profile(request: ProfileRequest, write: Callable[[Any], None]) -> None:
    """Profiles an experiment, and sends what it does and what it has found.

    Raises:
        UsageError, RunFailed: what a training would raise in its first steps.
    """
    experiment = load_experiment(request.spec)
    built: _Built | None
    built = built_for(experiment, request.spec)
    data = built[0].train_data
    fields: dict[str, Choice[Any]] = {}
    not_cached = report = None
    if request.is_tuned:
        fields, not_cached = usable_fields(stored_fields(built[0], request.spec.fixed), built[0])
    not_tuned = not_cached
    if fields:
        # Frees its memory for the second one.
        built = None
        try:
            report = profiled(built_for(experiment, request.spec, fields, data), request, write)
        except Exception as error:  # noqa: BLE001 - without these fields, a step may work
            # As a training does: the data, or how much memory is free, has changed.
            fields = {}
            problem = _failed(error).finding.problem
            not_tuned = f"the recipe found by a search does not work any more: {problem}"
    if report is None:
        built = built or built_for(experiment, request.spec, train_data=data)
        report = profiled(built, request, write)
    tuned = {name: choice.value for name, choice in fields.items()}
    traits = report.traits
    if not_cached is not None:
        # A training keeps the samples already.
        traits = msgspec.structs.replace(traits, not_cached=not_cached)
    report = msgspec.structs.replace(report, tuned=tuned, not_tuned=not_tuned, traits=traits)
    write(StepProfiled(profile=report))


def profiled(
    built_experiment: _Built, request: ProfileRequest, write: Callable[[Any], None]
) -> StepProfile:
    """The profile of an experiment that was built.

    Raises:
        UsageError, RunFailed: what a training would raise in its first steps.
    """
    built, recipe, warnings = built_experiment
    with process_settings(recipe):
        session = session_of(built, recipe)
        try:
            return Profiler(session, request, write, warnings).report()
        finally:
            session.close()


def make_blocks(request: BlocksRequest, stdio: JsonStdio) -> None:
    """Makes blocks of steps until the parent asks for no more."""
    experiment = load_experiment(request.spec)
    built, recipe, _ = built_for(experiment, request.spec)
    with process_settings(recipe):
        session = session_of(built, recipe)
        try:
            loop = StepLoop(session, StepTimer(session.device))
            loop.warm_up()
            num_ahead = 0
            if recipe.data_path.value == "loader":
                num_ahead = recipe.loader_workers.value * recipe.loader_prefetch.value
            stdio.answers.write(BlocksReady())
            for block in stdio.requests(StepBlock):
                # What workers have read while the other process had its turn has cost it nothing.
                for _ in range(num_ahead):
                    loop.make()
                stdio.answers.write(BlockMade(sample_s=_block(loop, block.least_s)))
        finally:
            session.close()


def _block(loop: StepLoop, least_s: float) -> float:
    """Seconds per sample of a block of steps."""
    loop.finish()
    before, began_s = loop.num_samples, elapsed_s()
    while elapsed_s() - began_s < least_s:
        loop.make()
    loop.finish()
    return (elapsed_s() - began_s) / (loop.num_samples - before)


def _failed(error: BaseException) -> ProcessFailed:
    known = to_flatout_error(error)
    if known is None:
        return ProcessFailed(finding=internal_error(error), exit_code=3)
    return ProcessFailed(finding=finding_from(known), exit_code=known.exit_code)


if __name__ == "__main__":
    end(main())
