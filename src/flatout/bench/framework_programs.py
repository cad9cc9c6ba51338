"""Runs the programs that train with one framework: one process for each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import flatout
from flatout.schema.framework_protocol import (
    AnyProgramReply,
    FrameworkTask,
    ProgramEnded,
    ProgramFailed,
    ProgramReady,
    Scored,
    StepsMade,
    StepsTimed,
)
from flatout.system.clock import elapsed_s
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.process_env import framework_environment, worker_environment
from flatout.system.worker_process import ending_text

_PROGRAMS = Path(flatout.__file__).parent / "engine" / "bench" / "programs"
_OWN = "flatout.engine.bench.recipe_program"
# Of one process, which trains for a minute or two. A framework that hangs must not hang this.
_LIMIT_S = 1200.0


class FrameworkWay(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ways that are compared: the program of a framework in an interpreter.

    name: as in the ids of rows. variants: among which the fastest is taken.
    """

    name: str
    program: str
    python: str
    variants: tuple[str, ...]


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has measured.

    made_s: from the start of the process to the end of its first steps.
    fields: of flatout's recipe; empty for other programs.
    """

    version: str
    recipe: str
    fields: dict[str, Any]
    made_s: float
    score: Scored
    step_s: tuple[float, ...]
    busy_cpus: float | None
    peak_bytes: int | None


def run_program(way: FrameworkWay, task: FrameworkTask) -> ProgramResult | str:
    """Runs a task to its end; the reason if it failed."""
    if way.program == "flatout":
        module = _OWN
        environment = {**worker_environment(), **_own_variables(task)}
    else:
        module = f"{way.program}_program"
        added = {"PYTHONPATH": str(_PROGRAMS)}
        if way.program == "keras":
            added["KERAS_BACKEND"] = task.variant
        environment = framework_environment(task.device, task.num_threads, **added)
    began_s = elapsed_s()
    # The program sees one GPU.
    sent = task if task.device == "cpu" else msgspec.structs.replace(task, device="cuda:0")
    try:
        with JsonProcess(way.python, module, environment=environment) as process:
            process.send(sent)
            try:
                return _result(process, began_s)
            except ProcessEnded as ended:
                # Most often the framework could not be imported: its last line says why.
                last = process.printed().strip().splitlines()[-1:]
                text = f"its process {ending_text(ended.exit_code)}"
                return f"{text}: {last[0][:300]}" if last else text
    except TimeoutError:
        return f"not done within {_LIMIT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)


def _own_variables(task: FrameworkTask) -> dict[str, str]:
    variables = framework_environment(task.device, task.num_threads)
    names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS")
    return {name: variables[name] for name in names if name in variables}


def _result(process: JsonProcess, began_s: float) -> ProgramResult | str:
    found: dict[type, Any] = {}
    made_s = 0.0
    while ProgramEnded not in found:
        reply = process.receive(AnyProgramReply, until_s=began_s + _LIMIT_S)
        if isinstance(reply, ProgramFailed):
            return reply.problem
        if isinstance(reply, StepsMade):
            made_s = elapsed_s() - began_s
        found[type(reply)] = reply
    ready: ProgramReady = found[ProgramReady]
    timed: StepsTimed | None = found.get(StepsTimed)
    return ProgramResult(
        version=ready.version,
        recipe=ready.recipe,
        fields=ready.fields,
        made_s=made_s,
        score=found[Scored],
        step_s=timed.step_s if timed else (),
        busy_cpus=timed.busy_cpus if timed else None,
        peak_bytes=found[ProgramEnded].peak_bytes,
    )
