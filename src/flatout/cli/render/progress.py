"""The state of a training, gathered from its lines for the live display and plain lines."""

from __future__ import annotations

from collections import deque

from flatout.cli.render.wording import DOT, metric_text, metrics_text
from flatout.schema.run_lines import EpochEnded, Fetched, Line, Progress, Started, Validated
from flatout.schema.units import bytes_text, count_text, rate_text, seconds_text

# Time left is judged by the last of these many lines of progress: a few seconds of training.
_NUM_RECENT = 50


class TrainingState:
    """The latest value of everything a run reports."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.fetched: Fetched | None = None
        self.progress: Progress | None = None
        self.loss: float | None = None
        self.losses: dict[str, float] = {}
        self.metrics: dict[str, float | None] = {}
        self.step = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_NUM_RECENT)

    def take(self, line: Line) -> None:
        """Adds a line."""
        self.step = max(self.step, line.step)
        if isinstance(line, Started):
            self.started, self.fetched, self.step = line, None, line.step
            self._recent.clear()
        elif isinstance(line, Fetched):
            self.fetched = line
        elif isinstance(line, Progress):
            self.progress, self.loss, self.losses = line, line.loss, line.losses
            self._recent.append((line.at, line.step))
        elif isinstance(line, EpochEnded):
            self.loss, self.losses = line.loss, line.losses
        elif isinstance(line, Validated):
            self.metrics = line.metrics

    @property
    def share(self) -> float | None:
        """The finished part of the run, 0 to 1; None if its length is unknown."""
        if self.started is None or not self.started.num_steps:
            return None
        return min(1.0, self.step / self.started.num_steps)

    @property
    def position(self) -> str:
        """The position in the run: "epoch 3/14"."""
        if self.started is None:
            return ""
        per_epoch, epochs = self.started.steps_per_epoch, self.started.num_epochs
        if per_epoch and epochs:
            # The last step of an epoch still belongs to it.
            return f"epoch {max(self.step - 1, 0) // per_epoch + 1}/{epochs}"
        return self._step_text

    @property
    def steps(self) -> str:
        """The step if `position` shows the epoch: "step 690/3,220"; else nothing."""
        return self._step_text if self.position.startswith("epoch") else ""

    @property
    def _step_text(self) -> str:
        num_steps = self.started.num_steps if self.started else None
        return f"step {count_text(self.step)}" + (f"/{count_text(num_steps)}" if num_steps else "")

    @property
    def quality(self) -> str:
        """Training loss, or those that the experiment names, and the last validation's metrics."""
        losses = self.losses or ({"loss": self.loss} if self.loss is not None else {})
        parts = [f"{name} {metric_text('loss', value)}" for name, value in losses.items()]
        others = {name: value for name, value in self.metrics.items() if name != "loss"}
        shown = others or self.metrics
        return DOT.join(parts + ([metrics_text(shown)] if shown else []))

    @property
    def speed(self) -> str:
        """Rate, memory and time left."""
        parts = []
        if self.progress and self.progress.samples_per_s is not None:
            unit = self.started.unit if self.started else "samples"
            parts.append(rate_text(self.progress.samples_per_s, unit))
        if self.progress and self.progress.memory_bytes is not None:
            parts.append(_memory_text(self.progress))
        left_s = self.left_s()
        if left_s is not None:
            parts.append(f"{seconds_text(max(1, round(left_s)))} left")
        return DOT.join(parts)

    def left_s(self) -> float | None:
        """Seconds to the end, by the pace of the last lines, validations too; None if unknown."""
        if len(self._recent) < 2 or self.started is None or not self.started.num_steps:
            return None
        (begin_s, begin_step), (end_s, end_step) = self._recent[0], self._recent[-1]
        if end_s <= begin_s or end_step <= begin_step or self.step >= self.started.num_steps:
            return None
        return (self.started.num_steps - self.step) * (end_s - begin_s) / (end_step - begin_step)


def _memory_text(line: Progress) -> str:
    """Memory of tensors on a GPU, and the memory that the allocator has reserved."""
    assert line.memory_bytes is not None
    reserved = bytes_text(line.memory_bytes)
    if line.allocated_bytes is None:
        return reserved
    return f"{bytes_text(line.allocated_bytes)} allocated, {reserved} reserved"
