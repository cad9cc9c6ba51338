"""Metrics over the whole validation data, which weights are the best by them, and samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.cached_feed import problem_of
from flatout.engine.feed.feed import Feed
from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.ranks.synced_passes import SyncedPasses
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import is_out_of_memory, one_line
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.engine.runtime.user_code import kind_text, location_of
from flatout.engine.session.session import Session
from flatout.engine.step.step import bad_loss
from flatout.engine.tensors.confusion_matrix import Confusion
from flatout.engine.tensors.state_tree import Packed, pack
from flatout.errors import UsageError
from flatout.schema.class_report import MEANS, class_report, mean_scores
from flatout.schema.finding import Finding, Fix
from flatout.schema.run_lines import Classified, Generated, Validated
from flatout.schema.units import counted_text, is_smaller_better
from flatout.system.clock import now_s

# What is kept of the texts of one validation.
_MOST_TEXTS = 16
_MOST_CHARACTERS = 4_000


class ValidationSubject(Protocol):
    """The subject of a validation: a session that trains, or the kept weights of a run."""

    experiment: Experiment
    validation_feed: Feed | None
    to_device: Callable[[Any], Any] | None
    autocast: Callable[[], AbstractContextManager[Any]]
    placement: ThreadPlacement

    def evaluated(self) -> AbstractContextManager[nn.Module]:
        """The model in evaluation mode, with the weights to evaluate."""
        ...


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """The result of a validation: numbers and confusion matrices by the names of the metrics."""

    metrics: dict[str, float]
    confusions: dict[str, Confusion]


class Validator:
    """Validates a session, lets it write samples, and keeps its best weights until they are taken.

    Args:
        session: what is trained.
        event_log: where metrics are logged.
    """

    def __init__(self, session: Session, event_log: EventLog) -> None:
        self._session = session
        self._event_log = event_log
        self._best: Packed | None = None
        self._metrics: dict[str, float] | None = None

    def validate(self) -> None:
        """Computes and logs the metrics and samples; the generators are left as they were."""
        session, position = self._session, self._session.position
        if position.validated_step == position.step:
            return
        if session.validation_feed is not None:
            self._judge()
        position.validated_step = position.step
        has_weights = session.ranks.is_first or session.sharding is not None
        if session.experiment.generate is not None and has_weights:
            self._try_to_generate(session.experiment.generate)

    def _warn_uncached(self) -> None:
        problem = problem_of(self._session.validation_feed)
        if problem is not None and problem.rule not in self._session.warned_rules:
            self._session.warned_rules.add(problem.rule)
            error = UsageError(
                problem.rule,
                "the validation data is read by a DataLoader from now on.",
                because=problem.because,
                fix="leave `data_path` out, or use validation data without random augmentation",
            )
            self._event_log.warn_of(self._session.position.step, error)

    def _judge(self) -> None:
        session, position = self._session, self._session.position
        with rng.untouched_generators(session.device):
            passes = session.passes if session.sharding is not None else None
            measured = measure(session, session.ranks, passes)
        self._warn_uncached()
        name, metrics = session.experiment.best, measured.metrics
        check_best(name, metrics)
        self._metrics = metrics
        value, loss = metrics[name], metrics.get("loss")
        is_better = _is_better(name, value, position.best_value)
        is_best = is_better or (
            value == position.best_value and _is_lower(loss, position.best_loss)
        )
        # Memory may be short for the copy: only then is anything of it noted.
        has_part = session.ranks.is_first or session.sharding is not None
        best = self.weights() if is_best and has_part else None
        position.last_value = value
        # A tie replaces the kept weights, but does not count as progress: a loss can fall for ever.
        position.num_worse = 0 if is_better else position.num_worse + 1
        if is_best:
            position.best_value, position.best_step = value, position.step
            position.best_name, position.best_loss = name, loss
            self._best = best if session.ranks.is_first else None
        self._event_log.metric(
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
        for name, confusion in measured.confusions.items():
            self._log_confusion(name, confusion)

    def _log_confusion(self, name: str, confusion: Confusion) -> None:
        position, labels = self._session.position, self._session.experiment.labels
        num_strays = int(confusion.num_strays)
        problem = labels_problem(name, confusion, labels)
        if problem is not None:
            self._warn_once(problem)
        if num_strays:
            self._warn_once(
                Finding(
                    rule="target-is-no-class",
                    severity="warning",
                    problem=f"`{name}` has no class for {counted_text(num_strays, 'sample')} of "
                    "the validation data.",
                    fixes=(
                        Fix(text="check the targets; to skip some on purpose, use ignore_index"),
                    ),
                )
            )
        self._event_log.metric(classified(name, confusion, labels, position.step, position.epoch))

    def _try_to_generate(self, generate: Callable[[nn.Module], Sequence[str]]) -> None:
        """Generates samples; retries once when out of memory, then skips them."""
        for _ in range(2):
            try:
                self._generate(generate)
                return
            except Exception as error:
                if not is_out_of_memory(error) or self._session.sharding is not None:
                    raise
                because = one_line(error)
            release_memory()
        self._warn_once(
            Finding(
                rule="samples-left-out",
                severity="warning",
                problem="not enough memory for `generate`: skipping its samples.",
                because=because,
                fixes=(Fix(text="generate fewer or shorter texts; training continues"),),
            )
        )

    def _generate(self, generate: Callable[[nn.Module], Sequence[str]]) -> None:
        session = self._session
        untouched = rng.untouched_generators(session.device)
        with untouched, session.evaluated() as model, torch.no_grad(), session.autocast():
            if session.sharding is not None:
                # All ranks go through the model together, and must draw the same on the way.
                seed = rng.mixed_seed(session.seed, "samples", session.position.step)
                rng.seed_generators(seed)
            # Each token is a step of the model: next to a busy program, unplaced threads took
            # longer for one text than for all of a training's steps.
            with session.placement:
                generated = generate(model)
        texts = (generated,) if isinstance(generated, str) else generated
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise UsageError(
                "generate-gave-no-texts",
                f"`generate` returned {type(generated).__name__}, not a list of strings.",
                fix="return a list of strings: decode tokens first",
            )
        kept = tuple(shortened(text) for text in texts[:_MOST_TEXTS])
        at, position = now_s(), session.position
        self._event_log.metric(
            Generated(at=at, step=position.step, epoch=position.epoch, texts=kept)
        )

    def _warn_once(self, finding: Finding) -> None:
        """Not after each validation again."""
        if finding.rule not in self._session.warned_rules:
            self._session.warned_rules.add(finding.rule)
            self._event_log.warn(self._session.position.step, finding)

    def weights(self) -> Packed:
        """A copy of the weights as they would be validated now.

        Of a model that is spread over ranks, all of them call it; the first has the copy.
        """
        sharding = self._session.sharding
        with self._session.evaluated() as model:
            if sharding is None:
                return pack(dict(model.state_dict()))
            whole = sharding.whole(dict(model.state_dict(keep_vars=True)))
        return pack(whole, is_copied=False)

    def take_best(self) -> Packed | None:
        """The best weights, if there are better ones since the last call."""
        best, self._best = self._best, None
        return best

    def take_metrics(self) -> dict[str, float] | None:
        """The metrics, if there was a validation since the last call."""
        metrics, self._metrics = self._metrics, None
        return metrics

    def is_patience_over(self) -> bool:
        """Whether early stopping's rule says stop."""
        patience = self._session.experiment.early_stop
        return patience is not None and self._session.position.num_worse >= patience


