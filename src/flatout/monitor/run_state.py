"""What the alarms remember of a run: its lines, folded, and the last two minutes of them."""

from __future__ import annotations

from collections import deque

from flatout.monitor.gpu_alarms import KEPT_S
from flatout.monitor.run_sample import RunSample
from flatout.schema.alarm import WorkerSample
from flatout.schema.finding import Finding
from flatout.schema.run_lines import (
    EpochEnded,
    Failed,
    Finished,
    Line,
    Progress,
    RecipeSet,
    Started,
    Stopped,
    Warned,
)

# Of a run's beginning, so many losses are kept until it is known that they fall.
_MOST_LOSSES = 2000
# Of a session's speeds, so many are kept for their median.
_MOST_RATES = 2000
_BAD_LOSS = "nonfinite-loss"


class RunState:
    """A run as its samples have shown it.

    progress: lines of the last two minutes. workers: its processes in that time.
    memory, tensors: memory of the processes, and of tensors on the GPU, at lines of progress.
    splits: by rank, where its time went. rates: (time, samples per second) of this session.
    losses: (time, step, loss) since the learning rate rose last; empty once they have fallen.
    epoch_losses: of whole epochs since then.
    longest_gap_s: between two lines of this session. free_since: when no worker was in use first.
    bad_news: what the run itself has reported since it is watched, by rule, and when it was seen.
    kept_s: for how long processes and lines are kept.
    """

    def __init__(self, sample: RunSample, kept_s: float = KEPT_S) -> None:
        self.sample = sample
        self._kept_s = kept_s
        self._device: str | None = None
        self._watched_since = sample.at
        self.started: Started | None = None
        self.ending: Finished | Stopped | Failed | None = None
        self.progress: deque[Progress] = deque()
        self.workers: deque[tuple[float, WorkerSample]] = deque()
        self.memory: deque[tuple[float, float]] = deque()
        self.tensors: deque[tuple[float, float]] = deque()
        self.splits: dict[int, deque[tuple[float, dict[str, float]]]] = {}
        self.rates: deque[tuple[float, float]] = deque(maxlen=_MOST_RATES)
        self.peak_memory = self.peak_tensors = 0.0
        self.num_epochs = 0
        self.first_epoch_ended_at = 0.0
        self.first_progress_at: float | None = None
        self.longest_gap_s = 0.0
        self.last_line_at = sample.at
        self.free_since: float | None = None
        self.bad_news: dict[str, tuple[float, Finding]] = {}
        self.losses: list[tuple[float, int, float]] = []
        self.epoch_losses: list[float] = []
        self.first_loss: float | None = None
        self.has_fallen = False
        self._highest_rate = 0.0

    def take(self, sample: RunSample) -> None:
        """Takes the next sample."""
        self.sample = sample
        for line in sample.lines:
            self._take_line(line)
        if sample.is_in_use:
            self.free_since = None
        elif self.free_since is None:
            self.free_since = sample.at
        if sample.worker is not None:
            self.workers.append((sample.at, sample.worker))
            # Only between steps: a validation gives back what it has gathered.
            is_stepping = any(isinstance(line, Progress) for line in sample.lines)
            if is_stepping and sample.worker.memory_bytes is not None:
                self.memory.append((sample.at, float(sample.worker.memory_bytes)))
        for rank in sample.ranks:
            self.splits.setdefault(rank.rank, deque()).append((rank.at, rank.split_s))
        self._drop_old(sample.at)

    def forget(self, at: float) -> None:
        """Begins again, as after the computer has slept."""
        for points in (self.progress, self.workers, self.memory, self.tensors, self.rates):
            points.clear()
        self.splits.clear()
        self.last_line_at = max(self.last_line_at, at)

    @property
    def is_training(self) -> bool:
        """Whether a worker trains it, and has made steps."""
        return self.sample.is_in_use and self.ending is None and bool(self.first_progress_at)

    @property
    def uses_gpu(self) -> bool:
        """Whether it trains on a GPU."""
        return bool(self.progress) and self.progress[-1].allocated_bytes is not None

    @property
    def is_on_cpu(self) -> bool:
        """Whether it is known to train on the CPU."""
        return self._device == "cpu"

    def _take_line(self, line: Line) -> None:
        is_new = line.at >= self._watched_since - 1.0
        if isinstance(line, Started):
            self._begin_session(line)
        elif isinstance(line, Finished | Stopped | Failed):
            self.ending = line
            if isinstance(line, Failed) and is_new:
                self.bad_news[line.finding.rule] = (self.sample.at, line.finding)
        elif isinstance(line, Warned) and line.finding.rule == _BAD_LOSS and is_new:
            self.bad_news[_BAD_LOSS] = (self.sample.at, line.finding)
        elif isinstance(line, RecipeSet):
            self._device = line.recipe.device.value
        elif isinstance(line, EpochEnded):
            self.num_epochs += 1
            if self.num_epochs == 1:
                self.first_epoch_ended_at = line.at
            if line.loss is not None and self.losses and not self.has_fallen:
                self.epoch_losses.append(line.loss)
        if self.first_progress_at is not None:
            self.longest_gap_s = max(self.longest_gap_s, line.at - self.last_line_at)
        if isinstance(line, Progress):
            self._take_progress(line)
        self.last_line_at = max(self.last_line_at, line.at)

    def _begin_session(self, line: Started) -> None:
        self.started, self.ending = line, None
        # Its loss fell in lines that are not here.
        self.has_fallen |= line.resumed and self.first_loss is None
        self.bad_news.clear()
        for points in (self.progress, self.workers, self.memory, self.tensors, self.rates):
            points.clear()
        self.splits.clear()
        self.peak_memory = self.peak_tensors = 0.0
        self.num_epochs, self.longest_gap_s = 0, 0.0
        self.first_progress_at = None

    def _take_progress(self, line: Progress) -> None:
        if self.first_progress_at is None:
            self.first_progress_at = line.at
        self.progress.append(line)
        self.splits.setdefault(0, deque()).append((line.at, line.split_s))
        if line.samples_per_s is not None:
            self.rates.append((line.at, line.samples_per_s))
        if line.allocated_bytes is not None:
            self.tensors.append((line.at, float(line.allocated_bytes)))
        if line.loss is not None and not self.has_fallen:
            self._take_loss(line, line.loss)

    def _take_loss(self, line: Progress, loss: float) -> None:
        if self.first_loss is None:
            self.first_loss = loss
        if line.learning_rate > 1.01 * self._highest_rate:
            # In a warm-up, the loss may stay where it is.
            self._highest_rate = line.learning_rate
            self.losses.clear()
            self.epoch_losses.clear()
        self.losses.append((line.at, line.step, loss))
        if len(self.losses) > _MOST_LOSSES:
            del self.losses[1::2]

    def _drop_old(self, at: float) -> None:
        while self.progress and at - self.progress[0].at > self._kept_s:
            self.progress.popleft()
        while self.workers and at - self.workers[0][0] > self._kept_s:
            self.workers.popleft()
        for splits in self.splits.values():
            while splits and at - splits[0][0] > self._kept_s:
                splits.popleft()
        # The highest of what is too old to be looked at: a leak grows beyond it.
        while self.memory and at - self.memory[0][0] > self._kept_s:
            self.peak_memory = max(self.peak_memory, self.memory.popleft()[1])
        while self.tensors and at - self.tensors[0][0] > self._kept_s:
            self.peak_tensors = max(self.peak_tensors, self.tensors.popleft()[1])
