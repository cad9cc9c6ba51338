"""The compiled candidates, and whether compiling pays: arithmetic, without tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from flatout.schema.recipe import Compiled, CompileMode
from flatout.schema.tuning import (
    Candidate,
    Decision,
    Payback,
    Profile,
    Result,
    Rung,
    Setting,
)
from flatout.schema.units import counted_text, seconds_text
from flatout.tune import captures
from flatout.tune.data_paths import LEAST_SHARE
from flatout.tune.statistics import product

FIELDS = ("compiled", "compile_mode")
AXIS = "compiling"

# What compiled code must gain, with 95 % confidence, over the recipe that it is put on top of.
LEAST_GAIN = 1.03

# The least that compiling was seen to take, of a model of two layers (LOG.md, 2026-11-22); and no
# step became more than this much shorter.
_LEAST_COMPILE_S = 4.0
_MOST_SAVED = 0.5

# About what compiling takes, by the operators of a plain step: 45 s of 1,550 (LOG.md, 2026-11-22).
_COMPILE_S, _COMPILE_S_PER_OPERATION = 8.0, 0.03
# And the gate after it, which compiles once more, out of the cache.
_WITH_GATE = 1.3
_UPDATES_OF_GATE = 16


def compiled_candidates(
    setting: Setting, profile: Profile
) -> Iterator[tuple[Candidate, str | None]]:
    """The parts that can be compiled, each with the reason against trying it here, if any."""
    reason = _why_not(setting, profile)
    share = profile.shares.get("optimizer", 0.0)
    little = None if share >= LEAST_SHARE else "the optimizer takes too little of the step"
    parts: tuple[tuple[Compiled, str, str | None], ...] = (
        ("loss", "compiled forward and loss", None),
        ("both", "compiled step", little),
    )
    for value, name, own_reason in parts:
        yield _candidate(name, value, "default"), reason or own_reason
    yield from _in_graphs(setting, profile, reason)
    autotuned = _candidate("compiled, kernels timed", "loss", "max-autotune-no-cudagraphs")
    is_cpu = "takes minutes on a CPU" if setting.device == "cpu" else None
    depends = (
        "with `deterministic`: the code it generates depends on {}"
        if setting.is_deterministic
        else None
    )
    yield autotuned, reason or (depends and depends.format("timings")) or is_cpu
    any_size = _candidate("compiled for any shape", "loss", "dynamic")
    yield any_size, reason or (depends and depends.format("the shapes seen first"))


def _in_graphs(
    setting: Setting, profile: Profile, not_compiled: str | None
) -> Iterator[tuple[Candidate, str | None]]:
    """The compiled parts of CUDA graphs; offered nowhere but on a GPU.

    Compiled, the device has less to do, and waits for launches where it did not before.
    """
    if setting.device != "cuda":
        return
    least_share = (1.0 - _MOST_SAVED) * captures.LEAST_HOST_SHARE
    for num_steps in captures.STEPS:
        changes, reason = captures.in_graphs(setting, num_steps)
        name = "a CUDA graph" if num_steps == 1 else f"a CUDA graph of {num_steps} steps"
        candidate = _candidate(f"compiled, in {name}", "loss", "default", changes)
        in_vain = captures.why_no_gain(profile, num_steps, least_share)
        yield candidate, not_compiled or reason or in_vain


def _candidate(
    name: str, value: Compiled, mode: CompileMode, others: dict[str, Any] | None = None
) -> Candidate:
    changes: dict[str, Any] = {"compiled": value, "compile_mode": mode, **(others or {})}
    return Candidate(
        name=name,
        axis=AXIS,
        changes=changes,
        why="fused operators read and write memory once",
        is_compiled=True,
    )


def _why_not(setting: Setting, profile: Profile) -> str | None:
    if setting.not_compiled is not None:
        return setting.not_compiled
    if not setting.has_processes:
        return "needs a separate process: `flatout tune FILE` tries it"
    if setting.num_steps is None:
        return "the number of steps is unknown, so compiling may not pay off"
    run_s = setting.num_steps * profile.step_s
    if _MOST_SAVED * run_s < 2 * _LEAST_COMPILE_S:
        steps = counted_text(setting.num_steps, "step")
        return f"compiling does not pay off in {steps} of {seconds_text(profile.step_s)}"
    return None


def trial_s(profile: Profile) -> float:
    """About what the trial of a compiled candidate takes, its judgment included."""
    compile_s = _COMPILE_S + _COMPILE_S_PER_OPERATION * profile.num_operations
    return profile.start_s + _WITH_GATE * compile_s + 2 * _UPDATES_OF_GATE * profile.step_s


def with_payback(result: Result, batch_size: int, num_steps: int | None) -> Result:
    """The result with whether compiling pays; as it is where nothing was compiled or gained."""
    gain, before = result.speedup, result.incumbent_samples_per_s
    if result.compile_s is None or gain is None or before is None or gain.middle <= 1.0:
        return result
    # What is saved in each step for sure.
    saved_s = batch_size / before * (1.0 - 1.0 / max(gain.low, 1e-9))
    after_steps = math.ceil(result.compile_s / saved_s) if saved_s > 0 else None
    payback = Payback(compile_s=result.compile_s, after_steps=after_steps, num_steps=num_steps or 0)
    return msgspec.structs.replace(result, payback=payback)


def is_won(result: Result) -> bool:
    """Whether something compiled is enough faster, right, and pays within the run."""
    gain, verdict, payback = result.speedup, result.verdict, result.payback
    return (
        gain is not None
        and gain.low >= LEAST_GAIN
        # Payback is computed in seconds, which other programs have affected.
        and not result.is_busy
        and verdict is not None
        and verdict.is_passed
        and payback is not None
        and payback.is_worth_it
    )


def on_top(decision: Decision, result: Result) -> Decision:
    """The decision with what was compiled on top of it.

    Where the defaults had stayed, it was these that it was compared with.
    """
    gain, trial = result.speedup, result.trial
    assert gain is not None
    before = decision.speedup
    speedup = gain if before is None else product(before, gain)
    over_plain = decision.over_plain
    below = decision.rungs
    rung = Rung(
        name=trial.candidate.name,
        changes=trial.candidate.changes,
        samples_per_s=below[-1].samples_per_s * gain.middle,
        gain=gain,
    )
    return msgspec.structs.replace(
        decision,
        is_default=False,
        is_decided=True,
        changes=trial.changes,
        rungs=(*below, rung),
        lost=tuple(result for result in decision.lost if result.trial != trial),
        speedup=speedup,
        over_plain=product(over_plain, gain) if over_plain is not None else None,
        why="faster than flatout's defaults, and still correct",
        uncompiled=decision,
    )


def uncompiled(decision: Decision) -> Decision:
    """The decision from before anything was compiled."""
    return decision.uncompiled or decision


def for_steps(decision: Decision, num_steps: int | None, batch_size: int) -> Decision:
    """An earlier decision, for a run of so many steps: compiled only where that pays in it."""
    before = uncompiled(decision)
    lost = tuple(_for_steps(result, num_steps or 0) for result in before.lost)
    return with_best(msgspec.structs.replace(before, lost=lost), batch_size)


def _for_steps(result: Result, num_steps: int) -> Result:
    if result.payback is None:
        return result
    payback = msgspec.structs.replace(result.payback, num_steps=num_steps)
    return msgspec.structs.replace(result, payback=payback)


def with_best(decision: Decision, batch_size: int) -> Decision:
    """The decision with that on top, of what is compiled and has won, that ends the run first."""
    won = [result for result in decision.lost if is_won(result)]
    if not won:
        return decision
    step_s = batch_size / decision.rungs[-1].samples_per_s
    return on_top(decision, min(won, key=lambda result: _run_s(result, step_s)))


def _run_s(result: Result, step_s: float) -> float:
    """The time of a run, compiling included; step_s: a step that is not compiled."""
    gain, payback = result.speedup, result.payback
    assert gain is not None and payback is not None, "it must have won"
    return payback.compile_s + payback.num_steps * step_s / gain.middle
