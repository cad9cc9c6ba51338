"""Progress of a training; part of every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TrainState:
    """Progress of a training. update: updates done in this epoch; step: in all.

    epoch_losses: sum and number of samples, for each loss that an experiment's own step names.
    best_name, best_loss: the metric that best_value belongs to, and its validation loss.
    stop_reason: why a hook has ended the training. refrozen_step: the step after which one has last
    frozen or unfrozen weights.
    """

    epoch: int = 0
    update: int = 0
    step: int = 0
    num_samples_seen: int = 0
    epoch_loss_sum: float = 0.0
    epoch_loss_samples: int = 0
    epoch_losses: dict[str, list[float]] = field(default_factory=dict)
    validated_step: int = -1
    last_value: float | None = None
    best_value: float | None = None
    best_step: int = -1
    best_name: str | None = None
    best_loss: float | None = None
    num_worse: int = 0
    stop_reason: str | None = None
    refrozen_step: int = -1
