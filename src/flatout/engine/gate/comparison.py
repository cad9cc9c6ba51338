"""Comparison of two runs' results: tensors go in, checks come out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from flatout.engine.gate.fakes import Bag
from flatout.engine.gate.reference import Gradients
from flatout.engine.gate.runs import BagRun, Curve
from flatout.schema.recipe import Precision
from flatout.schema.tuning import Check
from flatout.schema.units import counted_text
from flatout.tune.gate import (
    BANDS,
    LARGEST_RATIO,
    Errors,
    TensorError,
    curve_difference,
    ratio_check,
    ways_ratio,
    within,
)

# A few roundings of each number in a weight's own format.
_ROUNDINGS = 4.0
# Of the way of the parameters that moved most: what moves less may do so by rounding alone.
_SMALL_WAY = 1e-3
# Draws are the same if they differ by less than this share of what draws usually differ.
_SAME_SHARE = 0.1
_NOTHING_DRAWN = 1e-4
# More of the weights than in the plain step may be left where they were, by so much.
_LOST_SHARE = 0.02
_AVERAGE_ERROR = 0.05
# A precision whose losses are farther away than this trains something else.
_LARGEST_LOSS_DIFFERENCE = 0.2

Epoch = tuple[list[int], Tensor]


def gradient_errors(
    names: Sequence[str], candidate: Gradients, eager: Gradients, reference: Gradients
) -> Errors:
    """Errors of a candidate's and the eager step's gradients, together and one by one."""
    whole = _norm(reference)
    # A tensor whose exact gradient is nearly zero is measured against this share of all gradients:
    # its own size is rounding, and any error would be infinite. Far below what fp32 resolves.
    least = 1e-12 * whole
    parts = [
        TensorError(
            name=name,
            error=math.inf
            if (gradient is None) != (eager_gradient is None)
            else _error(gradient, exact, least),
            eager=_error(eager_gradient, exact, least),
        )
        for name, gradient, eager_gradient, exact in zip(
            names, candidate, eager, reference, strict=True
        )
    ]
    return Errors(
        error=_distance(candidate, reference) / whole if whole > 0 else _norm(candidate),
        eager=_distance(eager, reference) / whole if whole > 0 else _norm(eager),
        parts=tuple(parts),
    )


def _error(tensor: Tensor | None, exact: Tensor | None, least: float) -> float:
    """Relative to the exact one; infinite where that is zero and the other is not."""
    if tensor is not None and exact is not None and tensor.shape != exact.shape:
        return math.inf
    distance = _distance([tensor], [exact])
    scale = max(_norm([exact]), least)
    if distance == 0:
        return 0.0
    return distance / scale if scale > 0 else math.inf


def _distance(first: Gradients, second: Gradients) -> float:
    squares = 0.0
    for a, b in zip(first, second, strict=True):
        if a is not None or b is not None:
            difference = a if b is None else b if a is None else a - b
            squares += float(difference.square().sum())  # type: ignore[union-attr]
    return math.sqrt(squares)


def _norm(tensors: Iterable[Tensor | None]) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors if tensor is not None))


def known_gradients(bag: Bag, rows: Tensor, *, is_sum: bool) -> list[list[Tensor | None]]:
    """The bag's gradients of each update, from the weights and counts of its samples."""
    updates = []
    for number in range(int(rows[-1, 0]) + 1):
        samples = rows[rows[:, 0] == number].double()
        factor = samples[:, 1].sum() / (samples[:, 2].sum() if is_sum else len(samples))
        updates.append([
            gradient[number].cpu().double() * factor if member.requires_grad else None
            for member, gradient in zip(bag.members, bag.gradients, strict=True)
        ])  # fmt: skip
    return updates


