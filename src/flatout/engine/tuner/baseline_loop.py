"""The loop that everybody writes: what every recipe is compared with.

A DataLoader, zero_grad, forward, backward, step: torch's defaults in everything, fp32. Nothing of
flatout's own step or feed is in it. Where a batch does not fit into the memory, its parts are
accumulated, as one writes that: each part's share of the mean goes backward by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)  # fmt: skip

from flatout.engine.model.activation_checkpointing import ActivationCheckpointing
from flatout.engine.model.ema import WeightAverage
from flatout.engine.optim.schedule_rehearsal import built_schedulers
from flatout.engine.runtime import rng
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.engine.session.session import BuiltExperiment
from flatout.engine.tensors.nested import placer, tensors_in, with_tensors
from flatout.engine.tuner.ab_timing import stepped
from flatout.errors import UsageError


class BaselineLoop:
    """A plain training loop over a built experiment, run a few updates at a time.

    Args:
        built: the experiment's objects; they belong to this loop from now on.
        micro_batch_size: samples in one forward pass; None takes the whole batch.
        recomputed: share of the blocks whose activations are computed again.
        timer: notified when the data is there.
        placement: of the threads that compute it; None leaves it to the system, as one's own loop.
    """

    def __init__(
        self,
        built: BuiltExperiment,
        micro_batch_size: int | None = None,
        *,
        recomputed: float = 0.0,
        timer: StepTimer | None = None,
        placement: ThreadPlacement | None = None,
    ) -> None:
        self._timer = timer
        self._placement = placement
        experiment = built.experiment
        self._experiment = experiment
        assert experiment.loss is not None, "an experiment with its own step is not tuned"
        self._loss = experiment.loss
        self.model = built.model.train()
        self._optimizer = built.optimizers.only
        self._to_device = placer(built.device, False)
        self._schedule: Any = None
        if experiment.schedule_every == "step":
            total_steps = built.schedule_steps
            schedulers, _ = built_schedulers(experiment, built.optimizers.only, total_steps)
            self._schedule = schedulers.get("schedule")
        decay = experiment.ema
        self._average = WeightAverage(built.model, decay) if decay is not None else None
        batch_size = experiment.batch_size
        self._recomputing = (
            ActivationCheckpointing(self.model, share=recomputed) if recomputed else None
        )
        size = min(micro_batch_size or batch_size, batch_size)
        self._num_parts = -(-batch_size // size)
        self._loader = plain_loader(built) if self._num_parts == 1 else _parts_loader(built, size)
        self._batches: Iterator[Any] = iter(())
        rng.seed_generators(rng.mixed_seed(built.seed, "training"))

    def run(self, num_updates: int) -> int:
        """Makes so many updates, over as many epochs as it takes; gives the samples in them."""
        num_samples = 0
        for _ in range(num_updates):
            self._mark("other")
            # The last batch of an epoch has fewer parts, and nothing comes after it.
            parts = list(islice(self._batches, self._num_parts))
            if not parts:
                self._batches = iter(self._loader)
                parts = list(islice(self._batches, self._num_parts))
            self._mark("data")
            with self._placement or contextlib.nullcontext():
                num_samples += self._update(parts)
        if self._placement is not None:
            self._placement.release()
        self._mark("other")
        return num_samples

    def _mark(self, part: str) -> None:
        if self._timer is not None:
            self._timer.mark(part)

    def _update(self, parts: list[Any]) -> int:
        """Makes an update and gives the samples in it."""
        if not parts:
            raise UsageError(
                "no-data",
                "the training data has no samples.",
                fix="check what `train_data()` returns",
            )
        self._optimizer.zero_grad()
        if self._num_parts == 1:
            [batch] = parts
            value, count = self._forward(batch)
            (value if count is None else value / count).backward()
            num_samples = _size(batch)
        else:
            num_samples = self._accumulate(parts)
        if self._experiment.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._experiment.clip_norm)
        self._optimizer.step()
        if self._schedule is not None and not stepped(self._schedule.step):
            self._schedule = None
        if self._average is not None:
            self._average.update()
        return num_samples

    def _accumulate(self, parts: list[tuple[Any, int]]) -> int:
        num_samples = sum(size for _, size in parts)
        counted: Any = None
        for batch, size in parts:
            value, count = self._forward(batch)
            (value * (size / num_samples) if count is None else value / num_samples).backward()
            if count is not None:
                counted = count if counted is None else counted + count
        if counted is not None:
            # The divisor of the sums is known only now.
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(num_samples / counted)
        return num_samples

    def _forward(self, batch: Any) -> tuple[Tensor, Any]:
        """The mean over a batch, or a sum and its count."""
        result = self._loss(
            self.model, self._to_device(batch) if self._to_device is not None else batch
        )
        return result if isinstance(result, tuple) else (result, None)

    def close(self) -> None:
        """Nothing reads ahead here."""
        if self._recomputing is not None:
            self._recomputing.close()


class _Stream(IterableDataset[Any]):
    """Anything that can be iterated, as DataLoader requires it: others need an index."""

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


def plain_loader(built: BuiltExperiment) -> DataLoader[Any]:
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


class _Cut(IterableDataset[Any]):
    """Parts of whole batches; the last part of a batch may be smaller."""

    def __init__(self, batches: Iterable[list[Any]], size: int) -> None:
        self._batches = batches
        self._size = size

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self._batches:
            for start in range(0, len(batch), self._size):
                yield batch[start : start + self._size]


class _Batches:
    """Anything that can be iterated, in lists of so many."""

    def __init__(self, source: Any, size: int) -> None:
        self._source = source
        self._size = size

    def __iter__(self) -> Iterator[list[Any]]:
        samples = iter(self._source)
        while batch := list(islice(samples, self._size)):
            yield batch


def _parts_loader(built: BuiltExperiment, size: int) -> DataLoader[Any]:
    """The same batches in parts of at most so many samples, each with their number."""
    experiment, data = built.experiment, built.train_data
    is_tensors = built.facts.data_kind == "tensors"
    collate = _counted(default_collate if is_tensors else experiment.collate or default_collate)
    if built.facts.data_kind == "iterable":
        batches = _Cut(_Batches(data, experiment.batch_size), size)
        return DataLoader(batches, batch_size=None, collate_fn=collate)
    samples = _Samples(data) if is_tensors else data
    order = RandomSampler(samples) if experiment.shuffle else SequentialSampler(samples)
    whole = BatchSampler(order, experiment.batch_size, drop_last=False)
    return DataLoader(samples, batch_sampler=_Cut(whole, size), collate_fn=collate)


def _counted(collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], tuple[Any, int]]:
    return lambda samples: (collate(samples), len(samples))


def _size(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor."""
    first: Tensor | None = next(tensors_in(batch), None)
    return len(first) if first is not None and first.dim() else 1
