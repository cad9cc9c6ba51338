"""Lines about the training, ten a second at most and fewer later, from losses read late."""

from __future__ import annotations

import torch
from torch import Tensor

from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime.energy import EnergyMeter, gpu_joules
from flatout.engine.runtime.gpu_memory import MemoryCap, SpillWatch
from flatout.engine.runtime.oom import OutOfMemory
from flatout.engine.runtime.rng import sample_order
from flatout.engine.runtime.step_timer import Losses, StepTimer, allocated_bytes, memory_bytes
from flatout.engine.session.session import Session
from flatout.engine.step.loss_means import LossMeans
from flatout.errors import RunFailed
from flatout.schema.run_lines import EpochEnded, Progress
from flatout.schema.units import bytes_text
from flatout.system.clock import elapsed_s, now_s
from flatout.system.run_recorder import RunRecorder

# Until so many seconds after the start, a line every so many seconds.
_PACE = ((60.0, 0.1), (3600.0, 1.0), (float("inf"), 10.0))
_MOST_SKIP_WARNINGS = 10


class MetricsLog:
    """Gathers what the updates give and writes it down now and then.

    Args:
        session: what is trained.
        event_log: where it is logged.
        timer: knows where the time went.
        cap: what is left to other programs of the GPU, where it is capped.
        recorder: of the machine, whose findings are logged.

    moved: memory that the driver has moved out of the GPU; the handler sets it to None.
    """

    def __init__(
        self,
        session: Session,
        event_log: EventLog,
        timer: StepTimer,
        cap: MemoryCap | None = None,
        recorder: RunRecorder | None = None,
    ) -> None:
        self._cap = cap
        self._recorder = recorder
        self._session = session
        self._event_log = event_log
        self._timer = timer
        self._losses = Losses(session.device)
        self._began_s = self._line_s = elapsed_s()
        self._line_samples = 0
        self._line_validation_s = timer.validation_s()
        self._line_losses: list[tuple[float, int]] = []
        self._named = LossMeans(session.device, session.position)
        self._num_skips = 0
        self._spill = SpillWatch(session.device)
        self._power = EnergyMeter(gpu_joules(session.device))
        self.moved: OutOfMemory | None = None

    def add(self, loss: Tensor | dict[str, Tensor], num_samples: int) -> None:
        """Takes note of an update; of several losses by name the sum is the update's loss."""
        if isinstance(loss, dict):
            self._named.add(loss, num_samples)
            loss = sum(loss.values(), torch.zeros((), device=self._session.device))
        self._losses.add(loss, num_samples)
        self._line_samples += num_samples

    def is_due(self) -> bool:
        """Whether it is time for a line: seldomer as a run grows, or a day would fill 300 MB."""
        now = elapsed_s()
        every_s = next(every_s for until_s, every_s in _PACE if now - self._began_s < until_s)
        return now - self._line_s >= every_s

    def report(self, *, is_waiting: bool = False, is_last: bool = False) -> None:
        """Takes in the losses of the updates since the last call; writes a line if it is time.

        Args:
            is_waiting: waits for the losses of all updates made so far.
            is_last: writes the line in any case.

        Raises:
            RunFailed: nonfinite-loss.
        """
        position = self._session.position
        losses = self._losses.take(is_waiting=is_waiting)
        self._named.take(is_waiting=is_waiting)
        for index, (loss, num_samples) in enumerate(losses):
            if loss - loss != 0.0:  # true for NaN and the infinities
                self._nonfinite(loss, len(losses) - index + self._losses.num_pending())
            else:
                self._line_losses.append((loss, num_samples))
                position.epoch_loss_sum += loss * num_samples
                position.epoch_loss_samples += num_samples
        if self._line_samples and (is_last or self.is_due()):
            self._write_line(self._line_losses)
            self._line_losses = []

    def end_epoch(self) -> None:
        """Writes the epoch's mean loss."""
        position = self._session.position
        self.report(is_waiting=True)
        if position.epoch_loss_samples:
            loss = position.epoch_loss_sum / position.epoch_loss_samples
            self._event_log.metric(
                EpochEnded(
                    at=now_s(),
                    step=position.step,
                    epoch=position.epoch,
                    loss=loss,
                    losses=self._named.end_epoch(),
                    learning_rate=next(iter(self._session.optimizers.learning_rates().values())),
                )
            )
        position.epoch_loss_sum = 0.0
        position.epoch_loss_samples = 0

    def _write_line(self, losses: list[tuple[float, int]]) -> None:
        session = self._session
        now = elapsed_s()
        num_samples = sum(size for _, size in losses)
        # A rate is training's: validations since the last line are not counted.
        validation_s = self._timer.validation_s()
        seconds = now - self._line_s - (validation_s - self._line_validation_s)
        samples_per_s = self._line_samples / seconds if seconds > 0 else None
        rates = session.optimizers.learning_rates()
        self._event_log.metric(
            Progress(
                at=now_s(),
                step=session.position.step,
                epoch=session.position.epoch,
                loss=sum(loss * size for loss, size in losses) / num_samples if losses else None,
                samples_per_s=samples_per_s,
                learning_rate=next(iter(rates.values())),
                memory_bytes=memory_bytes(session.device),
                allocated_bytes=allocated_bytes(session.device),
                split_s=self._timer.split_s(),
                power_w=self._power.mean_w(),
                losses=self._named.end_line(),
                learning_rates=rates if len(rates) > 1 else {},
            )
        )
        self._line_s, self._line_samples, self._line_validation_s = now, 0, validation_s
        moved_bytes = self._spill.moved_bytes(samples_per_s) if samples_per_s is not None else 0
        if moved_bytes:
            because = (
                f"the driver moved {bytes_text(moved_bytes)} to system memory, and speed fell to "
                "a third"
            )
            self.moved = OutOfMemory(part="pace", because=because)
        findings = self._recorder.findings() if self._recorder is not None else []
        capped = self._cap.check() if self._cap is not None else None
        for finding in [*findings, *([capped] if capped is not None else [])]:
            self._event_log.warn(session.position.step, finding)

    def _nonfinite(self, loss: float, num_later: int) -> None:
        """A NaN or infinite loss, of the update that is the num_later-th from the newest."""
        session = self._session
        position = session.position
        step, update = position.step - num_later + 1, position.update - num_later
        indices = _sample_indices(session, update)
        path = self._event_log.keep_samples(step, position.epoch, indices) if indices else None
        error = RunFailed(
            "nonfinite-loss",
            f"the loss of step {step:,} (epoch {position.epoch + 1}) is {loss}.",
            because=f"the indices of its samples are in {path}" if path else None,
            fix="lower the learning rate, set clip_norm, check these samples; or skip such "
            "batches with --use nonfinite_loss=skip",
        )
        if session.recipe.nonfinite_loss.value == "stop":
            raise error
        self._num_skips += 1
        if self._num_skips <= _MOST_SKIP_WARNINGS:
            self._event_log.warn_of(step, error)


class SilentMetricsLog:
    """Stands in for a MetricsLog on ranks that log nothing: rank 0 logs for all."""

    moved: OutOfMemory | None = None

    def add(self, loss: Tensor | dict[str, Tensor], num_samples: int) -> None:
        """See MetricsLog."""

    def is_due(self) -> bool:
        """See MetricsLog."""
        return False

    def report(self, *, is_waiting: bool = False, is_last: bool = False) -> None:
        """See MetricsLog."""

    def end_epoch(self) -> None:
        """See MetricsLog."""


def _sample_indices(session: Session, update: int) -> list[int]:
    """Indices of the samples of that update of this epoch; none where the data has no index."""
    num_samples = session.feed.num_samples
    if num_samples is None or session.facts.data_kind == "iterable":
        return []
    batch_size = session.experiment.batch_size
    order = sample_order(
        num_samples, session.seed, session.position.epoch, session.experiment.shuffle
    )
    indices: list[int] = order[update * batch_size : (update + 1) * batch_size].tolist()
    return indices
