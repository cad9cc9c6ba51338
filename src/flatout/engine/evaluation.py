"""Metrics over the whole validation data, and which weights are the best by them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout.engine import randomness
from flatout.engine.experiment import Experiment
from flatout.engine.feed import Feed
from flatout.engine.journal import Journal
from flatout.engine.session import Session
from flatout.engine.state import Packed, pack
from flatout.errors import UsageError
from flatout.nouns.lines import Validated
from flatout.system.clock import now_s

# Ends of metrics' names; of all others, larger is better.
_SMALLER_IS_BETTER = (
    "loss",
    "error",
    "mse",
    "mae",
    "perplexity",
    "ppl",
    "wer",
    "cer",
    "bpc",
    "nll",
)


class Judged(Protocol):
    """What is validated: a session that trains, or the kept weights of a run."""

    experiment: Experiment
    validation_feed: Feed | None
    place: Callable[[Any], Any] | None
    autocast: Callable[[], AbstractContextManager[Any]]

    def evaluated(self) -> AbstractContextManager[nn.Module]:
        """The model in evaluation mode, with the weights that are to be judged."""
        ...


class Validator:
    """Validates a session and keeps its best weights until they are taken.

    Args:
        session: what is trained.
        journal: where the metrics are told.
    """

    def __init__(self, session: Session, journal: Journal) -> None:
        self._session = session
        self._journal = journal
        self._best: Packed | None = None

    def validate(self) -> None:
        """Computes and tells the metrics; the generators are left as they were."""
        session, position = self._session, self._session.position
        if session.validation_feed is None or position.validated_step == position.step:
            return
        with randomness.untouched_generators(session.device):
            metrics = validation_metrics(session)
        name = session.experiment.best
        _check_best(name, metrics)
        value = position.last_value = metrics[name]
        is_best = _is_better(name, value, position.best_value)
        position.validated_step = position.step
        position.num_worse = 0 if is_best else position.num_worse + 1
        if is_best:
            position.best_value, position.best_step = value, position.step
            self._best = self.weights()
        self._journal.metric(
            Validated(
                at=now_s(),
                step=position.step,
                epoch=position.epoch,
                metrics={
                    name: value if isfinite(value) else None for name, value in metrics.items()
                },
                is_best=is_best,
            )
        )

    def weights(self) -> Packed:
        """A copy of the weights as they would be validated now."""
        with self._session.evaluated() as model:
            return pack(dict(model.state_dict()))

    def take_best(self) -> Packed | None:
        """The best weights, if there are better ones since the last call."""
        best, self._best = self._best, None
        return best

    def is_patience_over(self) -> bool:
        """Whether early stopping's rule says stop."""
        patience = self._session.experiment.early_stop
        return patience is not None and self._session.position.num_worse >= patience


def validation_metrics(judged: Judged) -> dict[str, float]:
    """Computes the experiment's metrics, and the loss if they have none, over all samples.

    A mean is weighted by its batch's samples; a sum and its count are added up. Nothing is waited
    for before the last batch.

    Returns:
        Metrics by name.
    """
    feed = judged.validation_feed
    assert feed is not None
    sums: dict[str, tuple[Any, Any]] = {}
    with judged.evaluated() as model, torch.no_grad():
        for batch, num_samples in (micro for update in feed.updates(0, 0) for micro in update):
            placed = judged.place(batch) if judged.place is not None else batch
            with judged.autocast():
                values = _values(judged.experiment, model, placed)
            for name, value in values.items():
                total, count = (
                    value if isinstance(value, tuple) else (_wide(value) * num_samples, num_samples)
                )
                before = sums.get(name, (0, 0))
                sums[name] = (before[0] + _wide(total), before[1] + _wide(count))
    return {name: float(total) / (float(count) or 1.0) for name, (total, count) in sums.items()}


def _wide(number: Any) -> Any:
    """Sums over many batches are made in fp64, whatever a batch's number came in."""
    return number.double() if isinstance(number, Tensor) else number


def _values(experiment: Experiment, model: nn.Module, batch: Any) -> dict[str, Any]:
    values = dict(experiment.metrics(model, batch)) if experiment.metrics is not None else {}
    if "loss" not in values:
        values["loss"] = experiment.loss(model, batch)
    for name, value in values.items():
        total = value[0] if isinstance(value, tuple) else value
        if isinstance(total, Tensor) and total.dim() != 0:
            raise UsageError(
                "metric-is-not-a-scalar",
                f"the metric `{name}` is a tensor of shape {tuple(total.shape)}.",
                fix="return a mean over the batch, or a sum and its count",
            )
    return values


def _is_better(name: str, value: float, best: float | None) -> bool:
    if best is None:
        return value == value  # anything but NaN
    return value < best if name.endswith(_SMALLER_IS_BETTER) else value > best


def _check_best(name: str, metrics: dict[str, float]) -> None:
    if name not in metrics:
        raise UsageError(
            "unknown-metric",
            f"`best` is `{name}`; validation gives {', '.join(sorted(metrics))}.",
            fix="set `best` to one of these, or let `metrics` return it",
        )
