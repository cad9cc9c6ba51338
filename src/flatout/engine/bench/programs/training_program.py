"""What the programs of all frameworks share: request, replies, and how steps are timed.

A request comes as one JSON line on stdin, and replies go out as JSON lines on stdout: see
`schema/framework_protocol.py`. The end of stdin means that the parent is gone.

Weights come in torch's layout: (out, in) of linear layers, (out, in, height, width) of
convolutions.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

_MOST_STEPS_PER_BLOCK = 100_000


@dataclass(frozen=True)
class Task:
    """The request; its fields are those of `FrameworkTask`."""

    experiment: str
    parameters: dict[str, Any]
    variant: str
    device: str
    num_threads: int
    seed: int
    data_file: str
    weights_file: str
    layers: list[list[Any]]
    loss: str
    optimizer: dict[str, Any]
    pixels: list[float] | None
    steps_per_call: int
    num_steps: int
    num_blocks: int
    block_s: float
    has_dropout: bool
    recipe: dict[str, Any]

    @property
    def is_gpu(self) -> bool:
        """Whether it trains on a GPU; its number is in CUDA_VISIBLE_DEVICES."""
        return self.device.startswith("cuda")

    @property
    def is_classification(self) -> bool:
        """Whether targets are classes."""
        return self.loss == "cross-entropy"


class FrameworkTrainer(Protocol):
    """One framework with a network, its optimizer and the data. recipe: how it trains, as text."""

    recipe: str

    def train(self, num_steps: int) -> None:
        """Makes steps, and returns when the device has finished them."""
        ...

    def outputs(self) -> np.ndarray:
        """What the network computes for the validation data, without dropout."""
        ...

    def peak_gpu_bytes(self) -> int | None:
        """The most memory of the GPU that was in use; None if the framework does not say."""
        ...


@dataclass(frozen=True)
class Arrays:
    """Data, initial weights, and which samples are in which batch.

    order_SB: samples of each step; after the last row, the first comes again.
    """

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    weights: list[np.ndarray]
    order_SB: np.ndarray

    @classmethod
    def load(cls, task: Task) -> Arrays:
        """Reads both files."""
        with np.load(task.data_file) as data, np.load(task.weights_file) as own:
            names = sorted((name for name in own if name != "order"), key=int)
            return cls(
                train=(data["train_inputs"], data["train_targets"]),
                validation=(data["validation_inputs"], data["validation_targets"]),
                weights=[own[name] for name in names],
                order_SB=own["order"],
            )


class Steps:
    """Which rows of the order come next."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._next = 0

    def take(self, num_steps: int) -> np.ndarray:
        """The numbers of the rows of the next steps."""
        rows = np.arange(self._next, self._next + num_steps) % self._num_rows
        self._next = int(rows[-1] + 1) if num_steps else self._next
        return rows


def main(package: str, make: Callable[[Task, Arrays], FrameworkTrainer]) -> None:
    """Handles the request on stdin.

    Args:
        package: the framework's distribution, for its version.
        make: builds the network.
    """
    answers, task = _take_over_stdio()
    try:
        arrays = Arrays.load(task)
        trainer = make(task, arrays)
        version = importlib.metadata.version(package)
        fields = getattr(trainer, "fields", {})
        _write(answers, "ready", version=version, recipe=trainer.recipe, fields=fields)
        _carry_out(task, arrays, trainer, answers)
    # Whatever a framework raises is the reason that is shown.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        _write(answers, "failed", problem=f"{type(error).__name__}: {lines[0][:300]}")
        sys.stderr.flush()
        os._exit(1)
    sys.stderr.flush()
    # Some frameworks' threads crash while the interpreter ends.
    os._exit(0)


def _take_over_stdio() -> tuple[Any, Task]:
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    task = Task(**json.loads(requests.readline()))

    def exit_when_closed() -> None:
        requests.read()
        os._exit(1)

    threading.Thread(target=exit_when_closed, daemon=True).start()
    return answers, task


def _carry_out(task: Task, arrays: Arrays, trainer: FrameworkTrainer, answers: Any) -> None:
    for _ in range(0, task.num_steps, task.steps_per_call):
        trainer.train(task.steps_per_call)
    _write(answers, "made", num_steps=task.num_steps)
    loss, accuracy = score(task, trainer.outputs(), arrays.validation[1])
    _write(answers, "scored", loss=loss, accuracy=accuracy)
    if task.num_blocks:
        step_s, busy_cpus = timed(task, trainer)
        _write(answers, "timed", step_s=step_s, busy_cpus=busy_cpus)
    peak = trainer.peak_gpu_bytes() if task.is_gpu else _peak_resident_bytes()
    _write(answers, "ended", peak_bytes=peak)


def timed(task: Task, trainer: FrameworkTrainer) -> tuple[list[float], float]:
    """Seconds per step of each block, and how many CPUs were busy with them.

    A block has as many steps as take `block_s`.
    """
    num_steps = task.steps_per_call
    while num_steps < _MOST_STEPS_PER_BLOCK:
        took_s = _seconds(trainer, num_steps)
        if took_s >= task.block_s:
            break
        factor = min(10.0, 1.1 * task.block_s / max(took_s, 1e-9))
        calls = max(
            num_steps // task.steps_per_call + 1, round(num_steps * factor / task.steps_per_call)
        )
        num_steps = calls * task.steps_per_call
    cpu_began_s, began_s = time.process_time(), time.perf_counter()
    samples = [_seconds(trainer, num_steps) / num_steps for _ in range(task.num_blocks)]
    busy_s = time.process_time() - cpu_began_s
    return samples, busy_s / (time.perf_counter() - began_s)


def score(task: Task, outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float | None]:
    """The loss over the validation data in double precision, and the accuracy of classes."""
    wide = np.asarray(outputs, dtype=np.float64)
    if not task.is_classification:
        return float(np.mean((wide - targets) ** 2)), None
    shifted = wide - wide.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    labels = targets.astype(np.int64)
    loss = -float(np.mean(logs[np.arange(len(labels)), labels]))
    return loss, float(np.mean(wide.argmax(axis=1) == labels))


def with_channels_last(task: Task, weights: list[np.ndarray]) -> list[np.ndarray]:
    """Weights for (batch, height, width, channels): of convolutions (height, width, in, out), of
    linear layers (in, out), the one after `flatten` with its inputs in the other order.
    """
    changed, left, sides = [], list(weights), None
    for kind, *sizes in task.layers:
        if kind == "conv":
            changed += [left.pop(0).transpose(2, 3, 1, 0), left.pop(0)]
        elif kind == "flatten":
            sides = sizes
        elif kind == "linear":
            weight = left.pop(0)
            if sides is not None:
                weight = weight.reshape(-1, *sides).transpose(0, 2, 3, 1).reshape(len(weight), -1)
                sides = None
            changed += [weight.T, left.pop(0)]
    return [np.ascontiguousarray(weight) for weight in changed]


def _seconds(trainer: FrameworkTrainer, num_steps: int) -> float:
    began_s = time.perf_counter()
    trainer.train(num_steps)
    return time.perf_counter() - began_s


def _peak_resident_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def _write(answers: Any, kind: str, **fields: Any) -> None:
    answers.write(json.dumps({"kind": kind, **fields}) + "\n")
    answers.flush()
