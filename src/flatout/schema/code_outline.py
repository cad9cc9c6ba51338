"""An experiment's outline: what decides which lines a plain loop for it needs."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.recipe import CpuAffinity

DataKind = Literal["tensors", "map-style", "iterable"]
Scheduling = Literal["step", "epoch", "plateau"]


class CodeOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The possibilities that an experiment makes use of.

    data_kind, validation_kind: None where nothing is validated.
    num_gathered, num_gathered_validation: samples of tensors that are gathered in one call.
    is_counted: the loss is a sum and its count. is_by_steps: it gives `steps`, not `epochs`.
    scheduling: when the learning rate is stepped; `plateau` by a metric after each epoch.
    takes_length: the schedule is given how often it steps in all.
    validate_every: steps; None is after each epoch. best: the metric that `plateau` and early
    stopping go by.
    blocks: names of the modules that activation checkpointing computes again; self_checkpointing:
    of those that have one of their own, switched on by `{checkpointing_prefix}_enable`.
    cpus: those that each value of the recipe's cpu_affinity means here, if it makes a difference.
    """

    data_kind: DataKind
    batch_size: int
    num_gathered: int | None = None
    is_shuffled: bool = True
    has_collate: bool = False
    has_named_parameters: bool = False
    is_counted: bool = False
    is_by_steps: bool = False
    scheduling: Scheduling | None = None
    takes_length: bool = False
    has_ema: bool = False
    validation_kind: DataKind | None = None
    num_gathered_validation: int | None = None
    has_metrics: bool = False
    validate_every: int | None = None
    has_early_stop: bool = False
    best: str = "loss"
    is_smaller_better: bool = True
    blocks: tuple[str, ...] = ()
    self_checkpointing: tuple[str, ...] = ()
    checkpointing_prefix: str = "activation_checkpointing"
    cpus: dict[CpuAffinity, tuple[int, ...]] = {}