def accumulation_check(
    bag: Bag, known: list[list[Tensor | None]], candidate: Gradients, clip_norm: float | None
) -> Check:
    """Whether the optimizer gets the whole batch's gradients, clipped once."""
    expected: Gradients = [None] * len(bag.members)
    for gradients in known:
        factor = 1.0 if clip_norm is None else min(1.0, clip_norm / _norm(gradients))
        expected = [
            before if gradient is None else gradient * factor + (0 if before is None else before)
            for gradient, before in zip(gradients, expected, strict=True)
        ]
    allowed = max(5e-5, *(_ROUNDINGS * _resolution(member) for member in bag.members))
    parts = [
        TensorError(name=name, error=_error(gradient, exact, 0.0), eager=0.0)
        for name, gradient, exact in zip(bag.names, candidate, expected, strict=True)
    ]
    worst = max(parts, key=lambda part: part.error)
    return Check(
        name="accumulation",
        is_passed=within(worst.error, allowed),
        measured=worst.error,
        allowed=allowed,
        note=f"relative error of the gradient of {worst.name}"
        + (", clipped" if clip_norm is not None else ""),
    )


def smallest_norm(known: list[list[Tensor | None]]) -> float:
    """The smallest norm that the gradients of an update have."""
    return min(_norm(gradients) for gradients in known)


