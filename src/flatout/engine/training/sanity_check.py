"""One batch of the validation data is tried before the first step: a mistake there costs no epoch.

The first step itself tries the training data. So nothing is computed twice, and nothing of the
training is touched: generators and buffers are put back, and training data is not read.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flatout.engine.experiment import Experiment
from flatout.engine.feed.loader_feed import LoaderFeed
from flatout.engine.model.module_attributes import restore
from flatout.engine.runlog.event_log import EventLog, SilentEventLog
from flatout.engine.runtime import rng
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.oom import as_out_of_memory
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.validation import ValidationResult, check_best, labels_problem, measure
from flatout.engine.step.step import bad_loss


def check_validation(session: Session, event_log: EventLog) -> None:
    """Tries one batch of the validation data, if there is any.

    Where the model is spread over ranks they would have to agree on each pass: it is left out.

    Args:
        session: what to train; as it was when this returns.
        event_log: where labels that do not fit are logged.

    Raises:
        UsageError: unknown-metric, metric-is-not-a-scalar, loss-is-not-a-scalar; and whatever the
            experiment raises.
    """
    if session.validation_feed is None or session.sharding is not None:
        return
    try:
        measured = first_validation(session)
    except Exception as error:
        if as_out_of_memory(error) is None:
            # What fails in training too is reported by the training.
            _try_training_loss(session)
            raise
        measured = None
    if measured is None:
        # Memory is short: the validation itself knows how to continue with less.
        release_memory()
        return
    warn_of_labels(session, measured, event_log)


def warn_of_labels(session: Session, measured: ValidationResult, event_log: EventLog) -> None:
    """Warns once of more or fewer labels than classes."""
    for name, confusion in measured.confusions.items():
        problem = labels_problem(name, confusion, session.experiment.labels)
        if problem is not None and problem.rule not in session.warned_rules:
            session.warned_rules.add(problem.rule)
            event_log.warn(session.position.step, problem)


def check_before_search(
    experiment: Experiment, seed: int, fixed: dict[str, Any], train_data: Any
) -> None:
    """The same, where a search for a recipe comes first: it takes longer than to build this once.

    Args:
        experiment: what to train.
        seed: of its weights.
        fixed: recipe fields by name.
        train_data: what its factory has given; it is not called again.

    Raises:
        UsageError: see check_validation.
    """
    if experiment.validation_data is None:
        return
    try:
        built = build(experiment, seed, fixed.get("device"), train_data)
    except Exception as error:
        if as_out_of_memory(error) is None:
            raise
        # There is no room for a second model: the first validation will show it.
        release_memory()
        return
    # What starts processes or records graphs is not worth it for one batch.
    recipe = built.recipe({**fixed, "loader_workers": 0, "capture": "off", "compiled": "off"})
    with rng.untouched_generators(built.device), process_settings(recipe):
        session = Session(built, recipe)
        try:
            # Warnings are notified when the training begins.
            check_validation(session, SilentEventLog())
        finally:
            session.close()


def first_validation(session: Session) -> ValidationResult:
    """Metrics of the first batch of the validation data; the session is left as it was.

    Raises:
        UsageError: see check_validation.
    """
    feed = session.validation_feed
    assert feed is not None
    try:
        with rng.untouched_generators(session.device), restore(session.model):
            measured = measure(session, num_batches=1)
    finally:
        # Workers that are kept between epochs continue with the first validation.
        if not (isinstance(feed, LoaderFeed) and feed.has_persistent_workers):
            feed.close()
    # Of several ranks one may have no sample of it.
    if measured.metrics or measured.confusions:
        check_best(session.experiment.best, measured.metrics)
    return measured


def _try_training_loss(session: Session) -> None:
    """Computes the loss of a training batch as a step would.

    Raises:
        UsageError: loss-is-not-a-scalar; and whatever the experiment raises.
    """
    loss = session.experiment.loss
    if loss is None:
        return
    micro_batches = next(session.feed.updates(0, 0), [])
    for batch, _ in micro_batches[:1]:
        placed = session.to_device(batch) if session.to_device is not None else batch
        session.model.train()
        with session.autocast():
            result = loss(session.model, placed)
        value = result[0] if isinstance(result, tuple) else result
        if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
            raise bad_loss(value, "`loss(model, batch)` returned")
