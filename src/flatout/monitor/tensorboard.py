"""A run as TensorBoard event files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from flatout.monitor.machine_use import others_bytes
from flatout.schema.machine_sample import MachineSample
from flatout.schema.run_lines import EpochEnded, Line, Logged, Progress, Validated
from flatout.system.optional_packages import load_package

# Distinguishes our event files from those of other writers in the same folder.
_SUFFIX = ".flatout"
_GPU_FIELDS = ("utilization", "used_bytes", "temperature_c", "power_w", "clock_hz")


class Writer:
    """Writes lines of a run as scalars; rebuilt each time, so that nothing is there twice.

    Args:
        run_id: names the run in TensorBoard.
        parent: TensorBoard's log folder; the files go into a folder of the run's name in it.

    Raises:
        UsageError: tensorboard-not-installed.
    """

    def __init__(self, run_id: str, parent: Path) -> None:
        self.folder = parent / run_id
        # Only here: it loads numpy, which nothing but this option needs.
        package = load_package(
            "tensorboard-not-installed", "`--tensorboard`", "tensorboardX", extra="tensorboard"
        )
        for old in self.folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            old.unlink()
        # When each step was, in the order of time.
        self._times: list[float] = []
        self._steps: list[int] = []
        self._writer = package.SummaryWriter(str(self.folder), filename_suffix=_SUFFIX)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def write(self, lines: Iterable[Line]) -> None:
        """Adds lines, in the order of their steps."""
        for line in lines:
            self._times.append(line.at)
            self._steps.append(line.step)
            for name, value in scalars(line):
                self._writer.add_scalar(name, value, line.step, walltime=line.at)
        self._writer.flush()

    def write_samples(self, samples: Iterable[MachineSample]) -> None:
        """Adds samples of the machine, each at the step that was logged before it."""
        for sample in samples:
            place = bisect_right(self._times, sample.at)
            step = self._steps[place - 1] if place else 0
            for name, value in sample_scalars(sample):
                self._writer.add_scalar(name, value, step, walltime=sample.at)
        self._writer.flush()


def sample_scalars(sample: MachineSample) -> Iterator[tuple[str, float]]:
    """What TensorBoard can draw of a sample; unknown values are left out."""
    host = sample.host
    values: dict[str, float | None] = {"machine/cpu_utilization": host.utilization}
    if host.memory_bytes is not None and host.available_bytes is not None:
        values["machine/memory_used_bytes"] = host.memory_bytes - host.available_bytes
    for gpu in sample.gpus:
        values |= {f"machine/gpu{gpu.index}_{name}": getattr(gpu, name) for name in _GPU_FIELDS}
        values[f"machine/gpu{gpu.index}_others_bytes"] = others_bytes(gpu)
    yield from ((name, value) for name, value in values.items() if value is not None)


def scalars(line: Line) -> Iterator[tuple[str, float]]:
    """The values of a line that TensorBoard can draw, grouped by the name before the slash."""
    if isinstance(line, Progress):
        values: dict[str, float | None] = {
            "train/loss": line.loss,
            "train/learning_rate": line.learning_rate,
            "train/samples_per_s": line.samples_per_s,
            "train/memory_bytes": line.memory_bytes,
            "train/allocated_bytes": line.allocated_bytes,
        }
        values |= {f"train/loss/{name}": value for name, value in line.losses.items()}
        values |= {
            f"train/learning_rate/{name}": rate for name, rate in line.learning_rates.items()
        }
    elif isinstance(line, EpochEnded):
        values = {"train/epoch_loss": line.loss}
        values |= {f"train/epoch_loss/{name}": value for name, value in line.losses.items()}
    elif isinstance(line, Validated):
        values = {f"validation/{name}": value for name, value in line.metrics.items()}
    elif isinstance(line, Logged):
        values = {f"logged/{line.name}": line.value}
    else:
        values = {}
    yield from ((name, value) for name, value in values.items() if value is not None)
