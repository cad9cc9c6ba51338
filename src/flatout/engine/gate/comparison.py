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
    names: Sequence[str], found: Gradients, eager: Gradients, reference: Gradients
) -> Errors:
    """Errors of a candidate's and the eager step's gradients, together and one by one."""
    whole = _norm(reference)
    # A tensor whose exact gradient is nearly zero is measured against this share of all gradients:
    # its own size is rounding, and any error would be infinite. Far below what fp32 resolves.
    least = 1e-12 * whole
    parts = [
        TensorError(
            name=name,
            error=math.inf if (one is None) != (other is None) else _error(one, exact, least),
            eager=_error(other, exact, least),
        )
        for name, one, other, exact in zip(names, found, eager, reference, strict=True)
    ]
    return Errors(
        error=_distance(found, reference) / whole if whole > 0 else _norm(found),
        eager=_distance(eager, reference) / whole if whole > 0 else _norm(eager),
        parts=tuple(parts),
    )


def _error(one: Tensor | None, exact: Tensor | None, least: float) -> float:
    """Relative to the exact one; infinite where that is zero and the other is not."""
    if one is not None and exact is not None and one.shape != exact.shape:
        return math.inf
    distance = _distance([one], [exact])
    scale = max(_norm([exact]), least)
    if distance == 0:
        return 0.0
    return distance / scale if scale > 0 else math.inf


def _distance(one: Gradients, other: Gradients) -> float:
    squares = 0.0
    for a, b in zip(one, other, strict=True):
        if a is not None or b is not None:
            difference = a if b is None else b if a is None else a - b
            squares += float(difference.square().sum())  # type: ignore[union-attr]
    return math.sqrt(squares)


