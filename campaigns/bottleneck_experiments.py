"""Small trainings with one planted bottleneck each, and the same without it.

`experiment(case=NAME)` has it, `experiment(case=NAME, is_planted=false)` does not. What is planted
by a recipe field is not here: see `campaigns/bottlenecks.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import flatout

CLASSES = 10
LONGEST, WORDS = 192, 2000


def experiment(
    case: str = "plain", is_planted: bool = True, batch_size: int = 64
) -> flatout.Experiment:
    """One of the cases.

    Args:
        case: its name, as a key of CASES.
        is_planted: with its bottleneck.
        batch_size: samples per update.
    """
    return CASES[case](is_planted, batch_size)


def _rows(width: int, count: int = 4096) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return (
        torch.randn(count, width, generator=random),
        torch.randint(CLASSES, (count,), generator=random),
    )


def _perceptron(width: int, depth: int = 2) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def _classifier(
    model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    data: Callable[[], Any],
    batch_size: int,
    **others: Any,
) -> flatout.Experiment:
    return flatout.Experiment(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        train_data=data,
        batch_size=batch_size,
        epochs=1000,
        **others,
    )


def _small(loss: Callable[[nn.Module, Any], Tensor], batch_size: int) -> flatout.Experiment:
    """So little work for an operator that flatout gives it a single thread."""
    return _classifier(lambda: _perceptron(96), loss, lambda: _rows(96), batch_size)


def _mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def plain(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Nothing planted in it: recipe fields make it slow."""
    return _small(_mean_loss, batch_size)


def wide(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Large matrix products."""
    return _classifier(lambda: _perceptron(1536), _mean_loss, lambda: _rows(1536, 1024), batch_size)


def many_weights(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Many small weights."""

    def model() -> nn.Module:
        blocks = [nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24)) for _ in range(40)]
        return nn.Sequential(*blocks, nn.Linear(24, CLASSES))

    return flatout.Experiment(
        model=model,
        loss=_mean_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        train_data=lambda: _rows(24),
        batch_size=batch_size,
        epochs=1000,
    )


