"""A run as TensorBoard event files."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from flatout.errors import UsageError
from flatout.schema.run_lines import EpochEnded, Line, Progress, Validated

# Distinguishes our event files from those of other writers in the same folder.
_SUFFIX = ".flatout"


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
        try:
            # By name, since it loads numpy, which nothing but this option needs.
            package = importlib.import_module("tensorboardX")
        except ImportError as error:
            raise UsageError(
                "tensorboard-not-installed",
                "TensorBoard event files need the package tensorboardX.",
                because=str(error),
                fix="pip install 'flatout[tensorboard]'",
            ) from error
        for old in self.folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            old.unlink()
        self._writer = package.SummaryWriter(str(self.folder), filename_suffix=_SUFFIX)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def write(self, lines: Iterable[Line]) -> None:
        """Adds lines, in the order of their steps."""
        for line in lines:
            for name, value in scalars(line):
                self._writer.add_scalar(name, value, line.step, walltime=line.at)
        self._writer.flush()


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
    else:
        values = {}
    yield from ((name, value) for name, value in values.items() if value is not None)
