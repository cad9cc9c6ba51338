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
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import process_settings
from flatout.engine.tuner.stored_recipe import stored_changes
from flatout.schema.finding import finding_from, internal_error
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
from flatout.schema.units import counted_text, seconds_text
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

# Longer than everything else that a profile does.
_LONGEST_READING_S = 20.0
_NUM_READ = 8


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
    built, recipe, warnings = built_for(experiment, request.spec)
    tuned, reason = usable_changes(stored_changes(built, request.spec.fixed), built.train_data)
    if tuned:
        fixed = request.spec.fixed | tuned
        changed = msgspec.structs.replace(request.spec, fixed=fixed)
        # Its memory is for the other one.
        del built, recipe
        built, recipe, warnings = built_for(experiment, changed)
    with process_settings(recipe):
        session = session_of(built, recipe)
        try:
            report = Profiler(session, request, write, warnings).report()
            unread = report.unread | ({"tuned": reason} if reason else {})
            report = msgspec.structs.replace(report, tuned=tuned, unread=unread)
            write(StepProfiled(profile=report))
        finally:
            session.close()


def usable_changes(changes: dict[str, Any], data: Any) -> tuple[dict[str, Any], str | None]:
    """What a profile takes up of a recipe, and why not all of it.

    data: for training. A profile would read all samples that a training keeps, before it begins.
    """
    if changes.get("data_path") != "cached":
        return changes, None
    num_samples, num_read = len(data), min(_NUM_READ, len(data))
    began_s = elapsed_s()
    for number in range(num_read):
        data[number]
    reading_s = (elapsed_s() - began_s) / max(1, num_read) * num_samples
    if reading_s <= _LONGEST_READING_S:
        return changes, None
    left = {
        name: value
        for name, value in changes.items()
        if name != "data_path" and not name.startswith("loader_")
    }
    samples = counted_text(num_samples, "sample")
    return left, (
        f"data_path=cached is left out, since to read {samples} takes {seconds_text(reading_s)}:"
        " data is read as in the first epoch"
    )


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
