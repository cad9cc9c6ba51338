"""A classifier's confusion matrix, counted on the device, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flatout.errors import UsageError
from flatout.schema.units import counted_text

# Counts of so many classes take 128 MiB; a vocabulary is not what a confusion matrix is for.
MOST_CLASSES = 4096


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix that `metrics` may return; those of all batches are added up.

    Args:
        counts: samples by true class (rows) and predicted class (columns), int64.
        num_strays: a scalar, samples whose target or prediction is not a class; in no row.
    """

    counts: Tensor
    num_strays: Tensor

    def __add__(self, other: Confusion) -> Confusion:
        if self.counts.shape != other.counts.shape:
            raise _misfit(
                f"a confusion has {counted_text(len(self.counts), 'class', 'classes')} in one "
                f"batch and "
                f"{len(other.counts)} in the next."
            )
        return Confusion(self.counts + other.counts, self.num_strays + other.num_strays)

    def pairs(self) -> tuple[tuple[int, int, int], ...]:
        """(true class, predicted class, samples) of the pairs that occur; waits for the device."""
        counts = self.counts.cpu()
        nonzero = counts.nonzero()
        rows = torch.cat([nonzero, counts[nonzero[:, 0], nonzero[:, 1], None]], dim=1).tolist()
        return tuple((row[0], row[1], row[2]) for row in rows)


def confusion(
    scores: Tensor,
    targets: Tensor,
    *,
    num_classes: int | None = None,
    threshold: float = 0.0,
    ignore_index: int = -100,
) -> Confusion:
    """Counts which classes were taken for which. Nothing is waited for.

    Args:
        scores: as `cross_entropy` takes them: (samples, classes), or (samples, classes, ...) with
            a decision at each further place; the largest score decides. Where there is one score
            for each target, (samples,) or (samples, 1): two classes, and 1 is predicted where
            the score is above the threshold. Integers: the predicted classes themselves.
        targets: the true classes, (samples,) or (samples, ...).
        num_classes: needed where `scores` are predicted classes; else the scores tell.
        threshold: of two classes; 0 for logits, 0.5 for probabilities.
        ignore_index: targets of this value are left out.

    Raises:
        UsageError: targets-do-not-fit.
    """
    predicted, num_classes = _predicted(scores, targets, num_classes, threshold)
    if not 2 <= num_classes <= MOST_CLASSES:
        raise _misfit(
            f"cannot count a confusion of {counted_text(num_classes, 'class', 'classes')}."
        )
    predicted, given = predicted.detach().reshape(-1), targets.detach().reshape(-1)
    true = given.long()
    # A mask would make the number of samples depend on their values, and so wait for the device.
    is_stray = (true != given) | (true < 0) | (true >= num_classes)
    is_stray |= (predicted < 0) | (predicted >= num_classes)
    is_ignored = true == ignore_index
    num_pairs = num_classes * num_classes
    index = torch.where(is_stray, num_pairs, true * num_classes + predicted)
    index = torch.where(is_ignored, num_pairs + 1, index)
    counts = torch.zeros(num_pairs + 2, dtype=torch.int64, device=index.device)
    counts.scatter_add_(0, index, torch.ones_like(index))
    return Confusion(counts[:num_pairs].view(num_classes, num_classes), counts[num_pairs])


def _predicted(
    scores: Tensor, targets: Tensor, num_classes: int | None, threshold: float
) -> tuple[Tensor, int]:
    """Predicted classes in the targets' shape, and how many classes there are."""
    if not scores.is_floating_point():
        if num_classes is None or scores.shape != targets.shape:
            raise _misfit(
                f"predicted classes of shape {tuple(scores.shape)} for targets of shape "
                f"{tuple(targets.shape)} need the same shape, and num_classes."
            )
        return scores.long(), num_classes
    without_classes = (*scores.shape[:1], *scores.shape[2:]) if scores.dim() > 1 else None
    if scores.shape == targets.shape or (
        without_classes == tuple(targets.shape) and scores.shape[1] == 1
    ):
        return (scores > threshold).long(), 2
    if without_classes != tuple(targets.shape):
        raise _misfit(
            f"scores of shape {tuple(scores.shape)} do not fit targets of shape "
            f"{tuple(targets.shape)}."
        )
    return scores.argmax(dim=1), scores.shape[1]


def _misfit(problem: str) -> UsageError:
    return UsageError(
        "targets-do-not-fit",
        problem,
        fix="give scores (samples, classes) and targets (samples,), as for cross_entropy; classes "
        f"from 2 to {MOST_CLASSES:,}",
    )
