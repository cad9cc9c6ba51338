"""The result of a dry run: an experiment with one batch of each kind tried, and nothing kept."""

from __future__ import annotations

import msgspec


class BatchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was tried.

    num_samples: of the data set; None where it does not tell. size: samples of the batch.
    shapes: of its tensors, such as `float32 (64, 1, 8, 8)`, in the batch's own nesting's order.
    """

    num_samples: int | None
    size: int
    shapes: tuple[str, ...]


class DryRunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one training step and one batch of the validation.

    num_trained: of the parameters, those that are not frozen. losses: of the training batch; of a
    step of one's own by its names. metrics: of the validation batch; None: not a finite number.
    best: the metric that decides which weights are kept; None without validation.
    num_steps, num_epochs: of the whole training, where they are known.
    step_s: the step alone, which is the first and so a slow one.
    """

    device: str
    precision: str
    num_parameters: int
    num_trained: int
    train: BatchSummary
    losses: dict[str, float | None]
    learning_rate: float
    step_s: float
    num_steps: int | None
    num_epochs: int | None
    unit: str = "samples"
    validation: BatchSummary | None = None
    metrics: dict[str, float | None] = {}
    best: str | None = None
    peak_memory_bytes: int | None = None
