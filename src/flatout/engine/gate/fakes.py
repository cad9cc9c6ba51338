"""Stand-ins for the parts of an experiment while the gate looks at the others.

A few samples instead of all; an optimizer that only remembers what it is given; parameters whose
gradients are known beforehand; samples that contain their index.
"""

from __future__ import annotations

import copy
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.model.sparse_embeddings import sparse_embeddings
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.runtime import rng
from flatout.engine.tensors.nested import tensors_in, with_tensors

# Of each parameter, for the optimizer alone: enough for vector instructions; and one of them enough
# for several threads.
_MOST_ELEMENTS, _MOST_OF_ONE = 4_096, 40_000
# Magnitudes of made-up gradients reach down to where an optimizer's epsilon counts.
_SMALLEST_EXPONENT = -8.0


def few_samples(data: Any, count: int) -> Any:
    """At most that many samples, from all over the data, in a form of the same kind."""
    kind = data_kind(data)
    if kind == "iterable":
        return _FirstSamples(data, count)
    num_samples = len(next(tensors_in(data))) if kind == "tensors" else len(data)
    chosen = torch.linspace(0, num_samples - 1, min(count, num_samples)).round().long()
    if kind == "tensors":
        return with_tensors(data, (tensor[chosen.to(tensor.device)] for tensor in tensors_in(data)))
    return _Subset(data, chosen.tolist())


@dataclass(frozen=True)
class _Subset:
    dataset: Any
    indices: list[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]


class _FirstSamples:
    """The first samples of an iterable, which are read once and kept."""

    def __init__(self, source: Any, count: int) -> None:
        states = rng.host_generator_states()
        if hasattr(source, "set_epoch"):
            source.set_epoch(0)
        self._samples = [sample for sample, _ in zip(source, range(count), strict=False)]
        rng.restore_host_generators(states)

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samples)


def remembering(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer that leaves the weights alone and keeps the sum of the gradients it was given.

    What a captured step hands to its optimizer can be read in no other way.
    """
    members = [item[1] if isinstance(item, tuple) else item for item in parameters]
    return torch.optim.SGD(members, lr=0.0, momentum=1.0)


def remembered(optimizer: torch.optim.Optimizer) -> list[Tensor | None]:
    """The sums of gradients, in the order of the parameters; None where there never was one."""
    states = [optimizer.state.get(p, {}) for g in optimizer.param_groups for p in g["params"]]
    sums = [state.get("momentum_buffer") for state in states]
    return [None if gradient_sum is None else _dense(gradient_sum) for gradient_sum in sums]


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.is_sparse else tensor).to("cpu", torch.float64, copy=True)


class Bag(nn.Module):
    """A model's parameters by themselves, large ones cut, with gradients known beforehand.

    Args:
        model: whose parameters they are; it is not changed.
        num_gradients: how many gradients to make up for each of them.
    """

    def __init__(self, model: nn.Module, num_gradients: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.names = [name for name, _ in model.named_parameters()]
        sparse = {id(embedding.weight) for embedding in sparse_embeddings(model)}
        originals = list(model.parameters())
        self.is_sparse = [id(parameter) in sparse for parameter in originals]
        largest = max(originals, key=Tensor.numel, default=None)
        self.members = nn.ParameterList(
            nn.Parameter(
                _made_up_weights(
                    original, _MOST_OF_ONE if original is largest else _MOST_ELEMENTS, generator
                ),
                original.requires_grad,
            )
            for original in originals
        )
        # No buffers of the module: they stay fp32 in whatever the module is turned into.
        self.gradients = [
            _made_up_gradients((num_gradients, *member.shape), generator) for member in self.members
        ]

    def on(self, device: torch.device) -> list[Tensor]:
        """The made-up gradients there, each (num_gradients, *shape of the parameter)."""
        self.gradients = [gradient.to(device) for gradient in self.gradients]
        return self.gradients

    def sum_with(self, which: Tensor) -> Tensor:
        """A number whose gradient is one of the made-up ones; which: its number, shape ()."""
        total = torch.zeros((), device=which.device)
        gradients = self.on(which.device)
        for member, gradient, is_sparse in zip(
            self.members, gradients, self.is_sparse, strict=True
        ):
            if not member.requires_grad:
                continue
            chosen = gradient.index_select(0, which.view(1))[0]
            if is_sparse:
                rows = torch.arange(len(member), device=member.device)
                member = nn.functional.embedding(rows, member, sparse=True)
            term = (member * chosen).sum()
            total = total + (term.real if term.is_complex() else term)
        return total


def _made_up_weights(original: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Weights of about 1, so that decay is seen, with the form of the original."""
    shape = _cut(tuple(original.shape), most)
    weights = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float32)
    weights *= torch.randint(2, shape, generator=generator) * 2 - 1
    return weights.to(original.dtype)