def _resolution(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def optimizer_checks(bag: Bag, candidate: BagRun, plain: BagRun, exact: BagRun) -> list[Check]:
    """Whether weights and states are where fp64 brings them, as nearly as the plain step's are."""
    weights, states = [], []
    for index, name in enumerate(bag.names):
        began = bag.members[index].detach().double()
        way = _distance([exact.weights[index]], [began])
        roundings = _ROUNDINGS * _resolution(bag.members[index]) * _norm([began])
        scale = [_over(_distance([run.weights[index]], [exact.weights[index]]), way)
                 for run in (candidate, plain)]  # fmt: skip
        eager = max(scale[1], roundings / 4 / way if way > 0 else 0.0)
        weights.append(TensorError(name=name, error=scale[0], eager=eager))
        states += _state_parts(
            name, candidate.states[index], plain.states[index], exact.states[index]
        )
    counts = [
        _numbers(run.states) for run in (candidate, plain)
    ]  # fmt: skip
    checks = [
        ratio_check("optimizer", weights, 1e-6, "relative error after four updates"),
        ratio_check("optimizer state", states, 2e-6, "relative error"),
    ]
    if counts[0] != counts[1]:
        differing = next(
            f"{candidate_count} instead of {plain_count}"
            for candidate_count, plain_count in itertools.zip_longest(*counts)
            if candidate_count != plain_count
        )
        checks.append(Check(name="step count", is_passed=False, note=differing))
    return checks


def _over(distance: float, way: float) -> float:
    if distance == 0:
        return 0.0
    return distance / way if way > 0 else math.inf


def _state_parts(
    name: str, candidate: dict[str, Any], plain: dict[str, Any], exact: dict[str, Any]
) -> list[TensorError]:
    parts = []
    for key, value in exact.items():
        plain_value = plain.get(key)
        if not _is_numbers(value) or not _is_numbers(plain_value):
            continue
        candidate_value = candidate.get(key)
        parts.append(
            TensorError(
                name=f"{key} of {name}",
                error=_error(candidate_value, value, 0.0)
                if _is_numbers(candidate_value)
                else math.inf,
                eager=_error(plain_value, value, 0.0),
            )
        )
    return parts


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _numbers(states: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Step counts and the like: what is a single number."""
    return [
        (key, float(value))
        for state in states
        for key, value in sorted(state.items())
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0)
    ]


def curve_checks(
    candidate: Curve, plain: Curve, precision: Precision, eager: Callable[[], Curve]
) -> list[Check]:
    """Whether whole updates go the plain step's way, within the precision's band.

    eager: the plain step's curve at the candidate's precision. It is only computed outside the
    band: some optimizers make much of a rounding, and then the eager step's is as far away.
    """
    band = BANDS[precision]
    difference = curve_difference(candidate.losses, plain.losses)
    allowed = band.loss
    if not within(difference, allowed):
        rounding = curve_difference(eager().losses, plain.losses)
        allowed = max(allowed, min(LARGEST_RATIO * rounding, _LARGEST_LOSS_DIFFERENCE))
    checks = [
        _check("loss curve", difference, allowed, "relative difference of the losses"),
        _rates_check(candidate, plain),
        _updates_check(candidate, plain, band.update),
        _check("lost updates", candidate.unmoved - plain.unmoved, _LOST_SHARE,
               "additional share of weights that did not change"),
    ]  # fmt: skip
    if any(plain.buffers) or any(candidate.buffers):
        checks.append(_buffers_check(candidate, plain, band.buffer))
    if plain.average_error is not None:
        error = math.inf if candidate.average_error is None else candidate.average_error
        what = "relative error of the averaged weights"
        checks.append(_check("moving average", error, _AVERAGE_ERROR, what))
    if candidate.counts != plain.counts:
        note = (
            f"the optimizer counts {candidate.counts[-1:]} steps, that of the plain loop "
            f"{plain.counts[-1:]}"
        )
        checks.append(Check(name="step count", is_passed=False, note=note))
    return checks


def _check(name: str, measured: float, allowed: float, note: str) -> Check:
    return Check(
        name=name, is_passed=within(measured, allowed), measured=measured, allowed=allowed,
        note=note,
    )  # fmt: skip


def _rates_check(candidate: Curve, plain: Curve) -> Check:
    for number, (rates, plain_rates) in enumerate(
        itertools.zip_longest(candidate.rates, plain.rates), start=1
    ):
        if rates != plain_rates:
            note = f"update {number} used {rates}; the schedule gives {plain_rates}"
            return Check(name="learning rate", is_passed=False, note=note)
    return Check(name="learning rate", is_passed=True)


def _updates_check(candidate: Curve, plain: Curve, allowed: float) -> Check:
    """Every update goes as far as the plain one, and moves the parameters that it moves."""
    worst, note = 1.0, "factor by which an update is longer or shorter"
    for ways, plain_ways in zip(candidate.ways, plain.ways, strict=False):
        ratio = ways_ratio(math.hypot(*ways), math.hypot(*plain_ways))
        worst = max(worst, ratio)
        if len(ways) != len(plain_ways):
            return Check(name="updates", is_passed=False, note="updates different parameters")
        largest = max(plain_ways, default=0.0)
        for way, plain_way in zip(ways, plain_ways, strict=True):
            if way == 0 and plain_way > _SMALL_WAY * largest:
                worst, note = math.inf, "a parameter is not updated"
    return _check("updates", worst, allowed, note)


def _buffers_check(candidate: Curve, plain: Curve, allowed: float) -> Check:
    """Equal after the first update; after the last, moved where the plain step's are.

    By then the weights differ by more than rounding: an optimizer that goes by a gradient's sign
    moves a bias before BatchNorm, whose gradient is zero, by chance.
    """
    name = "running statistics"
    worst, worst_key = 0.0, "none"
    first, last = (
        ({}, {}) if not candidate.buffers else (candidate.buffers[0], candidate.buffers[-1])
    )
    plain_first, plain_last = plain.buffers[0], plain.buffers[-1]
    for key in {**plain_first, **first}:
        error = _buffer_error(first.get(key), plain_first.get(key))
        if error > worst:
            worst, worst_key = error, key
        if key not in plain_last or key not in last:
            continue
        is_moved = not torch.equal(plain_last[key], plain_first[key])
        if is_moved and torch.equal(last[key], first[key]):
            return Check(name=name, is_passed=False, note=f"{key} is not updated")
        is_whole = not last[key].is_floating_point()
        if is_whole and not torch.equal(last[key], plain_last[key]):
            return Check(name=name, is_passed=False, note=f"{key} differs")
    return _check(name, worst, allowed, f"relative difference of {worst_key}")


def _buffer_error(buffer: Tensor | None, plain_buffer: Tensor | None) -> float:
    if buffer is None or plain_buffer is None or buffer.shape != plain_buffer.shape:
        return math.inf
    if torch.equal(buffer, plain_buffer):
        return 0.0
    if not (buffer.is_floating_point() and plain_buffer.is_floating_point()):
        return math.inf
    if not bool(torch.isfinite(buffer).eq(torch.isfinite(plain_buffer)).all()):
        return math.inf
    finite = torch.isfinite(plain_buffer)
    return _error(buffer[finite].double(), plain_buffer[finite].double(), 1e-6)


def inputs_check(candidate: list[Tensor], written: list[Tensor]) -> Check:
    """Whether what a step changes of its batch, if anything, is what it should change."""
    name = "inputs"
    if len(candidate) != len(written):
        return Check(name=name, is_passed=False, note="the number of tensors in a batch changed")
    errors = [
        _buffer_error(tensor, expected) for tensor, expected in zip(candidate, written, strict=True)
    ]
    what = "relative difference of the batch after the step"
    return _check(name, max(errors, default=0.0), BANDS["bf16"].buffer, what)


def masks_check(candidate: list[Gradients], plain: list[Gradients]) -> Check:
    """Whether draws differ between steps and repeat when the generators are put back.

    Args:
        candidate: gradients of one batch: of a step, of the next, and again from the first's state.
        plain: the same of the plain step.
    """
    usual = _distance(plain[1], plain[0]) / (_norm(plain[0]) or 1.0)
    if usual < _NOTHING_DRAWN:
        return Check(name="masks", is_passed=True, note="the step draws no random numbers")
    scale = _norm(candidate[0]) or 1.0
    between = _distance(candidate[1], candidate[0]) / scale
    again = _distance(candidate[2], candidate[0]) / scale
    if not between > _SAME_SHARE * usual:
        note = "random draws do not differ from step to step"
        return Check(name="masks", is_passed=False, measured=between, allowed=usual, note=note)
    return _check(
        "masks", again, _SAME_SHARE * usual, "relative difference when random draws are repeated"
    )


def data_check(candidate: list[Epoch], plain: list[Epoch]) -> Check:
    """Whether each sample comes once in every epoch, in the plain order, with the plain draws."""
    for (sizes, rows), (plain_sizes, plain_rows) in zip(candidate, plain, strict=True):
        note = None
        indices = rows[:, 0]
        if -1 in sizes:
            note = "a micro-batch does not have the number of samples it reports"
        elif len(indices.unique()) < len(indices):
            twice = counted_text(len(indices) - len(indices.unique()), "sample")
            note = f"read more than once in an epoch: {twice}"
        elif len(indices) != len(plain_rows) or sizes != plain_sizes:
            note = f"an epoch has updates of {sizes} samples, in the plain loop {plain_sizes}"
        elif not torch.equal(indices, plain_rows[:, 0]):
            note = "samples come in a different order"
        elif not torch.equal(indices, rows[:, 1]):
            note = "inputs have the targets of other samples"
        elif not torch.equal(rows, plain_rows):
            note = "augmentation draws different random numbers than the plain loop"
        elif any(_is_repeated(rows[:, column]) for column in range(2, rows.shape[1])):
            note = "augmentation draws the same random numbers for different samples"
        if note is not None:
            return Check(name="data", is_passed=False, note=note)
    return Check(name="data", is_passed=True, note="each sample once, in the plain loop's order")


def _is_repeated(draws: Tensor) -> bool:
    return bool((draws != 0).any()) and len(draws.unique()) < len(draws)


def samples_check(candidate: list[Tensor], plain: list[list[Tensor]], num_workers: int) -> Check:
    """Whether the real samples are the plain ones, bit for bit.

    plain: read twice. Where that gives others, the data draws from an unseeded generator;
    several workers would each have a copy of it, and draw the same.
    """
    name = "samples"
    if not _is_same(plain[0], plain[1]):
        note = "the data draws from its own random generator; each worker would have a copy of it"
        return Check(name=name, is_passed=num_workers <= 1, note=note)
    if _is_same(candidate, plain[0]):
        return Check(name=name, is_passed=True)
    note = "samples differ from those of the plain loop"
    return Check(name=name, is_passed=False, note=note)


def _is_same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and _bits_equal(a, b)
        for a, b in zip(first, second, strict=True)
    )


def _bits_equal(first: Tensor, second: Tensor) -> bool:
    if not first.is_floating_point():
        return torch.equal(first, second)
    return torch.equal(first.nan_to_num(), second.nan_to_num())
