"""Datasets read sample by sample, by DataLoader workers, in an exactly reproducible order.

Each sample is read with generators seeded by (seed, epoch, index), so its augmentation does not
depend on which process reads it.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from flatout.engine.feed.collate import WorkerFailure, refused_to_exit, stacked, unless_refused
from flatout.engine.feed.feed import MicroBatch, Slicing
from flatout.engine.runtime import rng
from flatout.engine.runtime.cpu_affinity import keep_on
from flatout.errors import FlatoutError

Key = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """DataLoader settings; see the recipe's fields of the same names.

    cpus: those that its workers may use; empty if they inherit them from the process.
    """

    num_workers: int
    prefetch: int
    pin_memory: bool
    persistent: bool
    collate: Callable[[list[Any]], Any] | None
    cpus: tuple[int, ...] = ()

    def for_validation(self) -> Loading:
        """The same for data that is read occasionally, while the training's workers are idle.

        Its workers end after each pass, so that there are not twice as many. If starting them
        takes seconds, because each imports torch, half as many are kept.
        """
        if not self.persistent:
            return self
        # Without `allow_none` this would fix the start method, and setting it later would fail.
        method = multiprocessing.get_start_method(allow_none=True)
        if (method or multiprocessing.get_all_start_methods()[0]) == "fork":
            return replace(self, persistent=False)
        return replace(self, num_workers=max(1, self.num_workers // 2))

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of torch's DataLoader, which refuses some without workers."""
        arguments: dict[str, Any] = {
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
            "collate_fn": self.collate,
            # A DataLoader draws a number whenever it is iterated: not from the model's generator,
            # or a resume in the middle of an epoch would draw once more than an unbroken run.
            "generator": torch.Generator().manual_seed(0),
        }
        if self.num_workers:
            arguments["prefetch_factor"] = self.prefetch
            arguments["persistent_workers"] = self.persistent
            arguments["worker_init_fn"] = functools.partial(_prepare_worker, self.cpus)
        return arguments


def _prepare_worker(cpus: tuple[int, ...], worker: int) -> None:
    # The step's threads may be restricted to some of the CPUs; the workers use the others.
    keep_on(cpus)
    # Samples are made one by one; threads would only fight with the step for the cores.
    torch.set_num_threads(1)


class LoaderFeed:
    """A map-style dataset, fetched by a DataLoader.

    Args:
        dataset: has `__len__` and `__getitem__(index)`.
    """

    def __init__(self, dataset: Any, slicing: Slicing, loading: Loading) -> None:
        self._slicing = slicing
        self.num_samples: int | None = len(dataset)
        self.updates_per_epoch: int | None = slicing.updates_per_epoch(len(dataset))
        self._sampler = _KeySampler(len(dataset), slicing)
        self._loader: DataLoader[Any] = DataLoader(
            _SeededBatches(dataset, slicing.seed, loading.collate or stacked),
            batch_sampler=self._sampler,
            **(loading.arguments() | {"collate_fn": as_it_is}),
        )
        self._batches: Iterator[Any] = iter(())

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        self._sampler.begin(epoch, first)
        batches = self._batches = iter(self._loader)
        for sizes in self._sampler.update_sizes(first):
            yield [(unless_refused(next(batches)), size) for size in sizes]
        if not self._loader.persistent_workers:
            # torch would end them only at the next request.
            end_workers(batches)

    def resize(self, micro_batch_size: int) -> None:
        """See Feed."""
        self._slicing = self._sampler.slicing = self._slicing.resized(micro_batch_size)

    def can_go_on(self, first: int) -> bool:
        """See Feed."""
        return True

    def again(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        if not self.has_persistent_workers:
            end_workers(self._batches)
        return self.updates(epoch, first)

    @property
    def has_persistent_workers(self) -> bool:
        """Whether the worker processes persist between epochs."""
        return bool(self._loader.persistent_workers)

    def num_workers_alive(self) -> int:
        """Number of worker processes now."""
        return sum(worker.is_alive() for worker in getattr(self._batches, "_workers", ()))

    def num_batches_ahead(self) -> int:
        """Number of micro-batches requested from the workers and not yet taken."""
        return int(getattr(self._batches, "_tasks_outstanding", 0))

    def state(self) -> None:
        """See Feed: order and augmentation are functions of the epoch."""

    def load_state(self, state: Any) -> None:
        """See Feed."""

    def close(self) -> None:
        """See Feed."""
        end_workers(self._batches)


def end_workers(batches: Iterator[Any]) -> None:
    """Ends a loader's workers now. torch does it when the loader is garbage-collected: late, if
    the traceback of the exception that ended the training still refers to it.
    """
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()


class _SeededBatches(torch.utils.data.Dataset[Any]):
    """Batches by the (epoch, index) of their samples, each read under its own seed.

    They are collated here, because `collate` may draw random numbers too.
    """

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate

    def __getitems__(self, keys: list[Key]) -> Any:
        # In the training process the generators are the model's, so they are restored.
        states = None if get_worker_info() else rng.host_generator_states()
        try:
            return self._collate([self._sample(epoch, index) for epoch, index in keys])
        except FlatoutError as error:
            return WorkerFailure(error)
        except SystemExit as error:
            return refused_to_exit(error)
        finally:
            # Also if a sample cannot be read: the checkpoint saved then includes the generators.
            if states is not None:
                rng.restore_host_generators(states)

    def _sample(self, epoch: int, index: int) -> Any:
        seed = rng.mixed_seed(self._seed, "sample", epoch, index)
        rng.seed_host_generators(seed)
        return self._dataset[index]


def as_it_is(batch: Any) -> Any:
    """The loader's collate function: the batch is already collated."""
    return batch


class _KeySampler:
    """The keys of each micro-batch of an epoch, which must be set before iterating."""

    def __init__(self, num_samples: int, slicing: Slicing) -> None:
        self._num_samples = num_samples
        self.slicing = slicing
        self._epoch = 0
        self._first = 0

    def begin(self, epoch: int, first: int) -> None:
        """Makes the next iteration yield that epoch, from update number `first` on."""
        self._epoch = epoch
        self._first = first

    def update_sizes(self, first: int) -> Iterator[list[int]]:
        """Sizes of the micro-batches of each update from number `first` on."""
        micro_size = self.slicing.micro_batch_size
        for begin, end in self.slicing.own(self._num_samples, first):
            yield [min(micro_size, end - done) for done in range(begin, end, micro_size)]

    def __iter__(self) -> Iterator[list[Key]]:
        slicing = self.slicing
        order = rng.sample_order(self._num_samples, slicing.seed, self._epoch, slicing.is_shuffled)
        micro_size = slicing.micro_batch_size
        for begin, end in slicing.own(self._num_samples, self._first):
            for indices in order[begin:end].split(micro_size) if end > begin else ():
                yield [(self._epoch, index) for index in indices.tolist()]
