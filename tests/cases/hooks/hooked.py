"""An experiment with hooks of all kinds, whose process is killed at a sample if KILL_AT says so."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn

import flatout

fetched = 0


class Points(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(40, 6, generator=dice)
        self.classes = self.inputs[:, :3].argmax(dim=1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        global fetched
        fetched += 1
        if fetched == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inputs[index], self.classes[index]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.2)
        self.register_buffer("in_buffer", torch.tensor(0.0))
        self.plain = 0.1

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        outputs: Tensor = self.last(self.dropout(hidden))
        return outputs


def loss(model: Any, batch: Any) -> Tensor:
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    weighed: Tensor = value * (1 + model.in_buffer + model.plain)
    return weighed


class Unfreeze:
    def __init__(self, *, is_spread: bool) -> None:
        self.is_spread = is_spread
        self.norms: list[float] = []
        self.sum = torch.zeros(())

    def on_start(self, context: Any) -> None:
        context.model.first.requires_grad_(False)
        context.log("begun", "with a frozen layer")

    def on_epoch(self, context: Any) -> None:
        if context.epoch == 2:
            context.model.first.requires_grad_(True)
        if context.epoch == 3 and not self.is_spread:
            # Each rank draws other numbers.
            context.model.last.reset_parameters()
        first, last = context.model.first.weight, context.model.last.weight
        if self.is_spread:
            # Each rank has a part of the rows.
            first, last = first.to_local(), last.to_local()
        self.norms.append(float(first.norm()))
        self.sum += last.sum()
        context.log("norms", sum(self.norms))
        context.log("sum", self.sum)
        context.log_picture("First weights", first.abs())


class Weigh:
    def on_epoch(self, context: Any) -> None:
        context.model.in_buffer.fill_(0.05 * context.epoch)
        context.model.plain = 0.1 * (context.epoch + 1)
        context.log("drawn", torch.rand(()))


class Stop:
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": sorted(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = set(state["seen"])

    def on_validation(self, context: Any) -> None:
        self.seen.add(context.step)
        context.log("validations", len(self.seen))
        if len(self.seen) == 5:
            context.stop(f"seen five, the last with {context.metrics['loss']:.3f}")


def experiment(is_spread: bool = False) -> flatout.Experiment:
    return flatout.Experiment(
        model=Net,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
        loss=loss,
        train_data=Points,
        validation_data=lambda: (torch.ones(10, 6), torch.ones(10, dtype=torch.long)),
        batch_size=8,
        epochs=9,
        hooks=lambda: [Unfreeze(is_spread=is_spread), Weigh(), Stop()],
    )
