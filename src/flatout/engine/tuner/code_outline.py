"""Looks up an experiment's outline, for a plain loop to be written from."""

from __future__ import annotations

import msgspec
import torch

from flatout.engine.feed.feed import Feed, TensorFeed
from flatout.engine.feed.iterable_feed import IterableFeed
from flatout.engine.model.activation_checkpointing import (
    has_its_own,
    name_of_its_own,
    repeated_blocks,
)
from flatout.engine.session.session import BuiltExperiment, Session, process_settings
from flatout.engine.session.validation import values_of_batch
from flatout.errors import UsageError
from flatout.schema.class_report import MEANS
from flatout.schema.code_outline import CodeOutline, DataKind, Scheduling
from flatout.schema.cpu_topology import Topology
from flatout.schema.recipe import Choice, CpuAffinity, Recipe
from flatout.schema.tuning import Emit
from flatout.schema.units import is_smaller_better


def outline(built: BuiltExperiment, recipe: Recipe, emit: Emit = "code") -> CodeOutline:
    """The outline of an experiment for its plain loop; the loss is computed once.

    Args:
        built: its objects; they are used up.
        recipe: how its steps are executed.
        emit: what is written from it; only a program validates.

    Raises:
        UsageError: no-code-for-class-scores.
    """
    # One batch is read: no processes need to be started for it.
    alone: Choice[int] = Choice(value=0, why="one batch is read")
    with process_settings(recipe):
        session = Session(built, msgspec.structs.replace(recipe, loader_workers=alone))
        try:
            if emit == "code":
                _check_best(session)
            return _outline(session)
        finally:
            session.close()


def _outline(session: Session) -> CodeOutline:
    experiment = session.experiment
    every = experiment.validate_every
    validation = session.validation_feed
    blocks = repeated_blocks(session.model).usable
    own = [name for name, block in blocks.items() if has_its_own(block)]
    return CodeOutline(
        data_kind=session.facts.data_kind,
        batch_size=experiment.batch_size,
        num_gathered=_num_gathered(session.feed),
        is_shuffled=experiment.shuffle,
        has_collate=experiment.collate is not None,
        has_named_parameters=experiment.named_parameters,
        is_counted=_is_counted(session),
        is_by_steps=experiment.steps is not None,
        scheduling=_scheduling(session),
        takes_length=session.learning_rates.know_length,
        has_ema=experiment.ema is not None,
        validation_kind=_kind(validation) if validation is not None else None,
        num_gathered_validation=_num_gathered(validation),
        has_metrics=experiment.metrics is not None,
        validate_every=every if isinstance(every, int) else None,
        has_early_stop=experiment.early_stop is not None,
        best=experiment.best,
        is_smaller_better=is_smaller_better(experiment.best),
        blocks=tuple(name for name in blocks if name not in own),
        self_checkpointing=tuple(own),
        checkpointing_prefix=name_of_its_own(blocks[own[0]]) if own else "",
        cpus=_cpus(session.facts.topology),
    )


def _cpus(topology: Topology) -> dict[CpuAffinity, tuple[int, ...]]:
    values: tuple[CpuAffinity, ...] = ("one-per-core", "performance-cores")
    return {value: topology.chosen(value) for value in values if topology.why_not(value) is None}


def _check_best(session: Session) -> None:
    """Refuses to go by what a program without flatout cannot compute: scores of a confusion."""
    experiment, feed = session.experiment, session.validation_feed
    is_needed = experiment.early_stop is not None or _scheduling(session) == "plateau"
    if feed is None or not is_needed or experiment.best not in MEANS:
        return
    batch, _ = next(feed.updates(0, 0))[0]
    parts = session.step_parts()
    with session.evaluated() as model, torch.no_grad(), parts.autocast():
        values = values_of_batch(
            experiment, model, parts.to_device(batch) if parts.to_device else batch
        )
    if experiment.best not in values:
        raise UsageError(
            "no-code-for-class-scores",
            f"`--emit code` cannot write a program whose best metric is `{experiment.best}`.",
            because="flatout computes it from a confusion matrix; early stopping or the schedule "
            "needs it",
            fix=f"let `metrics` return `{experiment.best}`, or set `best` to a number that it "
            "returns",
        )


def _is_counted(session: Session) -> bool:
    batch, _ = next(session.feed.updates(0, 0))[0]
    parts = session.step_parts()
    with torch.no_grad(), parts.autocast():
        assert parts.experiment.loss is not None
        placed = parts.to_device(batch) if parts.to_device else batch
        result = parts.experiment.loss(session.model, placed)
    return isinstance(result, tuple)


def _scheduling(session: Session) -> Scheduling | None:
    if session.experiment.schedule is None:
        return None
    if session.learning_rates.go_by_metric:
        return "plateau"
    return session.experiment.schedule_every


def _num_gathered(feed: Feed | None) -> int | None:
    return feed.samples_per_gather if isinstance(feed, TensorFeed) else None


def _kind(feed: Feed) -> DataKind:
    if isinstance(feed, TensorFeed):
        return "tensors"
    return "iterable" if isinstance(feed, IterableFeed) else "map-style"
