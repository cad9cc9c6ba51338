"""One training step and one batch of the validation: what `flatout train --dry-run` does."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.model.precision import check_repeatable
from flatout.engine.ranks.model_layout import ModelLayout
from flatout.engine.recipe.experiment_facts import restored_device
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import chosen_device, prepare_products
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.step_timer import StepTimer, peak_memory_bytes
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.state import own_state_of
from flatout.engine.session.step_kinds import new_step
from flatout.engine.tensors.nested import tensors_in
from flatout.engine.tensors.state_tree import pack
from flatout.engine.training.run_length import check_schedule
from flatout.engine.training.sanity_check import first_validation, warn_of_labels
from flatout.engine.training.weights_file import init_weights
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.dry_run import BatchSummary, DryRunResult
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.recipe import check_field
from flatout.system.clock import elapsed_s
from flatout.system.store.run_folder import RunFolder


def dry_run(
    experiment: Experiment, *, use: dict[str, Any] | None = None, seed: int = 0
) -> DryRunResult:
    """Tries one training step and one batch of the validation in this process; keeps nothing.

    Args:
        experiment: what is tried.
        use: recipe fields by name, with the values to fix; see `flatout docs recipe`.
        seed: of weights, order and augmentation.

    Returns:
        Sizes, shapes, loss and metrics.

    Raises:
        UsageError, RunFailed: what a training would raise in its first step or first validation.
    """
    prepare_products()
    fixed = {field: check_field(field, value) for field, value in (use or {}).items()}
    spec = ExperimentSpec(name="notebook", seed=seed, fixed=fixed)
    with TemporaryDirectory(prefix="flatout-", ignore_cleanup_errors=True) as folder:
        event_log = EventLog(RunFolder(Path(folder)))
        try:
            return tried(experiment, spec, event_log)
        except Exception as error:
            known_error = to_flatout_error(error)
            if known_error is None or known_error is error:
                raise
            raise known_error from error
        finally:
            event_log.close()


def tried(experiment: Experiment, spec: ExperimentSpec, event_log: EventLog) -> DryRunResult:
    """Builds an experiment, makes its first step, and validates one batch.

    Args:
        experiment: what is tried.
        spec: seed, length, recipe and first weights.
        event_log: where warnings are logged.

    Raises:
        UsageError: what a training would be refused for.
    """
    device_name = spec.fixed.get("device")
    with rng.untouched_generators(chosen_device(device_name)), restored_device():
        init = spec.init
        layout = (
            ModelLayout(init=lambda model: init_weights(model, Path(init)))
            if init
            else ModelLayout()
        )
        built = build(experiment, spec.seed, device_name, layout=layout)
        built = replace(built, length=(spec.epochs, spec.steps))
        # What starts processes or records graphs is not worth it for one batch.
        quick = {"loader_workers": 0, "capture": "off", "compiled": "off"}
        recipe = built.recipe({**spec.fixed, **quick})
        check_repeatable(recipe, built.device)
        for finding in check_recipe(built.recipe(spec.fixed), built.facts):
            event_log.warn(0, finding)
        with process_settings(recipe):
            session = Session(built, recipe)
            try:
                pack(own_state_of(session), is_copied=False)
                check_schedule(session, event_log, spec.name, spec, Change())
                return _tried(session, spec, event_log)
            finally:
                session.close()


def _tried(session: Session, spec: ExperimentSpec, event_log: EventLog) -> DryRunResult:
    experiment, rates = session.experiment, session.optimizers.learning_rates()
    update = next(session.feed.updates(0, 0), None)
    if not update:
        raise UsageError(
            "no-data", "the training data has no samples.", fix="check what `train_data()` returns"
        )
    session.model.train()
    step = new_step(session, StepTimer(session.device))
    begin_s = elapsed_s()
    loss = step.run(update)
    step.flush()
    losses = {name: _finite(float(value)) for name, value in _named(loss).items()}
    step_s = elapsed_s() - begin_s
    if session.learning_rates.are_per_step:
        session.learning_rates.after_update()
    pack(own_state_of(session), is_copied=False)
    metrics: dict[str, float | None] = {}
    validation = None
    if session.validation_feed is not None:
        measured = first_validation(session)
        warn_of_labels(session, measured, event_log)
        metrics = {name: _finite(value) for name, value in measured.metrics.items()}
        shown = next(session.validation_feed.updates(0, 0))
        validation = _batch(shown, session.validation_feed.num_samples)
    epochs, steps = (spec.epochs, spec.steps)
    if epochs is None and steps is None:
        epochs, steps = experiment.epochs, experiment.steps
    per_epoch = session.feed.updates_per_epoch
    return DryRunResult(
        device=str(session.device),
        precision=session.recipe.precision.value,
        num_parameters=sum(p.numel() for p in session.model.parameters()),
        num_trained=sum(p.numel() for p in session.model.parameters() if p.requires_grad),
        train=_batch(update, session.feed.num_samples),
        losses=losses,
        learning_rate=next(iter(rates.values())),
        step_s=step_s,
        num_steps=epochs * per_epoch if epochs and per_epoch else steps,
        num_epochs=epochs,
        unit=experiment.unit,
        validation=validation,
        metrics=metrics,
        best=experiment.best if validation is not None else None,
        peak_memory_bytes=peak_memory_bytes(session.device),
    )


def _named(loss: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    return loss if isinstance(loss, dict) else {"loss": loss}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _batch(update: list[MicroBatch], num_samples: int | None) -> BatchSummary:
    """A summary of one update: of several micro-batches the shapes of the first."""
    first, _ = update[0]
    shapes = tuple(_shape(tensor) for tensor in tensors_in(first))
    return BatchSummary(
        num_samples=num_samples, size=sum(size for _, size in update), shapes=shapes
    )


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