def _cut(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    sizes = list(shape)
    while math.prod(sizes) > most:
        largest = sizes.index(max(sizes))
        sizes[largest] = (sizes[largest] + 1) // 2
    return tuple(sizes)


def _made_up_gradients(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    exponents = _SMALLEST_EXPONENT * torch.rand(shape, generator=generator)
    return 10.0**exponents * (torch.randint(2, shape, generator=generator) * 2 - 1)


def bag_experiment(experiment: Experiment, bag: Bag, count: int) -> Experiment:
    """The experiment's optimizer on a bag; update k has the bag's k-th gradient.

    count: of updates. Each batch has `batch_size` samples (update, weight, count).
    """
    batch_size = experiment.batch_size
    updates = torch.arange(count).repeat_interleave(batch_size).float()
    rows = torch.stack([updates, torch.ones_like(updates), torch.ones_like(updates)], dim=1)

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        members = [item[1] if isinstance(item, tuple) else item for item in parameters]
        is_named = experiment.named_parameters
        optimizers = experiment.optimizer(
            iter(zip(bag.names, members, strict=True)) if is_named else iter(members)
        )
        return Optimizers(optimizers).only

    return replace(
        experiment,
        model=lambda: copy.deepcopy(bag),
        optimizer=optimizer,
        loss=bag_mean,
        train_data=lambda: rows,
        **_BARE,
    )


def weighted_rows(count: int, batch_size: int) -> Tensor:
    """Samples (update, weight, count) whose weights and counts differ: see bag_experiment.

    count: of whole batches. A smaller one follows, as at the end of an epoch.
    """
    generator = torch.Generator().manual_seed(1)
    updates = torch.arange(count).repeat_interleave(batch_size).float()
    updates = torch.cat([updates, torch.full((batch_size // 2,), float(count))])
    weights = 0.2 + torch.rand(len(updates), generator=generator)
    counts = torch.randint(1, 9, (len(updates),), generator=generator).float()
    return torch.stack([updates, weights, counts], dim=1)


def bag_mean(model: Any, rows: Tensor) -> Tensor:
    """A mean over samples: the gradient is the made-up one, times the mean weight."""
    total: Tensor = model.sum_with(rows[0, 0].long()) * rows[:, 1].mean()
    return total


def bag_sum(model: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """A sum and its count: the gradient is the made-up one, times all weights by all counts."""
    return model.sum_with(rows[0, 0].long()) * rows[:, 1].sum(), rows[:, 2].sum()


# What an experiment does during the step itself.
_BARE: dict[str, Any] = {
    "validation_data": None,
    "metrics": None,
    "schedule": None,
    "early_stop": None,
    "ema": None,
    "collate": None,
    "shuffle": False,
}


def bare(experiment: Experiment) -> Experiment:
    """The experiment without validation, schedule and averages, in the data's own order."""
    return replace(experiment, **(_BARE | {"collate": experiment.collate}))


@dataclass(frozen=True)
class Numbered:
    """A data set whose samples contain their index and what they have drawn, if they draw."""

    count: int
    is_drawing: bool = True

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not self.is_drawing:
            number = torch.tensor([index], dtype=torch.float64)
            return number, number.clone()
        return _drawing(index)


@dataclass(frozen=True)
class NumberedStream:
    """The same as an iterable."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(_drawing, range(self.count))


def _drawing(index: int) -> tuple[Tensor, Tensor]:
    """The index as input; as target the index and draws of torch, Python, and NumPy if loaded."""
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.random() if numpy is not None else 0.0
    row = [index, torch.rand(()).item(), random.random(), drawn]
    return torch.tensor([index], dtype=torch.float64), torch.tensor(row, dtype=torch.float64)


def numbered_experiment(
    experiment: Experiment, data: Any, count: int, *, is_drawing: bool = True
) -> Experiment:
    """An experiment of nothing but samples that contain their index, of the same kind of data."""
    numbers = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    make: dict[str, Callable[[], Any]] = {
        "tensors": lambda: (numbers, numbers.clone()),
        "map-style": lambda: Numbered(count, is_drawing),
        "iterable": lambda: NumberedStream(count),
    }
    return replace(
        experiment,
        model=lambda: nn.Linear(1, 1),
        optimizer=remembering,
        named_parameters=False,
        loss=lambda model, batch: model(batch[0].float()).mean(),
        train_data=make[data_kind(data)],
        **(_BARE | {"shuffle": experiment.shuffle}),
    )