def reading_values(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """A value of each sample is read."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        losses = functional.cross_entropy(model(inputs), labels, reduction="none")
        if not is_planted:
            kept = losses < 10.0
            return (losses * kept).sum() / kept.sum()
        total, count = losses.new_zeros(()), 0
        for one in losses:
            if one.item() < 10.0:
                total = total + one
                count += 1
        return total / count

    return _small(loss, batch_size)


class _Signals(Dataset[tuple[Tensor, int]]):
    """Signals that are smoothed in Python whenever they are read."""

    def __init__(self) -> None:
        self._values = torch.randn(2048, 64, generator=torch.Generator().manual_seed(2)).tolist()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        smoothed = []
        state = 0.0
        for value in self._values[index]:
            state = 0.9 * state + 0.1 * math.tanh(value)
            smoothed.append(state)
        return torch.tensor(smoothed), index % CLASSES


def slow_samples(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Samples are computed in Python."""
    return _classifier(lambda: _perceptron(64), _mean_loss, _Signals, batch_size)


def sample_loop(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """The loss is computed sample by sample."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        logits = model(inputs)
        if not is_planted:
            return functional.cross_entropy(logits, labels)
        losses = []
        for number in range(len(labels)):
            row = logits[number : number + 1]
            losses.append(functional.cross_entropy(row, labels[number : number + 1]))
        return torch.stack(losses).mean()

    return _small(loss, batch_size)


def convolutions(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Convolutions with normalization and pooling."""

    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip

    def model() -> nn.Module:
        return nn.Sequential(
            block(3, 32), block(32, 64), block(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, CLASSES),
        )  # fmt: skip

    def data() -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(3)
        return (
            torch.randn(256, 3, 48, 48, generator=random),
            torch.randint(CLASSES, (256,), generator=random),
        )

    return _classifier(model, _mean_loss, data, batch_size)


def blocks(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Repeated blocks, whose activations can be computed again."""

    def model() -> nn.Module:
        return _Encoder(128)

    def data() -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(4)
        return (
            torch.randn(512, 32, 128, generator=random),
            torch.randint(CLASSES, (512,), generator=random),
        )

    return _classifier(model, _mean_loss, data, batch_size)


class _Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(6)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        answer: Tensor = self.head(hidden.mean(1))
        return answer


class _Elementwise(nn.Module):
    """A normalization and an activation, each written out in small operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.linear(hidden)
        centered = hidden - hidden.mean(-1, keepdim=True)
        variance = (centered * centered).mean(-1, keepdim=True)
        hidden = self.gain * centered / (variance + 1e-5).sqrt()
        inner = 0.7978845608 * (hidden + 0.044715 * hidden * hidden * hidden)
        return 0.5 * hidden * (1.0 + torch.tanh(inner))


def small_operators(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Many operators on little data."""

    def model() -> nn.Module:
        return nn.Sequential(*[_Elementwise(32) for _ in range(8)], nn.Linear(32, CLASSES))

    return _classifier(model, _mean_loss, lambda: _rows(32), batch_size)


def printing(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """The losses of all samples are printed."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        losses = functional.cross_entropy(model(inputs), labels, reduction="none")
        if is_planted:
            print("losses", losses)
        return losses.mean()

    return _small(loss, batch_size)


class _Texts(Dataset[Tensor]):
    """Texts of very different lengths, as numbers of their words."""

    def __init__(self, is_filled: bool) -> None:
        random = torch.Generator().manual_seed(5)
        lengths = torch.randint(12, LONGEST // 3, (2048,), generator=random).tolist()
        lengths[0] = LONGEST
        # In the order of their lengths, if they are not all filled up to the longest.
        lengths = lengths if is_filled else sorted(lengths)
        self._rows = [torch.randint(1, WORDS, (length,), generator=random) for length in lengths]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        return self._rows[index]


class _Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 128)
        self.layers = nn.Sequential(
            nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128)
        )
        self.head = nn.Linear(128, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.layers(self.words(rows)) * (rows != 0).unsqueeze(-1)
        answer: Tensor = self.head(hidden.sum(1))
        return answer


def padding(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Every text is filled up to the longest of all."""

    def collate(rows: list[Tensor]) -> Tensor:
        longest = LONGEST if is_planted else max(map(len, rows))
        return torch.stack([functional.pad(row, (0, longest - len(row))) for row in rows])

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(rows), rows[:, 0] % CLASSES)

    return _classifier(
        _Reader, loss, lambda: _Texts(is_planted), batch_size, collate=collate, shuffle=is_planted
    )


def recompiles(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """A number that torch.compile takes for a constant changes in every step."""
    torch._dynamo.config.recompile_limit = 1_000_000
    torch._dynamo.config.accumulated_recompile_limit = 1_000_000
    step = [0]

    @torch.compile(backend="eager", dynamic=False)
    def scaled(logits: Tensor, temperature: Any) -> Tensor:
        return logits * torch.rsqrt(1 + temperature + logits.square().mean())

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        step[0] += 1
        temperature: Any = step[0] if is_planted else torch.tensor(float(step[0]))
        return functional.cross_entropy(scaled(model(inputs), temperature), labels)

    return _small(loss, batch_size)


def float64(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Model and data in twice the bits."""

    def model() -> nn.Module:
        made = _perceptron(512)
        return made.double() if is_planted else made

    def data() -> tuple[Tensor, Tensor]:
        rows, labels = _rows(512)
        return (rows.double() if is_planted else rows), labels

    return _classifier(model, _mean_loss, data, batch_size)


def copies(is_planted: bool, batch_size: int) -> flatout.Experiment:
    """Each batch of pictures is converted there and back."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        if is_planted:
            inputs = inputs.clone().to(torch.float64).contiguous().to(torch.float32)
        return functional.cross_entropy(model(inputs[:, :256]), labels)

    return _classifier(lambda: _perceptron(256), loss, lambda: _rows(16_384, 512), batch_size)


CASES: dict[str, Callable[[bool, int], flatout.Experiment]] = {
    "plain": plain,
    "wide": wide,
    "many_weights": many_weights,
    "reading_values": reading_values,
    "slow_samples": slow_samples,
    "sample_loop": sample_loop,
    "convolutions": convolutions,
    "blocks": blocks,
    "small_operators": small_operators,
    "printing": printing,
    "padding": padding,
    "recompiles": recompiles,
    "float64": float64,
    "copies": copies,
}
