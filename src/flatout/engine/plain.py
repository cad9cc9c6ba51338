"""The loop that everybody writes: what every recipe is compared with.

A DataLoader, zero_grad, forward, backward, step: torch's defaults in everything, fp32. Nothing of
flatout's own step or feed is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flatout.engine import randomness
from flatout.engine.batches import placer, tensors_in, with_tensors
from flatout.engine.ema import WeightAverage
from flatout.engine.measuring import stepped
from flatout.engine.session import Built


class PlainLoop:
    """A plain training loop over a built experiment, run a few updates at a time.

    Args:
        built: the experiment's objects; they belong to this loop from now on.
    """

    def __init__(self, built: Built) -> None:
        experiment = built.experiment
        self._experiment = experiment
        assert experiment.loss is not None, "an experiment with a step of its own is not searched"
        self._loss = experiment.loss
        self._model = built.model.train()
        self._optimizer = built.optimizers.only
        self._place = placer(built.device, False)
        make = experiment.schedule if experiment.schedule_every == "step" else None
        self._schedule: Any = make(built.optimizers.only) if make is not None else None
        decay = experiment.ema
        self._average = WeightAverage(built.model, decay) if decay is not None else None
        self._loader = plain_loader(built)
        self._batches: Iterator[Any] = iter(())
        randomness.seed_generators(randomness.mixed_seed(built.seed, "training"))

    def run(self, num_updates: int) -> int:
        """Makes so many updates, over as many epochs as it takes; gives the samples in them."""
        num_samples = 0
        for _ in range(num_updates):
            batch = next(self._batches, None)
            if batch is None:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            num_samples += _size(batch)
            self._update(batch)
        return num_samples

    def _update(self, batch: Any) -> None:
        if self._place is not None:
            batch = self._place(batch)
        self._optimizer.zero_grad()
        result = self._loss(self._model, batch)
        value = result[0] / result[1] if isinstance(result, tuple) else result
        value.backward()
        if self._experiment.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._experiment.clip_norm)
        self._optimizer.step()
        if self._schedule is not None and not stepped(self._schedule.step):
            self._schedule = None
        if self._average is not None:
            self._average.update()

    def close(self) -> None:
        """Nothing reads ahead here."""


class _Stream(IterableDataset[Any]):
    """Anything that can be iterated, as DataLoader wants it: it asks others for an index."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self._source)


class _Samples(Dataset[Any]):
    """Tensors of any nesting, sample by sample, as torch's TensorDataset gives those of a tuple."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._tensors = list(tensors_in(data))

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, index: int) -> Any:
        return with_tensors(self._data, iter([tensor[index] for tensor in self._tensors]))


def plain_loader(built: Built) -> DataLoader[Any]:
    """Shuffled batches, as in every tutorial: nothing set that need not be."""
    experiment, data = built.experiment, built.train_data
    is_iterable = built.facts.data_kind == "iterable"
    is_tensors = built.facts.data_kind == "tensors"
    return DataLoader(
        _Samples(data) if is_tensors else _Stream(data) if is_iterable else data,
        batch_size=experiment.batch_size,
        shuffle=experiment.shuffle and not is_iterable,
        collate_fn=None if is_tensors else experiment.collate,
    )


def _size(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    first: Tensor | None = next(tensors_in(batch), None)
    return len(first) if first is not None and first.dim() else 1
