"""Advice about lines of the user's code, by their text and the time in them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from flatout.monitor.speedups import speedup_of
from flatout.schema.step_profile import MODEL_ALONE, OUTSIDE, Advice, LineTime, StepProfile
from flatout.schema.units import counted_text, percent_text, seconds_text

_PRINTS = re.compile(r"\bprint\(|\blogg(er|ing)\.|\bsys\.std(out|err)\.|\bwarnings\.warn\(")
_SYNCS = re.compile(r"\.item\(\)|\.tolist\(\)|\.cpu\(\)|\.numpy\(|synchronize\(|\bfloat\(loss")
_COPIES = re.compile(
    r"\.clone\(|\.contiguous\(|deepcopy\(|\.to\(torch\.|\.(double|float|half|bfloat16)\(\)"
)
_COPIED_BACKWARD = re.compile(r": (Clone|ToCopy|Copy)Backward")
# Lines that put together what a loop before them has computed.
_GATHERS = re.compile(r"\b(stack|cat|concat|vstack|hstack|sum|mean)\(")
_LAYERS = "torch/nn/modules/"
_LEAST_SHARE = 0.04
_MOST_LINES = 3
# Of a loop, for which values are read in it, so that it cannot become one operator before.
_READING_SHARE = 0.05
# Of the time of a loop, what the same work takes at once where it is not known how often it runs.
_LEFT_OF_LOOP, _DOUBT_OF_LOOP = 0.15, 0.25
# Calling an operator in both passes takes about as long, with what Python does before.
_CALL_S = 2e-5
_MOST_LINES_BETWEEN = 3


def line_advice(report: StepProfile) -> Iterator[Advice]:
    """What can be said about the lines in which steps spend their time."""
    left = [line for line in report.lines if line.part == "step"]
    prints = _matching(left, _PRINTS)
    left = _without(left, prints)
    syncs = _with_their_loops(left, _matching(left, _SYNCS))
    left = _without(left, syncs)
    copies = [line for line in _matching(left, _COPIES) if line.loop is None]
    left = _without(left, copies)
    yield from _printing(report, prints)
    yield from _synchronizing(report, syncs)
    yield from _copying(report, copies)
    yield from _looping(report, left)
    yield from _other_python(report, [line for line in left if line.loop is None])


def _matching(lines: Sequence[LineTime], pattern: re.Pattern[str]) -> list[LineTime]:
    return [line for line in lines if pattern.search(line.text)]


def _without(lines: Sequence[LineTime], others: Sequence[LineTime]) -> list[LineTime]:
    taken = {(line.file, line.line) for line in others}
    return [line for line in lines if (line.file, line.line) not in taken]


def _with_their_loops(lines: Sequence[LineTime], found: Sequence[LineTime]) -> list[LineTime]:
    """With the other lines of loops that cannot be left while values are read in them."""
    own: dict[tuple[str, int], float] = defaultdict(float)
    for line in found:
        if line.loop is not None:
            own[line.file, line.loop] += line.seconds
    together: dict[tuple[str, int], float] = defaultdict(float)
    for line in lines:
        if line.loop is not None:
            together[line.file, line.loop] += line.seconds
    whole = {key for key, seconds in own.items() if seconds >= _READING_SHARE * together[key]}
    others = [line for line in lines if line.loop is not None and (line.file, line.loop) in whole]
    return [*found, *_without(others, found)]


def _seconds(lines: Sequence[LineTime]) -> float:
    return sum(line.seconds for line in lines)


def _is_worth(report: StepProfile, lines: Sequence[LineTime]) -> bool:
    return _seconds(lines) >= _LEAST_SHARE * report.mean_step_s


def _capped(report: StepProfile, seconds: float) -> float:
    """On a GPU, what the host does costs only what the GPU waits for it."""
    if report.traits.device != "cuda":
        return seconds
    waits_s = report.seconds("host") + report.seconds("launch") + report.seconds("sync")
    return min(seconds, waits_s)


def _because(report: StepProfile, seconds: float) -> str:
    share = percent_text(min(1.0, seconds / report.mean_step_s), 0)
    return f"these lines take {seconds_text(seconds)} of a step, {share} of it"


def _printing(report: StepProfile, lines: Sequence[LineTime]) -> Iterator[Advice]:
    if _is_worth(report, lines):
        seconds = _capped(report, _seconds(lines))
        yield Advice(
            id="printing",
            problem="Every step prints or logs.",
            because=_because(report, _seconds(lines)),
            fix="print every hundredth step only",
            speedup=speedup_of(report.mean_step_s, seconds, doubt=0.15),
            basis="if these lines took no time",
            lines=tuple(lines[:_MOST_LINES]),
        )


def _synchronizing(report: StepProfile, lines: Sequence[LineTime]) -> Iterator[Advice]:
    if _is_worth(report, lines):
        seconds = _seconds(lines)
        # Of values that are only read, nothing is backward.
        if len(_matching(lines, _SYNCS)) < len(lines):
            seconds = _with_backward(report, lines)
        seconds = _capped(report, seconds)
        count = report.traits.num_syncs
        times = f"; values are read {counted_text(round(count), 'time')} a step" if count else ""
        yield Advice(
            id="synchronization",
            problem="The step reads values of tensors, and waits for each of them.",
            because=_because(report, _seconds(lines)) + times,
            fix="keep them as tensors: compare with torch.where, add up without .item(), and read"
            " sums every hundredth step",
            speedup=speedup_of(report.mean_step_s, seconds, doubt=0.15),
            basis="if these lines took no time",
            lines=tuple(lines[:_MOST_LINES]),
        )


def _copying(report: StepProfile, lines: Sequence[LineTime]) -> Iterator[Advice]:
    if _is_worth(report, lines):
        # What needs a gradient is copied backward as well.
        has_gradient = any(
            _COPIED_BACKWARD.search(one.name) and one.layer in ("", OUTSIDE)
            for one in report.operators
        )
        seconds = _with_backward(report, lines) if has_gradient else _seconds(lines)
        seconds = _capped(report, seconds)
        yield Advice(
            id="needless-copies",
            problem="Tensors are copied or converted in every step.",
            because=_because(report, _seconds(lines)),
            fix="leave out copies that nothing changes; convert data once, before training",
            speedup=speedup_of(report.mean_step_s, seconds, doubt=0.3),
            basis="if these lines, and their part of the backward pass, took no time",
            lines=tuple(lines[:_MOST_LINES]),
        )


def _with_backward(report: StepProfile, lines: Sequence[LineTime]) -> float:
    """Seconds of lines, and of their part of the backward pass.

    As large a part of what both passes take outside of the model, as they are of the lines there;
    of lines in the model, or where that was not measured, of both passes as they are of forward.
    """
    seconds, forward_s = _seconds(lines), report.phases_s.get("forward", 0.0)
    model = next((one for one in report.probes if one.advice == MODEL_ALONE), None)
    is_outside = not any(_is_in_model(line) for line in lines)
    if is_outside and model is not None and model.ratio is not None:
        outside_s = model.affected_s * max(0.0, 1 - model.ratio.middle)
        others_s = _seconds([
            line for line in report.lines if line.part == "step" and not _is_in_model(line)
        ])  # fmt: skip
        return max(seconds, outside_s * min(1.0, seconds / others_s)) if others_s else seconds
    if forward_s <= 0:
        return seconds
    share = min(1.0, seconds / forward_s)
    return seconds + share * report.phases_s.get("backward", 0.0)


def _is_in_model(line: LineTime) -> bool:
    return line.is_in_model or _is_call_of_layer(line)


def _is_call_of_layer(line: LineTime) -> bool:
    return line.through.startswith(_LAYERS)


def _looping(report: StepProfile, lines: Sequence[LineTime]) -> Iterator[Advice]:
    loops: dict[tuple[str, int], list[LineTime]] = defaultdict(list)
    for line in lines:
        # A loop over layers calls each of them once: it is not slow for being a loop.
        if line.loop is not None and not _is_call_of_layer(line):
            loops[line.file, line.loop].append(line)
    if not loops:
        return
    worst = max(loops.values(), key=_seconds)
    worst = [*worst, *_gathering(lines, worst)]
    if not _is_worth(report, worst) or not _has_small_operators(report):
        return
    seconds = _capped(report, _with_backward(report, worst))
    # Of small operators, calling them is most of the time: all at once take as long as one.
    count = _iterations(worst)
    left = _left_of_loop(report, count)
    times = f"; the loop's body runs {counted_text(count, 'time')} a step" if count else ""
    share = percent_text(left, 0 if left >= 0.1 else 1)
    yield Advice(
        id="python-loop",
        problem="A loop in Python calls operators on small parts of a batch.",
        because=_because(report, _seconds(worst)) + times,
        fix="compute all of them at once: batched operators, scatter_add, masks",
        speedup=speedup_of(report.mean_step_s, (1 - left) * seconds, doubt=_DOUBT_OF_LOOP),
        basis=f"if the loop, with its part of the backward pass, took {share} of its time",
        lines=tuple(worst[:_MOST_LINES]),
    )


def _gathering(lines: Sequence[LineTime], loop: Sequence[LineTime]) -> list[LineTime]:
    """The next line after a loop, if it puts together what was computed there."""
    last = max(loop, key=lambda line: line.line)
    later = [line for line in lines if line.file == last.file and line.function == last.function]
    later = [line for line in later if 0 < line.line - last.line <= _MOST_LINES_BETWEEN]
    following = min(later, key=lambda line: line.line, default=None)
    if following is None or following.loop == last.loop or _is_in_model(following):
        return []
    return [following] if _GATHERS.search(following.text) else []


def _iterations(loop: Sequence[LineTime]) -> int | None:
    """How often the body of a loop runs in a step; None if that was not counted."""
    inside = [line for line in loop if line.loop is not None]
    # The line of `for` itself runs once more.
    inside = [line for line in inside if line.line != line.loop] or inside
    return max((line.count for line in inside if line.count is not None), default=None)


def _left_of_loop(report: StepProfile, count: int | None) -> float:
    """The share of a loop's time that the same work takes if each micro-batch is computed at once.

    Only what it takes to call operators is saved.
    """
    num_operators = report.traits.num_operators
    if not count or not num_operators:
        return _LEFT_OF_LOOP
    passes_s = sum(report.phases_s.get(name, 0.0) for name in ("forward", "backward"))
    computing = 1 - _CALL_S * num_operators / (passes_s or report.mean_step_s)
    size = report.traits.batch_size or 1
    num_micro_batches = -(-size // int(report.recipe.get("micro_batch_size", size)))
    return min(1.0, max(num_micro_batches / count, computing))


def _has_small_operators(report: StepProfile) -> bool:
    count = report.traits.num_operators
    passes_s = sum(report.phases_s.get(name, 0.0) for name in ("forward", "backward"))
    return bool(count) and (passes_s or report.mean_step_s) / (count or 1) < 1e-4


def _other_python(report: StepProfile, lines: Sequence[LineTime]) -> Iterator[Advice]:
    """Python that is neither a call of a layer nor in a loop, where the host's work is much."""
    own = [line for line in lines if not line.through.startswith("torch/")]
    if not own or report.share("host") < 0.15:
        return
    seconds = _capped(report, min(own[0].seconds, report.seconds("host")))
    if seconds < 2 * _LEAST_SHARE * report.mean_step_s:
        return
    yield Advice(
        id="slow-python",
        problem="A line of Python takes much of the step.",
        because=_because(report, own[0].seconds),
        fix="do its work before training, or with operators of torch",
        speedup=speedup_of(report.mean_step_s, seconds, doubt=0.3),
        basis="if this line took no time",
        lines=(own[0],),
    )
