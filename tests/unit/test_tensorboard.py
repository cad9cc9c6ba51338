from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

from flatout.monitor.tensorboard import sample_scalars, scalars
from flatout.schema.run_lines import EpochEnded, Line, Progress, Validated
from flatout.system.clock import now_s
from flatout.system.demo_samples import demo_sample
from flatout.system.store.sample_file import SampleFile

HAS_WRITER = importlib.util.find_spec("tensorboardX") is not None
PROGRESS = Progress(
    at=1.0, step=2, epoch=0, loss=0.5, samples_per_s=None, learning_rate=0.1, memory_bytes=7,
    split_s={},
)  # fmt: skip
VALIDATED = Validated(
    at=1.0, step=2, epoch=0, metrics={"accuracy": 0.9, "loss": None}, is_best=True
)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (PROGRESS, {"train/loss": 0.5, "train/learning_rate": 0.1, "train/memory_bytes": 7}),
        (EpochEnded(at=1.0, step=2, epoch=0, loss=0.25), {"train/epoch_loss": 0.25}),
        (EpochEnded(at=1.0, step=2, epoch=0, loss=None), {}),
        (VALIDATED, {"validation/accuracy": 0.9}),
        (Line(at=1.0, step=2), {}),
    ],
)
def test_scalars_are_what_is_known(line: Line, expected: dict[str, float]) -> None:
    assert dict(scalars(line)) == expected


def test_show_tensorboard_when_the_package_is_missing(trained: Any) -> None:
    trained.missing += ("tensorboardX",)
    done = trained.run("show", "last", "--tensorboard", "board")
    assert done.returncode == 2
    assert "fix: pip install 'flatout[tensorboard]'" in done.stderr


def num_records(folder: Path) -> int:
    """Records in the one event file of a folder: each is length, checksum, data, checksum."""
    (file,) = folder.glob("events.out.tfevents.*")
    content, count, at = file.read_bytes(), 0, 0
    while at < len(content):
        at += struct.unpack("<Q", content[at : at + 8])[0] + 16
        count += 1
    return count


@pytest.mark.skipif(not HAS_WRITER, reason="needs the package tensorboardX")
def test_show_tensorboard_writes_each_value_once(trained: Any) -> None:
    for _ in range(2):
        done = trained.run("show", "last", "--tensorboard", "board")
        assert done.returncode == 0, done.stderr
        assert "tensorboard --logdir board" in done.stderr
        # The file's own version; 6 steps with 4 values each; 3 epochs with a loss and 2 metrics.
        assert num_records(trained.folder / "board" / "mine-0001") == 1 + 6 * 4 + 3 * 3


@pytest.mark.skipif(not HAS_WRITER, reason="needs the package tensorboardX")
def test_show_tensorboard_has_the_samples_of_the_machine(trained: Any) -> None:
    sample = demo_sample(now_s())
    with SampleFile(trained.runs / "mine-0001" / "samples.jsonl") as file:
        file.append(sample)
        file.append(sample)
    assert trained.run("show", "last", "--tensorboard", "board").returncode == 0
    num_values = len(list(sample_scalars(sample)))
    assert num_values == 2 + 6 + 5
    records = num_records(trained.folder / "board" / "mine-0001")
    assert records == 1 + 6 * 4 + 3 * 3 + 2 * num_values
    shown = trained.run("show", "last").stdout
    # Its experiment was trained on a CPU, or its fake engine does not say on what.
    assert "load " in shown and "of memory used" in shown
