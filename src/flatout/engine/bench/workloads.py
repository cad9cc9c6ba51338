"""What `flatout bench run` trains: built-in experiments, and networks that only exist here.

Data that is not on this machine is replaced by random data of the same form, and
`WorkloadExperiment.data` says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from flatout.engine.experiment import Experiment
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.schema.experiment_spec import ExperimentSpec, Value
from flatout.schema.workloads import MeasuredSize
from flatout.system.store import datasets

_RANDOM = "random numbers of the same shape"
# Pictures of ResNet-50, so many times the batch; enough not to be in a cache.
_NUM_BATCHES = 4
_NUM_SEQUENCES = 256
_NUM_IMAGES = 6_000
_MASK, _FIRST_WORD, _NOT_MASKED, _MASKED_SHARE = 103, 1_000, -100, 0.15
_CHARACTERS = 65


@dataclasses.dataclass(frozen=True)
class WorkloadExperiment:
    """A workload as an experiment. data: what it trains on, for people."""

    experiment: Experiment
    data: str


def workload_experiment(size: MeasuredSize) -> WorkloadExperiment:
    """The experiment of a workload in a size."""
    return _EXPERIMENTS[size.workload](size.parameters, size.batch_size)


def _mlp(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    return WorkloadExperiment(_built_in("mlp", parameters, batch_size), "made-up numbers")


def _mnist_large(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    large = _built_in("mnist-large", parameters, batch_size)
    if datasets.find("mnist") is not None:
        return WorkloadExperiment(large, "MNIST, 60,000 + 10,000 images, in memory")
    made = dataclasses.replace(
        large,
        train_data=lambda: random_images(_NUM_IMAGES, 1),
        validation_data=lambda: random_images(_NUM_IMAGES // 6, 2),
    )
    return WorkloadExperiment(made, f"{_RANDOM}: MNIST is not on this machine")


def _mnist_wsl2(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    """mnist-large, with `Dropout2d` as in the benchmark of 2020 (see docs/bench.md)."""
    workload = _mnist_large({"size": "tiny"}, batch_size)
    channels = int(parameters["channels"] or 0)
    experiment = dataclasses.replace(
        workload.experiment,
        model=lambda: wsl2_benchmark_network(channels),
        loss=_log_softmax_loss,
        metrics=_log_softmax_metrics,
    )
    return WorkloadExperiment(experiment, workload.data)


def _resnet50(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    samples = {**parameters, "samples": _NUM_BATCHES * batch_size}
    return WorkloadExperiment(_built_in("resnet50", samples, batch_size), "made-up pictures")


def _charlm(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    experiment = _built_in("charlm", parameters, batch_size)
    if datasets.find("tinyshakespeare") is not None:
        return WorkloadExperiment(experiment, "tiny Shakespeare")
    length = 257 if parameters["size"] == "full" else 65
    made = dataclasses.replace(
        experiment,
        train_data=lambda: _random_tokens(4_096, length, _CHARACTERS, 1).to(torch.uint8),
        validation_data=lambda: _random_tokens(512, length, _CHARACTERS, 2).to(torch.uint8),
    )
    return WorkloadExperiment(made, f"{_RANDOM}: tiny Shakespeare is not on this machine")


def _bert_large(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    depth, length = int(parameters["depth"] or 0), int(parameters["length"] or 0)
    shape = TransformerShape(
        depth=depth,
        width=1024,
        num_heads=16,
        length=length,
        vocabulary=30_522,
        dropout=0.1,
        is_causal=False,
    )
    experiment = Experiment(
        model=lambda: Transformer(shape),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01),
        loss=_masked_loss,
        train_data=lambda: _masked_sequences(_NUM_SEQUENCES, length, shape.vocabulary, 1),
        validation_data=lambda: _masked_sequences(16, length, shape.vocabulary, 2),
        batch_size=batch_size,
        steps=1_000,
        clip_norm=1.0,
        unit="sequences",
    )
    return WorkloadExperiment(experiment, "random words, full sequences, 15 % masked")


def _gpt3_small(parameters: dict[str, Value], batch_size: int) -> WorkloadExperiment:
    depth, length = int(parameters["depth"] or 0), int(parameters["length"] or 0)
    # The vocabulary of 50,257 in multiples of 64, as is usual.
    shape = TransformerShape(
        depth=depth,
        width=768,
        num_heads=12,
        length=length,
        vocabulary=50_304,
        dropout=0.0,
        is_causal=True,
    )
    experiment = Experiment(
        model=lambda: Transformer(shape),
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1
        ),
        loss=_next_token_loss,
        train_data=lambda: _random_tokens(_NUM_SEQUENCES, length + 1, 50_257, 1),
        validation_data=lambda: _random_tokens(16, length + 1, 50_257, 2),
        batch_size=batch_size,
        steps=1_000,
        clip_norm=1.0,
        unit="sequences",
    )
    return WorkloadExperiment(experiment, "random tokens, full sequences")


_EXPERIMENTS: dict[str, Callable[[dict[str, Value], int], WorkloadExperiment]] = {
    "mlp": _mlp,
    "mnist-large": _mnist_large,
    "mnist-wsl2": _mnist_wsl2,
    "resnet50": _resnet50,
    "bert-large": _bert_large,
    "gpt3-small": _gpt3_small,
    "charlm": _charlm,
}


def _built_in(name: str, parameters: dict[str, Value], batch_size: int) -> Experiment:
    given = {**parameters, "batch_size": batch_size}
    return load_experiment(ExperimentSpec(name=name, parameters=given))


def wsl2_benchmark_network(channels: int) -> nn.Module:
    """The enlarged MNIST network of the WSL2 benchmark of 2020, with its two Dropout2d.

    The first drops whole channels of 11 x 11. The second one's input has no pixels, so it drops
    units as Dropout does; two dimensions are added, without which torch warns.
    """
    # 28 x 28 pixels lose 2 in each convolution, and half of the rest in the pool: 11 x 11.
    features = channels * 11 * 11
    return nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.25),
        nn.Flatten(),
        nn.Linear(features, features // 2),
        nn.ReLU(),
        nn.Unflatten(1, (features // 2, 1, 1)),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        nn.Linear(features // 2, 10),
    )


def _log_softmax_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return nll_loss(log_softmax(model(_normalised(images)), dim=1), labels.long())


def _log_softmax_metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    images, labels = batch
    scores = model(_normalised(images))
    accuracy = (scores.argmax(dim=1) == labels).float().mean()
    return {"accuracy": accuracy, "loss": cross_entropy(scores, labels.long())}


def _normalised(images: Tensor) -> Tensor:
    return (images.float() / 255 - 0.1307) / 0.3081


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The shape of a transformer. is_causal: each token sees only those before it, as in GPT."""

    depth: int
    width: int
    num_heads: int
    length: int
    vocabulary: int
    dropout: float
    is_causal: bool


