"""A training's response to a shortage of memory: decided from numbers, without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from flatout.schema.oom_adaptation import OomAdaptation, Part
from flatout.schema.recipe import Recipe

# After this many updates without running out of memory, twice the size is tried; each time that
# memory runs out doubles the number. A failed try costs part of a step.
_LARGER_AFTER = 1_000

# Lines of progress by whose median a speed is judged: a validation is within one of them.
_JUDGED_LINES = 5
# Memory that the driver has moved makes a step 5 to 50 times slower.
_MOVED_SPEED = 1 / 3


class OomOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an experiment that decide how its step can take less memory.

    not_split: why smaller parts of a batch would compute something else, where that was seen.
    """

    batch_size: int
    has_batch_norm: bool
    has_own_step: bool
    has_blocks: bool
    not_split: str | None = None


def oom_recipe_fields(
    recipe: Recipe, means: OomOptions, part: Part | None = None
) -> dict[str, Any] | str:
    """The recipe fields with which a step takes less memory; if there are none, why not.

    Smaller micro-batches make the same update. Where they do not, because BatchNorm would see
    them or the experiment's own step takes the whole batch, activations are computed again. What
    there is no memory to record, was made before without that.

    Args:
        recipe: that takes too much.
        means: of the experiment.
        part: what was being done.
    """
    policy = recipe.out_of_memory.value
    if policy == "stop":
        return "`out_of_memory` is `stop`"
    if part == "capture":
        return {"capture": "off"}
    size = samples_in_micro_batch(recipe, means)
    is_other = means.has_batch_norm or means.not_split is not None
    can_split = not means.has_own_step and (not is_other or policy == "shrink")
    is_smaller = can_split and size > 1
    checkpointing = recipe.activation_checkpointing
    is_whole = float(checkpointing.value) == 1.0
    can_recompute = means.has_blocks and not is_whole and checkpointing.origin != "yours"
    if can_recompute and (is_other or not is_smaller):
        return {"activation_checkpointing": True}
    if is_smaller:
        return {"micro_batch_size": -(-size // 2)}
    if means.has_own_step:
        return "the experiment's own step always takes the whole batch"
    if means.not_split is not None and not can_split:
        return f"with smaller micro-batches, {means.not_split}"
    if not can_split:
        return (
            "with smaller micro-batches, BatchNorm would compute its statistics over each of them"
        )
    return "a single sample needs more memory than there is"


def samples_in_micro_batch(recipe: Recipe, means: OomOptions) -> int:
    """The number of samples that go through the model together."""
    return min(recipe.micro_batch_size.value, means.batch_size)


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Larger micro-batches to be tried from the step after `after_step` on."""

    after_step: int
    micro_batch_size: int


def growth(adaptations: Sequence[OomAdaptation]) -> Growth | None:
    """The step at which to try twice the micro-batch; None if it is as large as it was.

    Args:
        adaptations: all of them since the recipe was last decided otherwise, oldest first.
    """
    sized = [adaptation for adaptation in adaptations if adaptation.kind in ("smaller", "larger")]
    if not sized or sized[-1].after >= sized[0].before:
        return None
    num_smaller = sum(adaptation.kind == "smaller" for adaptation in sized)
    return Growth(
        after_step=sized[-1].step - 1 + _LARGER_AFTER * 2 ** (num_smaller - 1),
        micro_batch_size=min(2 * sized[-1].after, sized[0].before),
    )


def is_moved(rates: Sequence[float], excess_bytes: int) -> bool:
    """Whether training has become so slow that memory must have been moved out of the GPU.

    Args:
        rates: samples per second of the last lines of progress, oldest first.
        excess_bytes: what was taken beyond what was free; 0 where a driver refuses that.
    """
    if excess_bytes <= 0 or len(rates) < 2 * _JUDGED_LINES:
        return False
    before, now = list(rates)[:-_JUDGED_LINES], list(rates)[-_JUDGED_LINES:]
    return median(now) < _MOVED_SPEED * median(before)