def measure(
    subject: ValidationSubject,
    ranks: RankGroup = ALONE,
    passes: SyncedPasses | None = None,
    *,
    num_batches: int | None = None,
) -> ValidationResult:
    """Computes the experiment's metrics, and the loss if they have none, over all samples.

    A mean is weighted by its batch's samples; a sum and its count, and the counts of a confusion,
    are added up, over ranks as over batches. Nothing is waited for before the last batch.

    Args:
        subject: what is validated.
        ranks: each with its share of the samples.
        passes: keeps them together where they need each other for one.
        num_batches: looks at no more than these; None at all.
    """
    sums: dict[str, tuple[Any, Any]] = {}
    confusions: dict[str, Confusion] = {}
    counted = _counted(subject, passes, num_batches)
    for own_sums, own_confusions in ranks.all_gather(counted, about="validation"):
        for name, (total, count) in own_sums.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + float(total), before[1] + float(count))
        for name, pair in own_confusions.items():
            own_confusion = Confusion(*pair)
            confusions[name] = (
                confusions[name] + own_confusion if name in confusions else own_confusion
            )
    metrics = {name: total / (count or 1.0) for name, (total, count) in sums.items()}
    best = subject.experiment.best
    if best in MEANS and best not in metrics and len(confusions) == 1:
        [confusion] = confusions.values()
        mean = _mean_scores(confusion)[best]
        metrics[best] = nan if mean is None else mean
    return ValidationResult(metrics=metrics, confusions=confusions)


def _counted(
    subject: ValidationSubject, passes: SyncedPasses | None, num_batches: int | None
) -> tuple[dict[str, tuple[Any, Any]], dict[str, tuple[Tensor, Tensor]]]:
    """Sums and counts over the samples that this rank has; of confusions counts and strays."""
    feed = subject.validation_feed
    assert feed is not None
    sums: dict[str, tuple[Any, Any]] = {}
    confusions: dict[str, Confusion] = {}
    batches = itertools.islice(feed.updates(0, 0), num_batches)
    evened = batches if passes is None else map(passes.evened, batches)
    with subject.evaluated() as model, torch.no_grad():
        for batch, num_samples in (micro for update in evened for micro in update):
            placed = subject.to_device(batch) if subject.to_device is not None else batch
            with subject.placement, subject.autocast():
                values = values_of_batch(subject.experiment, model, placed)
            if num_samples == 0:
                continue
            for name, value in values.items():
                if isinstance(value, Confusion):
                    confusions[name] = confusions[name] + value if name in confusions else value
                    continue
                total, count = (
                    value if isinstance(value, tuple) else (_wide(value) * num_samples, num_samples)
                )
                before = sums.get(name, (0, 0))
                sums[name] = (before[0] + _wide(total), before[1] + _wide(count))
    return sums, {
        name: (confusion.counts, confusion.num_strays) for name, confusion in confusions.items()
    }