def _norm(tensors: Iterable[Tensor | None]) -> float:
    return math.sqrt(sum(float(one.square().sum()) for one in tensors if one is not None))


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
    bag: Bag, known: list[list[Tensor | None]], found: Gradients, clip_norm: float | None
) -> Check:
    """Whether the optimizer gets the whole batch's gradients, clipped once."""
    expected: Gradients = [None] * len(bag.members)
    for gradients in known:
        factor = 1.0 if clip_norm is None else min(1.0, clip_norm / _norm(gradients))
        expected = [
            before if one is None else one * factor + (0 if before is None else before)
            for one, before in zip(gradients, expected, strict=True)
        ]
    allowed = max(5e-5, *(_ROUNDINGS * _resolution(member) for member in bag.members))
    parts = [
        TensorError(name=name, error=_error(one, exact, 0.0), eager=0.0)
        for name, one, exact in zip(bag.names, found, expected, strict=True)
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


def optimizer_checks(bag: Bag, found: BagRun, plain: BagRun, exact: BagRun) -> list[Check]:
    """Whether weights and states are where fp64 brings them, as nearly as the plain step's are."""
    weights, states = [], []
    for index, name in enumerate(bag.names):
        began = bag.members[index].detach().double()
        way = _distance([exact.weights[index]], [began])
        roundings = _ROUNDINGS * _resolution(bag.members[index]) * _norm([began])
        scale = [_over(_distance([run.weights[index]], [exact.weights[index]]), way)
                 for run in (found, plain)]  # fmt: skip
        eager = max(scale[1], roundings / 4 / way if way > 0 else 0.0)
        weights.append(TensorError(name=name, error=scale[0], eager=eager))
        states += _state_parts(name, found.states[index], plain.states[index], exact.states[index])
    counts = [
        _numbers(run.states) for run in (found, plain)
    ]  # fmt: skip
    checks = [
        ratio_check("optimizer", weights, 1e-6, "relative error after four updates"),
        ratio_check("optimizer state", states, 2e-6, "relative error"),
    ]
    if counts[0] != counts[1]:
        differing = next(
            f"{one} instead of {other}"
            for one, other in itertools.zip_longest(*counts)
            if one != other
        )
        checks.append(Check(name="step count", is_passed=False, note=differing))
    return checks


def _over(distance: float, way: float) -> float:
    if distance == 0:
        return 0.0
    return distance / way if way > 0 else math.inf


def _state_parts(
    name: str, found: dict[str, Any], plain: dict[str, Any], exact: dict[str, Any]
) -> list[TensorError]:
    parts = []
    for key, value in exact.items():
        other = plain.get(key)
        if not _is_numbers(value) or not _is_numbers(other):
            continue
        one = found.get(key)
        parts.append(
            TensorError(
                name=f"{key} of {name}",
                error=_error(one, value, 0.0) if _is_numbers(one) else math.inf,
                eager=_error(other, value, 0.0),
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
    found: Curve, plain: Curve, precision: Precision, eager: Callable[[], Curve]
) -> list[Check]:
    """Whether whole updates go the plain step's way, within the precision's band.

    eager: the plain step's curve at the candidate's precision. It is only asked for outside the
    band: some optimizers make much of a rounding, and then the eager step's is as far away.
    """
    band = BANDS[precision]
    difference = curve_difference(found.losses, plain.losses)
    allowed = band.loss
    if not within(difference, allowed):
        rounding = curve_difference(eager().losses, plain.losses)
        allowed = max(allowed, min(LARGEST_RATIO * rounding, _LARGEST_LOSS_DIFFERENCE))
    checks = [
        _check("loss curve", difference, allowed, "relative difference of the losses"),
        _rates_check(found, plain),
        _updates_check(found, plain, band.update),
        _check("lost updates", found.unmoved - plain.unmoved, _LOST_SHARE,
               "additional share of weights that did not change"),
    ]  # fmt: skip
    if any(plain.buffers) or any(found.buffers):
        checks.append(_buffers_check(found, plain, band.buffer))
    if plain.average_error is not None:
        error = math.inf if found.average_error is None else found.average_error
        what = "relative error of the averaged weights"
        checks.append(_check("moving average", error, _AVERAGE_ERROR, what))
    if found.counts != plain.counts:
        note = (
            f"the optimizer counts {found.counts[-1:]} steps, that of the plain loop "
            f"{plain.counts[-1:]}"
        )
        checks.append(Check(name="step count", is_passed=False, note=note))
    return checks


def _check(name: str, measured: float, allowed: float, note: str) -> Check:
    return Check(
        name=name, is_passed=within(measured, allowed), measured=measured, allowed=allowed,
        note=note,
    )  # fmt: skip


def _rates_check(found: Curve, plain: Curve) -> Check:
    for number, (one, other) in enumerate(itertools.zip_longest(found.rates, plain.rates), start=1):
        if one != other:
            note = f"update {number} used {one}; the schedule gives {other}"
            return Check(name="learning rate", is_passed=False, note=note)
    return Check(name="learning rate", is_passed=True)


def _updates_check(found: Curve, plain: Curve, allowed: float) -> Check:
    """Every update goes as far as the plain one, and moves the parameters that it moves."""
    worst, note = 1.0, "factor by which an update is longer or shorter"
    for ways, plain_ways in zip(found.ways, plain.ways, strict=False):
        ratio = ways_ratio(math.hypot(*ways), math.hypot(*plain_ways))
        worst = max(worst, ratio)
        if len(ways) != len(plain_ways):
            return Check(name="updates", is_passed=False, note="updates different parameters")
        largest = max(plain_ways, default=0.0)
        for one, other in zip(ways, plain_ways, strict=True):
            if one == 0 and other > _SMALL_WAY * largest:
                worst, note = math.inf, "a parameter is not updated"
    return _check("updates", worst, allowed, note)


def _buffers_check(found: Curve, plain: Curve, allowed: float) -> Check:
    """Equal after the first update; after the last, moved where the plain step's are.

    By then the weights differ by more than rounding: an optimizer that goes by a gradient's sign
    moves a bias before BatchNorm, whose gradient is zero, by chance.
    """
    name = "running statistics"
    worst, worst_key = 0.0, "none"
    first, last = ({}, {}) if not found.buffers else (found.buffers[0], found.buffers[-1])
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


def _buffer_error(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None or one.shape != other.shape:
        return math.inf
    if torch.equal(one, other):
        return 0.0
    if not (one.is_floating_point() and other.is_floating_point()):
        return math.inf
    if not bool(torch.isfinite(one).eq(torch.isfinite(other)).all()):
        return math.inf
    finite = torch.isfinite(other)
    return _error(one[finite].double(), other[finite].double(), 1e-6)


def inputs_check(found: list[Tensor], written: list[Tensor]) -> Check:
    """Whether what a step changes of its batch, if anything, is what it should change."""
    name = "inputs"
    if len(found) != len(written):
        return Check(name=name, is_passed=False, note="the number of tensors in a batch changed")
    errors = [_buffer_error(one, other) for one, other in zip(found, written, strict=True)]
    what = "relative difference of the batch after the step"
    return _check(name, max(errors, default=0.0), BANDS["bf16"].buffer, what)


def masks_check(found: list[Gradients], plain: list[Gradients]) -> Check:
    """Whether draws differ between steps and repeat when the generators are put back.

    Args:
        found: gradients of one batch: of a step, of the next, and again from the first's state.
        plain: the same of the plain step.
    """
    usual = _distance(plain[1], plain[0]) / (_norm(plain[0]) or 1.0)
    if usual < _NOTHING_DRAWN:
        return Check(name="masks", is_passed=True, note="the step draws no random numbers")
    scale = _norm(found[0]) or 1.0
    between = _distance(found[1], found[0]) / scale
    again = _distance(found[2], found[0]) / scale
    if not between > _SAME_SHARE * usual:
        note = "random draws do not differ from step to step"
        return Check(name="masks", is_passed=False, measured=between, allowed=usual, note=note)
    return _check(
        "masks", again, _SAME_SHARE * usual, "relative difference when random draws are repeated"
    )


def data_check(found: list[Epoch], plain: list[Epoch]) -> Check:
    """Whether each sample comes once in every epoch, in the plain order, with the plain draws."""
    for (sizes, rows), (plain_sizes, plain_rows) in zip(found, plain, strict=True):
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


def samples_check(found: list[Tensor], plain: list[list[Tensor]], num_workers: int) -> Check:
    """Whether the real samples are the plain ones, bit for bit.

    plain: read twice. Where that gives others, the data draws from an unseeded generator;
    several workers would each have a copy of it, and draw the same.
    """
    name = "samples"
    if not _is_same(plain[0], plain[1]):
        note = "the data draws from its own random generator; each worker would have a copy of it"
        return Check(name=name, is_passed=num_workers <= 1, note=note)
    if _is_same(found, plain[0]):
        return Check(name=name, is_passed=True)
    note = "samples differ from those of the plain loop"
    return Check(name=name, is_passed=False, note=note)


def _is_same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and _bits_equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.equal(one.nan_to_num(), other.nan_to_num())