class Transformer(nn.Module):
    """GPT-2's layers (norms first) or BERT's (norms last), from torch's own."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                shape.width, shape.num_heads, 4 * shape.width,
                dropout=shape.dropout, activation="gelu", batch_first=True,
                norm_first=shape.is_causal,
            )
            for _ in range(shape.depth)
        )  # fmt: skip
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.is_causal = shape.is_causal
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (sequences, length) to scores (sequences, length, vocabulary)."""
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = None
        if self.is_causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=self.is_causal)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def _next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    scores = model(tokens[:, :-1])
    return cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def _masked_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    tokens, targets = batch
    scores = model(tokens)
    return cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=_NOT_MASKED)


def _random_tokens(count: int, length: int, vocabulary: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (count, length), generator=random)


def _masked_sequences(count: int, length: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens with some masked, and the masked ones."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(_FIRST_WORD, vocabulary, (count, length), generator=random)
    is_masked = torch.rand(count, length, generator=random) < _MASKED_SHARE
    # Of a sequence without any, the loss would be 0 / 0.
    is_masked[:, 0] = True
    return tokens.masked_fill(is_masked, _MASK), tokens.masked_fill(~is_masked, _NOT_MASKED)


def random_images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 28, 28) and labels (count,) as bytes, with a pattern for each label."""
    patterns = torch.randint(
        128, (10, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=random)
    noise = torch.randint(128, (count, 1, 28, 28), generator=random, dtype=torch.uint8)
    return noise + patterns[labels], labels.byte()


def part_of(data: Any, start: int, count: int) -> Any:
    """Some of the samples of tensors of any nesting."""
    parts = [tensor[start : start + count] for tensor in tensors_in(data)]
    return with_tensors(data, iter(parts))