def labels_problem(name: str, confusion: Confusion, labels: Sequence[str] | None) -> Finding | None:
    """The error if the number of labels is not the number of classes."""
    num_classes = len(confusion.counts)
    if labels is None or len(labels) == num_classes:
        return None
    return Finding(
        rule="labels-do-not-fit",
        severity="warning",
        problem=f"`labels` has {counted_text(len(labels), 'name')}; `{name}` counts "
        f"{counted_text(num_classes, 'class', 'classes')}.",
        fixes=(Fix(text="give one name per class, in the order of their numbers"),),
    )


def classified(
    name: str, confusion: Confusion, labels: Sequence[str] | None, step: int, epoch: int
) -> Classified:
    """A confusion matrix as a metric line."""
    return Classified(
        at=now_s(),
        step=step,
        epoch=epoch,
        name=name,
        labels=_labels(labels, len(confusion.counts)),
        counts=confusion.pairs(),
    )


def _mean_scores(confusion: Confusion) -> dict[str, float | None]:
    labels, pairs = _labels(None, len(confusion.counts)), confusion.pairs()
    line = Classified(at=0.0, step=0, epoch=0, name="", labels=labels, counts=pairs)
    return mean_scores(class_report(line))


def _labels(names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """Names of the classes; their numbers where no names are given that fit."""
    if names is None or len(names) != num_classes:
        return tuple(map(str, range(num_classes)))
    return tuple(map(shortened, names))


def shortened(text: str) -> str:
    """A text as JSON can hold it: not endless, and without halves of characters."""
    cut = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "\u2026"
    return cut.encode("utf-8", "replace").decode("utf-8")


def _wide(number: Any) -> Any:
    """Sums over many batches are made in fp64, whatever a batch's number came in."""
    return number.double() if isinstance(number, Tensor) else number


def values_of_batch(experiment: Experiment, model: nn.Module, batch: Any) -> dict[str, Any]:
    """The metrics' values for a batch, and the loss if they have none.

    Raises:
        UsageError: metric-is-not-a-scalar, loss-is-not-a-scalar.
    """
    values = _metrics_of_batch(experiment, model, batch)
    if "loss" not in values and experiment.loss is not None:
        values["loss"] = loss = experiment.loss(model, batch)
        mean = loss[0] if isinstance(loss, tuple) else loss
        if isinstance(mean, Tensor) and mean.dim() != 0:
            raise bad_loss(mean, "`loss(model, batch)` returned")
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != 2:
            raise UsageError(
                "metric-is-not-a-scalar",
                f"the metric `{name}` is a tuple of length {len(value)}.",
                fix="return a mean over the batch, or a sum and its count",
            )
        total = value[0] if isinstance(value, tuple) else value
        if isinstance(total, Tensor) and total.dim() != 0:
            raise UsageError(
                "metric-is-not-a-scalar",
                f"the metric `{name}` is a tensor of shape {tuple(total.shape)}.",
                fix="return a mean over the batch, or a sum and its count",
            )
        if not isinstance(total, Tensor | float | int | Confusion):
            raise UsageError(
                "metric-is-not-a-scalar",
                f"the metric `{name}` is {kind_text(total)}, not a number.",
                fix="return a mean over the batch, or a sum and its count",
            )
    return values


def _metrics_of_batch(experiment: Experiment, model: nn.Module, batch: Any) -> dict[str, Any]:
    if experiment.metrics is None:
        return {}
    result = experiment.metrics(model, batch)
    if isinstance(result, Mapping):
        return dict(result)
    location = location_of(experiment.metrics)
    raise UsageError(
        "metric-is-not-a-scalar",
        f"`metrics` returned {kind_text(result)}, not a dict of metrics by name.",
        because=location.with_code if location is not None else None,
        fix='return a dict, such as {"accuracy": accuracy}',
    )


def _is_better(name: str, value: float, best: float | None) -> bool:
    if best is None:
        return value == value  # anything but NaN
    return value < best if is_smaller_better(name) else value > best


def _is_lower(loss: float | None, best: float | None) -> bool:
    return loss is not None and (best is None or loss < best)


def check_best(name: str, metrics: dict[str, float]) -> None:
    """Refuses a `best` that no metric is named.

    Raises:
        UsageError: unknown-metric.
    """
    if name not in metrics:
        raise UsageError(
            "unknown-metric",
            f"`best` is `{name}`; validation gives {', '.join(sorted(metrics))}.",
            fix="set `best` to one of these, or let `metrics` return it",
        )
