"""The contestants of overhead.py: the same ten epochs, each as its users write them.

Every function gets live objects and returns when the last metric is on disk. Only the call is
measured; building its arguments, importing and a first step on other objects come before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from flatout.engine.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all of them train: live objects on the CPU, and a folder to write to."""

    experiment: Experiment
    loss: Callable[[nn.Module, Any], Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: tuple[Tensor, Tensor]
    epochs: int
    device: str
    folder: Path

    def loader(self) -> DataLoader[Any]:
        """Shuffled batches, as in every tutorial."""
        dataset = TensorDataset(*self.data)
        is_pinned = self.device != "cpu"
        batch_size = self.experiment.batch_size
        return DataLoader(dataset, batch_size=batch_size, shuffle=True, pin_memory=is_pinned)


class MetricsFile:
    """The metrics of loops that write no file of their own: one JSON line per epoch."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "metrics.jsonl", "a", encoding="utf-8")

    def add(self, epoch: int, loss: float) -> None:
        """Writes a line; it has left this process when this returns."""
        self._file.write(json.dumps({"epoch": epoch, "loss": loss}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Flushes the file to disk."""
        os.fsync(self._file.fileno())
        self._file.close()


def run_plain(task: Task) -> float:
    """The loop of the tutorials: DataLoader, zero_grad, backward, step, loss.item()."""
    model, optimizer, loss_of = task.model, task.optimizer, task.loss
    loader, metrics = task.loader(), MetricsFile(task.folder)
    mean = 0.0
    for epoch in range(task.epochs):
        total, count = 0.0, 0
        for features, targets in loader:
            batch = features.to(task.device), targets.to(task.device)
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(features)
            count += len(features)
        mean = total / count
        metrics.add(epoch, mean)
    metrics.close()
    return mean


def run_bare(task: Task) -> float:
    """A loop written by hand for speed: sliced tensors, a fused optimizer, losses read late."""
    model, loss_of = task.model, task.loss
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    data = [tensor.to(task.device) for tensor in task.data]
    metrics, batch_size = MetricsFile(task.folder), task.experiment.batch_size
    mean = 0.0
    for epoch in range(task.epochs):
        order = torch.randperm(len(data[0])).to(task.device)
        columns = [tensor[order].split(batch_size) for tensor in data]
        losses = []
        for batch in zip(*columns, strict=True):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        sizes = torch.tensor([len(column) for column in columns[0]], dtype=torch.float32)
        mean = (torch.stack(losses).cpu() @ sizes).item() / len(order)
        metrics.add(epoch, mean)
    metrics.close()
    return mean


def run_accelerate(task: Task) -> float:
    """The plain loop with Accelerate's three changes."""
    accelerator = import_module("accelerate").Accelerator(cpu=task.device == "cpu")
    model, optimizer, loader = accelerator.prepare(task.model, task.optimizer, task.loader())
    loss_of, metrics = task.loss, MetricsFile(task.folder)
    mean = 0.0
    for epoch in range(task.epochs):
        total, count = 0.0, 0
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item() * len(batch[0])
            count += len(batch[0])
        mean = total / count
        metrics.add(epoch, mean)
    metrics.close()
    return mean


def run_lightning(task: Task) -> float:
    """Lightning with everything optional switched off; metrics written by hand."""
    metrics = MetricsFile(task.folder)
    mean = _fit(task, metrics.add, logger=False, enable_checkpointing=False,
                enable_model_summary=False)  # fmt: skip
    metrics.close()
    return mean


def run_lightning_default(task: Task) -> float:
    """Lightning with its defaults, logger and checkpoints; only the bar is off."""
    return _fit(task, lambda epoch, loss: None)


def _fit(task: Task, tell: Callable[[int, float], None], **options: Any) -> float:
    lightning = import_module("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model
            self.total, self.count, self.mean = 0.0, 0, 0.0

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = task.loss(self.model, batch)
            if options:
                self.total += loss.item() * len(batch[0])
                self.count += len(batch[0])
            else:
                self.log("loss", loss, on_step=False, on_epoch=True)
            return loss

        def on_train_epoch_end(self) -> None:
            if options:
                self.mean = self.total / self.count
                tell(self.current_epoch, self.mean)
                self.total, self.count = 0.0, 0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=task.epochs,
        accelerator="cpu" if task.device == "cpu" else "gpu",
        devices=1,
        enable_progress_bar=False,
        default_root_dir=task.folder,
        **options,
    )
    trainer.fit(module, task.loader())
    return module.mean if options else float(trainer.callback_metrics["loss"])


def run_flatout(task: Task) -> float:
    """flatout with its defaults: run folder, events, checkpoints; builds its own objects."""
    from flatout import engine
    from flatout.schema.run_lines import EpochEnded, Metric
    from flatout.system import atomic_files

    experiment = replace(task.experiment, epochs=task.epochs, validation_data=None)
    trained = engine.train(experiment, use={"device": task.device})
    lines = atomic_files.read_lines(Path(trained.run.folder) / "metrics.jsonl", Metric)
    return [line.loss for line in lines if isinstance(line, EpochEnded) and line.loss][-1]


LOOPS: dict[str, Callable[[Task], float]] = {
    "plain": run_plain,
    "flatout": run_flatout,
    "bare": run_bare,
    "accelerate": run_accelerate,
    "lightning": run_lightning,
    "lightning-default": run_lightning_default,
}
NEEDS = {"accelerate": "accelerate", "lightning": "lightning", "lightning-default": "lightning"}
