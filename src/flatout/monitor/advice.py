"""From a step's profile to at most three changes, each with what it would bring.

Pure: a report in, advice out. What parts of a step take with a change was measured by the probes of
`engine/profile/probes.py`; here it becomes the speed-up of the whole step. Lines of the user's
code are judged by their text and their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.monitor.advice_lines import line_advice
from flatout.monitor.advice_words import WORDS, Words
from flatout.monitor.speedups import faster, speedup_of
from flatout.schema.step_profile import Advice, OperatorProbe, StepProfile
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text, percent_text, seconds_text

MOST_ADVICE = 3
# Less is not worth a change, and often not true.
_LEAST_SPEEDUP = 1.03
_LEAST_FOR_LARGER_BATCH = 1.25
_LEAST_OPERATORS = 150
# Below that, calling an operator takes longer than what it does.
_TINY_S = 2e-5
# Of the operators' own time, what compiling saves, with its doubt.
_SAVED_BY_COMPILING, _DOUBT_OF_COMPILING = 0.7, 0.4
# What calling compiled code takes in turn: its guards, and autograd around it, forward and backward
# (LOG.md, 2026-11-28). A step of a few hundred microseconds becomes slower by it.
_CALL_OF_COMPILED_S = 3e-4
_LEFT_OF_COMPILING = 0.01
_LEAST_SHARE = 0.05
_LEAST_IDLE = 0.15
# Where one of these is found, small operators are what it leads to.
_CAUSES = ("synchronization", "printing", "python-loop")
# By how much the logarithm of a speed-up counts, of what changes rounding or what is computed:
# a change without such a price comes first unless it brings much less.
_ROUNDING, _OTHER_RESULT = 0.6, 0.35


def advice_for(report: StepProfile, further: Sequence[Advice] = ()) -> tuple[Advice, ...]:
    """The changes that would bring most, best first; further: candidates from elsewhere."""
    found = [
        *further,
        *_of_probes(report),
        *_loader(report),
        *_larger_batch(report),
        *_recompiles(report),
        *_pageable(report),
        *_idle_device(report),
        *_tiny_operators(report),
        *line_advice(report),
    ]
    worth = [one for one in found if one.speedup.middle >= _LEAST_SPEEDUP and one.speedup.low > 1]
    if any(one.id in _CAUSES for one in worth):
        worth = [one for one in worth if one.id != "tiny-operators"]
    best: dict[str, Advice] = {}
    for one in sorted(worth, key=_weight, reverse=True):
        best.setdefault(one.id, one)
    return tuple(list(best.values())[:MOST_ADVICE])


def _weight(advice: Advice) -> float:
    words = WORDS.get(advice.id)
    factor = 1.0
    if advice.id in ("small-batch", "idle-device"):
        factor = _OTHER_RESULT
    elif words is not None and words.changes_result is not None:
        factor = _ROUNDING
    # Each halving of the gain counts as less than twice as much: a sure one is worth more.
    return factor * (advice.speedup.middle - 1) / advice.speedup.middle


def _of_probes(report: StepProfile) -> Iterator[Advice]:
    """What a probe has measured, for one part of the step."""
    for probe in report.probes:
        words = WORDS.get(probe.advice)
        if words is None or probe.ratio is None or probe.affected_s <= 0:
            continue
        if probe.advice == "too-many-threads" and _is_crowded(report):
            continue
        saved = _saved(probe)
        yield _advice(report, probe, words, faster(report.mean_step_s, saved))


def _is_crowded(report: StepProfile) -> bool:
    """Whether fewer threads are faster only because other programs have some of the cores now."""
    num_cores = report.traits.num_cores
    count = report.recipe.get("num_threads")
    is_busy = report.load is not None and report.load.is_busy
    return is_busy and (num_cores is None or count is None or count <= num_cores)


def _saved(probe: OperatorProbe) -> Interval:
    assert probe.ratio is not None
    return Interval(
        middle=probe.affected_s * (1 - probe.ratio.middle),
        low=probe.affected_s * (1 - probe.ratio.high),
        high=probe.affected_s * (1 - probe.ratio.low),
    )


def _advice(report: StepProfile, probe: OperatorProbe, words: Words, speedup: Interval) -> Advice:
    assert probe.ratio is not None
    share = percent_text(min(1.0, probe.affected_s / report.mean_step_s), 0)
    because = words.because.format(share=share)
    return Advice(
        id=probe.advice,
        problem=words.problem,
        because=because,
        fix=fix_text(probe) if probe.changes else words.fix,
        speedup=speedup,
        basis=f"{probe.note}: x{probe.ratio.middle:.2f} of the time",
        changes=probe.changes,
        changes_result=words.changes_result,
    )


def fix_text(probe: OperatorProbe) -> str:
    """`--use precision=bf16`."""
    pairs = (f"--use {name}={str(value).lower()}" for name, value in probe.changes.items())
    return " ".join(pairs)


def _loader(report: StepProfile) -> Iterator[Advice]:
    """Samples that are read too slowly: another way of reading them, else the lines."""
    data_s = report.seconds("data")
    if data_s < _LEAST_SHARE * report.mean_step_s:
        return
    lines = tuple(line for line in report.lines if line.part == "data")[:3]
    because = f"a step waits {seconds_text(data_s)} for its batch, {_share(report, data_s)} of it"
    usable = [
        probe
        for probe in report.probes
        if probe.advice == "loader-starved"
        and probe.ratio is not None
        and not (probe.changes.get("data_path") == "cached" and report.traits.not_cached)
    ]
    if usable:
        best = min(usable, key=lambda probe: probe.ratio.middle if probe.ratio else 1.0)
        yield Advice(
            id="loader-starved",
            problem="The step waits for data.",
            because=because,
            fix=fix_text(best),
            speedup=faster(report.mean_step_s, _saved(best)),
            basis=f"with {best.note}",
            changes=best.changes,
            lines=lines,
        )
    elif lines:
        seconds = min(data_s, sum(line.seconds for line in lines))
        yield Advice(
            id="loader-starved",
            problem="The step waits for data.",
            because=because,
            fix="make these lines faster, or do their work once, before training",
            speedup=speedup_of(report.mean_step_s, seconds, doubt=0.5),
            basis="if these lines took no time",
            lines=lines,
        )


def _larger_batch(report: StepProfile) -> Iterator[Advice]:
    """A batch, or a micro-batch, that is too small for the device."""
    probe = next((one for one in report.probes if one.advice == "small-batch"), None)
    if probe is None or probe.ratio is None or probe.batch_size is None:
        return
    size = report.traits.batch_size or 0
    micro_size = int(report.recipe.get("micro_batch_size", size))
    phases = report.phases_s
    rest_s = max(0.0, report.mean_step_s - probe.affected_s)
    data_s = report.seconds("data") + report.seconds("copy")
    once_s = phases.get("optimizer", report.seconds("optimizer"))
    # The optimizer makes one step where it made so many.
    larger_by = probe.batch_size / max(size, 1)
    if micro_size < size:
        larger = min(size, probe.batch_size)
        saved = _saved(probe)
        yield Advice(
            id="small-micro-batch",
            problem=f"Micro-batches of {micro_size} are too small for this device.",
            because=f"a batch of {size} is computed in parts: {-(-size // micro_size)} of them",
            fix=f"--use micro_batch_size={larger}",
            speedup=faster(report.mean_step_s, saved),
            basis=f"{probe.note}: x{probe.ratio.middle:.2f} of the time per sample",
            changes={"micro_batch_size": larger},
            changes_result="BatchNorm sees larger micro-batches"
            if any("batch_norm" in one.name for one in report.operators)
            else None,
        )
        return
    per_sample = [
        probe.affected_s * ratio + data_s + once_s / larger_by + max(0.0, rest_s - data_s - once_s)
        for ratio in (probe.ratio.middle, probe.ratio.high, probe.ratio.low)
    ]
    middle, low, high = (report.mean_step_s / one for one in per_sample)
    if middle < _LEAST_FOR_LARGER_BATCH:
        return
    parameter = report.traits.batch_parameter
    yield Advice(
        id="small-batch",
        problem=f"Batches of {size} are too small for this device.",
        because=f"{counted_text(probe.batch_size, 'sample')} at once take x{probe.ratio.middle:.2f}"
        " of the time per sample in forward and backward",
        fix=f"-s {parameter}={probe.batch_size}" if parameter else
        f"set batch_size={probe.batch_size} in the experiment",
        speedup=Interval(middle=middle, low=low, high=high),
        basis=probe.note,
        changes_result="fewer, larger steps: the learning rate must be chosen again",
    )  # fmt: skip


def _recompiles(report: StepProfile) -> Iterator[Advice]:
    compile_s, count = report.traits.compile_s, report.traits.num_recompiles
    if not compile_s or not count:
        return
    is_own = report.recipe.get("compiled", "off") != "off"
    # Each compilation leaves guards that all later calls check: host work, too.
    saved_s = max(compile_s, report.seconds("host"))
    high_s = min(1.1 * saved_s, report.mean_step_s)
    saved = Interval(middle=saved_s, low=0.9 * compile_s, high=high_s)
    yield Advice(
        id="recompiles",
        problem="torch.compile compiles again and again.",
        because=f"{count:.2g} times a step, {seconds_text(compile_s)}, {_share(report, compile_s)}"
        " of it: shapes, or numbers that the model keeps, change from step to step",
        fix="--use compile_mode=dynamic"
        if is_own
        else "pass dynamic=True to torch.compile, keep shapes the same, and make numbers that"
        " change tensors",
        # What is left was measured as what the host does not do.
        speedup=faster(report.mean_step_s, saved, least_left=_LEFT_OF_COMPILING),
        basis="if nothing were compiled, and no guards checked, after the first steps",
        changes={"compile_mode": "dynamic"} if is_own else {},
    )


def _pageable(report: StepProfile) -> Iterator[Advice]:
    copy_s = report.traits.pageable_copy_s
    if not copy_s:
        return
    is_loader = report.recipe.get("data_path") == "loader"
    yield Advice(
        id="pageable-copies",
        problem="Batches are copied to the GPU from memory that is not pinned.",
        because=f"the host waits for these copies: {seconds_text(copy_s)} of a step",
        fix="--use loader_pin_memory=true"
        if is_loader
        else "pin_memory=True in the DataLoader, and .to(device, non_blocking=True)",
        speedup=speedup_of(report.mean_step_s, min(copy_s, report.seconds("copy")), doubt=0.5),
        basis="if copies overlapped with the step",
        changes={"loader_pin_memory": True} if is_loader else {},
    )


def _idle_device(report: StepProfile) -> Iterator[Advice]:
    """A GPU that waits for the host, whose work can be recorded once."""
    gaps_s = report.seconds("launch") + report.seconds("host")
    is_gpu = report.traits.device == "cuda"
    if not is_gpu or gaps_s < _LEAST_IDLE * report.mean_step_s:
        return
    is_captured = report.recipe.get("capture", "off") != "off"
    if is_captured or report.traits.has_own_step or not report.recipe:
        yield Advice(
            id="idle-device",
            problem="The GPU waits for the host.",
            because=f"{_share(report, gaps_s)} of a step it has nothing to do",
            fix="use a larger batch: it takes the host no longer",
            speedup=speedup_of(report.mean_step_s, gaps_s, doubt=0.5),
            basis="if the GPU were busy all the time",
            changes_result="fewer, larger steps: the learning rate must be chosen again",
        )
        return
    yield Advice(
        id="launch-bound",
        problem="The GPU waits for the host to start its kernels.",
        because=f"{_share(report, gaps_s)} of a step it has nothing to do",
        fix="--use capture=step",
        speedup=speedup_of(report.mean_step_s, gaps_s, doubt=0.3),
        basis="if the GPU were busy all the time",
        changes={"capture": "step"},
    )


def _tiny_operators(report: StepProfile) -> Iterator[Advice]:
    """Operators so small that calling them is most of their time, on a CPU."""
    count, traits = report.traits.num_operators, report.traits
    own_s = report.seconds("memory") + report.seconds("host")
    passes_s = sum(report.phases_s.get(name, 0.0) for name in ("forward", "backward"))
    if passes_s:
        products_s = report.seconds("matrix") + report.seconds("convolution")
        own_s = min(own_s, max(0.0, passes_s - products_s))
    if traits.device != "cpu" or count is None or count < _LEAST_OPERATORS:
        return
    if own_s / count > _TINY_S or own_s < 0.3 * report.mean_step_s:
        return
    can_compile = bool(report.recipe) and traits.not_compiled is None and not traits.has_own_step
    lines = tuple(line for line in report.lines if line.part == "step")[:3]
    fix = "use fewer, larger operators" + (" in these lines" if lines else "")
    saved = f"{percent_text(_SAVED_BY_COMPILING, 0)} of their time"
    basis, call_s = f"if {saved} were saved", 0.0
    if traits.not_compiled is None:
        fix = "--use compiled=loss" if can_compile else f"torch.compile the model, or {fix}"
        call_s = _num_micro_batches(report) * _CALL_OF_COMPILED_S
        called = f"{seconds_text(call_s)} per step for calling compiled code"
        basis = f"if compiling saved {saved}, less {called}"
    middle, low, high = (
        _SAVED_BY_COMPILING * (1 + doubt) * own_s - call_s
        for doubt in (0.0, -_DOUBT_OF_COMPILING, _DOUBT_OF_COMPILING)
    )
    yield Advice(
        id="tiny-operators",
        problem="The step consists of many small operators.",
        because=f"{count:,.0f} operators of {seconds_text(own_s / count)} each, calls included",
        fix=fix,
        speedup=faster(report.mean_step_s, Interval(middle=middle, low=low, high=high)),
        basis=basis,
        changes={"compiled": "loss"} if can_compile else {},
        lines=lines,
    )


def _num_micro_batches(report: StepProfile) -> int:
    size = report.traits.batch_size or 1
    return -(-size // int(report.recipe.get("micro_batch_size", size)))


def _share(report: StepProfile, seconds: float) -> str:
    return percent_text(min(1.0, seconds / report.mean_step_s), 0)
