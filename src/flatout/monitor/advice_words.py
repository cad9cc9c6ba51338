"""The words of advice that a probe has measured, by its id."""

from __future__ import annotations

import msgspec


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What is said. because: {share} stands for the part of the step that is concerned.

    fix: where no recipe field does it. changes_result: other numbers are computed, and how.
    """

    problem: str
    because: str
    fix: str = ""
    changes_result: str | None = None


WORDS = {
    "fp32-without-need": Words(
        problem="Matrix products and convolutions are computed in fp32.",
        because="forward and backward are {share} of a step, and this device is faster in bf16",
        changes_result="products are rounded to 8 bits; weights stay in fp32",
    ),
    "float64": Words(
        problem="The model is in float64.",
        because="computation is {share} of a step, and moves twice the bytes",
        fix="remove .double() and torch.float64 from the model and its data",
        changes_result="numbers have 24 bits instead of 53, as is usual",
    ),
    "slow-layout": Words(
        problem="Convolutions are computed in a layout that is slower here.",
        because="forward and backward are {share} of a step",
    ),
    "slow-attention": Words(
        problem="Attention is computed without a fused kernel.",
        because="forward and backward are {share} of a step",
    ),
    "unfused-optimizer": Words(
        problem="The optimizer updates weights one operation at a time.",
        because="the optimizer is {share} of a step",
    ),
    "too-many-threads": Words(
        problem="Operators use more threads than they can make use of.",
        because="computation is {share} of a step, and threads wait for each other",
    ),
    "too-few-threads": Words(
        problem="Operators use fewer threads than there are cores.",
        because="forward and backward are {share} of a step",
    ),
    "padding-waste": Words(
        problem="Much of each batch is padding.",
        because="forward and backward are {share} of a step, and compute padding, too",
        fix="sort samples by length, or cut each batch at its longest sample in `collate`",
    ),
    "needless-checkpointing": Words(
        problem="Activations are computed twice.",
        because="activation checkpointing saves memory and takes time",
    ),
}
