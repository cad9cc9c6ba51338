"""Datasets read sample by sample: with a DataLoader's workers, and still in an exact order.

Each sample is fetched under generators seeded by (seed, epoch, index), so its augmentation is the
same in whichever process it is fetched.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from flatout.engine import randomness
from flatout.engine.affinity import keep_on
from flatout.engine.feed import MicroBatch, Slicing
from flatout.engine.stacking import Refused, refused_to_exit, stacked, unless_refused
from flatout.errors import FlatoutError

Key = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a DataLoader is to be run; see the recipe's fields of the same names.

    cpus: those that its workers may use; empty where they have them from the process.
    """

    num_workers: int
    prefetch: int
    pin_memory: bool
    persistent: bool
    collate: Callable[[list[Any]], Any] | None
    cpus: tuple[int, ...] = ()

    def for_validation(self) -> Loading:
        """The same for data that is read now and then, while the training's workers are idle.

        Its workers end when it is read, so that there are not twice as many. Where starting them
        takes seconds, since each imports torch, they stay, and are half as many.
        """
        if not self.persistent:
            return self
        if multiprocessing.get_start_method() == "fork":
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
    # The step's threads may be kept to some of the CPUs; the others are for the workers.
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
            # torch would only end them when they are asked for more.
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
        """Whether the processes that read samples are kept from one epoch to the next."""
        return bool(self._loader.persistent_workers)

    def num_workers_alive(self) -> int:
        """How many processes read samples now."""
        return sum(worker.is_alive() for worker in getattr(self._batches, "_workers", ()))

    def num_batches_ahead(self) -> int:
        """How many micro-batches the workers have been asked for and not been taken from them."""
        return int(getattr(self._batches, "_tasks_outstanding", 0))

    def state(self) -> None:
        """See Feed: order and augmentation are functions of the epoch."""

    def load_state(self, state: Any) -> None:
        """See Feed."""

    def close(self) -> None:
        """See Feed."""
        end_workers(self._batches)


def end_workers(batches: Iterator[Any]) -> None:
    """Ends a loader's workers now. torch does it when nobody holds the loader any more: late, if
    it is held by the traceback of what ended the training.
    """
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()


class _SeededBatches(torch.utils.data.Dataset[Any]):
    """Batches by the (epoch, index) of their samples, each fetched under its own seed.

    They are collated here, since `collate` may draw random numbers, too.
    """

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate

    def __getitems__(self, keys: list[Key]) -> Any:
        # In the training process itself the generators are the model's: they are put back.
        states = None if get_worker_info() else randomness.host_generator_states()
        try:
            return self._collate([self._sample(epoch, index) for epoch, index in keys])
        except FlatoutError as error:
            return Refused(error)
        except SystemExit as error:
            return refused_to_exit(error)
        finally:
            # Also when a sample cannot be read: then what was trained is saved, generators too.
            if states is not None:
                randomness.restore_host_generators(states)

    def _sample(self, epoch: int, index: int) -> Any:
        seed = randomness.mixed_seed(self._seed, "sample", epoch, index)
        randomness.seed_host_generators(seed)
        return self._dataset[index]


def as_it_is(batch: Any) -> Any:
    """What a loader is to collate: nothing more."""
    return batch


class _KeySampler:
    """The keys of each micro-batch of an epoch; set to an epoch before it is iterated."""

    def __init__(self, num_samples: int, slicing: Slicing) -> None:
        self._num_samples = num_samples
        self.slicing = slicing
        self._epoch = 0
        self._first = 0

    def begin(self, epoch: int, first: int) -> None:
        """The next iteration gives that epoch, from update number `first` on."""
        self._epoch = epoch
        self._first = first

    def update_sizes(self, first: int) -> Iterator[list[int]]:
        """Sizes of the micro-batches of each update from number `first` on."""
        micro_size = self.slicing.micro_batch_size
        for begin, end in self.slicing.own(self._num_samples, first):
            yield [min(micro_size, end - done) for done in range(begin, end, micro_size)]

    def __iter__(self) -> Iterator[list[Key]]:
        slicing = self.slicing
        order = randomness.sample_order(
            self._num_samples, slicing.seed, self._epoch, slicing.is_shuffled
        )
        micro_size = slicing.micro_batch_size
        for begin, end in slicing.own(self._num_samples, self._first):
            for indices in order[begin:end].split(micro_size) if end > begin else ():
                yield [(self._epoch, index) for index in indices.tolist()]
