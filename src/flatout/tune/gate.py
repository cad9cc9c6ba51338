"""The gate's checks of a candidate, and its tolerances: arithmetic without tensors.

Differences are relative: 0.1 is a tenth of what it is compared with. The bands were measured on
the built-ins (LOG.md, "how far a right step is from the plain one").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from flatout.schema.recipe import Precision
from flatout.schema.tuning import Check

CheckName = Literal["gradients", "accumulation", "optimizer", "curve", "masks", "replays", "data"]

_OF_THE_STEP: frozenset[CheckName] = frozenset(
    ("gradients", "accumulation", "optimizer", "curve", "masks")
)
_ALL: frozenset[CheckName] = _OF_THE_STEP | {"data"}
_OF_THE_DATA: frozenset[CheckName] = frozenset(("data",))

# A field that is not here concerns everything.
_CONCERNED: dict[str, frozenset[CheckName]] = {
    "precision": _OF_THE_STEP,
    "memory_format": _OF_THE_STEP,
    "optimizer_implementation": frozenset(("accumulation", "optimizer", "curve")),
    "attention": frozenset(("gradients", "curve", "masks")),
    "num_threads": frozenset(("gradients",)),
    # Cores of two kinds should compute the same: asked all the same.
    "cpu_affinity": frozenset(("gradients",)),
    # New pages are zeros; what is kept is not, should a model read unwritten memory.
    "allocator": frozenset(("gradients",)),
    "deterministic": frozenset(("gradients", "masks")),
    "benchmark": frozenset(("gradients", "curve")),
    # The other checks run the same step without graphs.
    "capture": frozenset(("replays",)),
    "steps_per_launch": frozenset(("replays",)),
    "data_path": _OF_THE_DATA,
    "loader_workers": _OF_THE_DATA,
    "loader_prefetch": _OF_THE_DATA,
    "loader_pin_memory": _OF_THE_DATA,
    "loader_persistent": _OF_THE_DATA,
    "checkpoint_every": frozenset(),
    # Compiled code is compared with the same step uncompiled: engine/gate/compiled.py.
    "compiled": frozenset(),
    "compile_mode": frozenset(),
}

# A candidate's error, compared with that of the eager step at the same precision.
LARGEST_RATIO = 4.0


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """The tolerance of a right step in some precision.

    gradient: error of all gradients together that is always allowed. parameter: the same for one
    parameter's. loss: of a loss. buffer: of a running statistic. update: by what factor a
    parameter tensor's way may be longer or shorter.
    """

    gradient: float
    parameter: float
    loss: float
    buffer: float
    update: float


BANDS: dict[Precision, Band] = {
    "fp32": Band(gradient=2e-5, parameter=5e-3, loss=1e-4, buffer=1e-3, update=1.5),
    "tf32": Band(gradient=2e-3, parameter=0.2, loss=5e-3, buffer=2e-2, update=2.0),
    "bf16": Band(gradient=1e-2, parameter=0.4, loss=2e-2, buffer=5e-2, update=2.0),
    "fp16": Band(gradient=2e-3, parameter=0.2, loss=5e-3, buffer=2e-2, update=2.0),
    # Roundings of 3 bits forward and of 2 backward, as they come together in a few layers.
    "float8": Band(gradient=1e-1, parameter=0.6, loss=5e-2, buffer=5e-2, update=2.0),
}

_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "tf32", "bf16", "float8")


def coarser(first: Precision, second: Precision) -> Precision:
    """The one of two precisions whose results may differ more."""
    return max(first, second, key=_PRECISIONS.index)


def checks_for(changed: Iterable[str]) -> frozenset[CheckName]:
    """The questions for a recipe in which these fields were changed."""
    checks: frozenset[CheckName] = frozenset()
    for name in changed:
        checks |= _CONCERNED.get(name, _ALL)
    return checks


class TensorError(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors of one tensor: the candidate's, and the eager step's at its precision."""

    name: str
    error: float
    eager: float


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors to a reference: of all tensors together, and of each.

    is_double: the reference was computed in fp64; else in fp32, and twice as much is allowed.
    """

    error: float
    eager: float
    parts: tuple[TensorError, ...] = ()
    is_double: bool = True


def gradient_check(errors: Errors, precision: Precision, note: str | None = None) -> Check:
    """Whether gradients are as close to the reference as rounding allows the eager step to be.

    The ratio of the errors of one small tensor is nearly arbitrary: both are a few roundings. So
    the ratio is checked for all gradients together, and each tensor only for gross errors.
    """
    band = BANDS[precision]
    slack = 1.0 if errors.is_double else 2.0
    if not errors.is_double:
        no_double = "the model does not run in fp64: compared with fp32, with twice the tolerance"
        note = _joined(no_double, note)
    allowed = slack * LARGEST_RATIO * max(errors.eager, band.gradient / LARGEST_RATIO)
    worst = worst_part(errors.parts, slack * band.parameter)
    if worst is not None and within(errors.error, allowed):
        most = slack * max(band.parameter, LARGEST_RATIO * worst.eager)
        return Check(
            name="gradients",
            is_passed=False,
            measured=worst.error,
            allowed=most,
            note=_joined(f"relative error of {worst.name}", note),
        )
    return Check(
        name="gradients",
        is_passed=within(errors.error, allowed),
        measured=errors.error,
        allowed=allowed,
        note=_joined(f"relative error; that of the eager step is {errors.eager:.1e}", note),
    )


def worst_part(parts: Iterable[TensorError], band: float) -> TensorError | None:
    """The tensor that is farthest outside what is allowed for one, if any is.

    Where the eager step itself is nearly all rounding (a bias before BatchNorm, whose gradient is
    zero), nothing is checked.
    """
    outside = [
        part
        for part in parts
        if part.eager <= band and not within(part.error, max(band, LARGEST_RATIO * part.eager))
    ]
    return max(outside, key=lambda part: _or_infinite(part.error), default=None)


def ratio_check(name: str, parts: Sequence[TensorError], floor: float, what: str) -> Check:
    """Whether each tensor's error is at most so many times the eager step's, or the floor."""
    worst = max(parts, key=lambda part: _excess(part, floor), default=None)
    if worst is None:
        return Check(name=name, is_passed=True, note="nothing to compare")
    allowed = LARGEST_RATIO * max(worst.eager, floor)
    return Check(
        name=name,
        is_passed=within(worst.error, allowed),
        measured=worst.error,
        allowed=allowed,
        note=f"{what} of {worst.name}",
    )


def _excess(part: TensorError, floor: float) -> float:
    return _or_infinite(part.error) / max(part.eager, floor)


def curve_difference(losses: Sequence[float], plain: Sequence[float]) -> float:
    """The largest difference of two loss curves, relative to the largest loss of the plain one."""
    if len(losses) != len(plain):
        return math.inf
    scale = max((abs(value) for value in plain if math.isfinite(value)), default=0.0) or 1.0
    differences = [
        0.0
        if loss == plain_loss or (math.isnan(loss) and math.isnan(plain_loss))
        else abs(loss - plain_loss) / scale
        for loss, plain_loss in zip(losses, plain, strict=True)
    ]
    return max(map(_or_infinite, differences), default=0.0)


def ways_ratio(way: float, plain: float) -> float:
    """The factor by which one way is longer or shorter than the plain step's; 1 is equal."""
    if way == plain:
        return 1.0
    if not (way > 0 and plain > 0 and math.isfinite(way)):
        return math.inf
    return max(way / plain, plain / way)


def within(measured: float, allowed: float) -> bool:
    """Whether it is at most what is allowed; NaN never is."""
    return measured <= allowed


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
