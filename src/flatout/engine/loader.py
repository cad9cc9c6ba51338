"""Datasets read sample by sample: with a DataLoader's workers, and still in an exact order.

Each sample is fetched under generators seeded by (seed, epoch, index), so its augmentation is the
same in whichever process it is fetched. An iterable has no index: its generators are seeded once
an epoch and worker, and kept apart from the model's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flatout.engine import randomness
from flatout.engine.affinity import keep_on
from flatout.engine.feed import MicroBatch, Slicing
from flatout.engine.stacking import Refused, stacked, unless_refused
from flatout.errors import FlatoutError, UsageError

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
        self._slicing = slicing
        self._epoch = 0
        self._first = 0

    def begin(self, epoch: int, first: int) -> None:
        """The next iteration gives that epoch, from update number `first` on."""
        self._epoch = epoch
        self._first = first

    def update_sizes(self, first: int) -> Iterator[list[int]]:
        """Sizes of the micro-batches of each update from number `first` on."""
        batch_size, micro_size = self._slicing.batch_size, self._slicing.micro_batch_size
        for start in range(first * batch_size, self._num_samples, batch_size):
            num = min(batch_size, self._num_samples - start)
            yield [min(micro_size, num - done) for done in range(0, num, micro_size)]

    def __iter__(self) -> Iterator[list[Key]]:
        slicing = self._slicing
        order = randomness.sample_order(
            self._num_samples, slicing.seed, self._epoch, slicing.is_shuffled
        )
        indices = iter(order[self._first * slicing.batch_size :].tolist())
        for sizes in self.update_sizes(self._first):
            for size in sizes:
                yield [(self._epoch, index) for index in itertools.islice(indices, size)]


class StreamFeed:
    """An iterable of samples without an index.

    Exact on resume if the iterable has `state_dict` and `load_state_dict` (without workers), or if
    it gives the same samples again each time it is iterated for the same epoch (then it is
    replayed up to where it was). `set_epoch(epoch)` is called if it has it.

    Args:
        source: `iter(source)` begins an epoch; `len(source)`, if any, is its number of samples.
    """

    def __init__(self, source: Any, slicing: Slicing, loading: Loading) -> None:
        if isinstance(source, Iterator):
            raise UsageError(
                "data-can-be-read-only-once",
                f"the training data is a {type(source).__name__}: it is empty after one epoch.",
                fix="return an object whose __iter__ begins again each time",
            )
        self.source = source
        self._slicing = slicing
        self._is_in_process = loading.num_workers == 0
        self.has_state = self._is_in_process and has_exact_state(source)
        self.num_samples: int | None = len(source) if hasattr(source, "__len__") else None
        self.updates_per_epoch: int | None = (
            slicing.updates_per_epoch(self.num_samples) if self.num_samples else None
        )
        self._stream = _Stream(source, slicing)
        # Workers that outlive the epoch would keep the stream of the epoch they began with.
        arguments = replace(loading, persistent=False).arguments()
        arguments["collate_fn"] = _UpdateCollate(loading.collate or stacked)
        # The stream itself makes the batches: a DataLoader's would all be of one size, and
        # micro-batches of 10 would then make batches of 30 where 24 were asked for.
        self._loader: DataLoader[Any] = DataLoader(self._stream, batch_size=None, **arguments)
        self._batches: Iterator[Any] = iter(())
        self._generators: dict[str, Any] | None = None
        self._loaded: Any = None
        self._is_at_end = False

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        # At the beginning of an epoch there is nothing to go on with.
        loaded, self._loaded = self._loaded if first > 0 else None, None
        is_continued = loaded is not None
        if is_continued and self._is_at_end:
            return
        if not is_continued:
            self._generators = None
        self._begin_epoch(epoch, loaded)
        self._batches = iter(self._loader)
        updates = self._own_generators(self._batches)
        num_replayed = 0 if is_continued else first
        for update in itertools.islice(map(unless_refused, updates), num_replayed, None):
            # The source knows that it has ended, and may be back at its beginning.
            self._is_at_end = sum(size for _, size in update) < self._slicing.batch_size
            yield update

    def _begin_epoch(self, epoch: int, loaded: Any) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        if loaded is not None:
            # set_epoch may have brought it back to the epoch's beginning.
            self.source.load_state_dict(loaded)
        self._stream.epoch = epoch
        self._stream.is_seeded = loaded is None

    def _own_generators(self, updates: Iterator[Any]) -> Iterator[Any]:
        """Keeps the iterable's draws apart from the model's, where they share a process.

        So the iterable draws the same numbers when it is replayed without a model beside it.
        """
        if not self._is_in_process:
            yield from updates
            return
        while True:
            outer = randomness.host_generator_states()
            if self._generators is not None:
                randomness.restore_host_generators(self._generators)
            try:
                update = next(updates, None)
            finally:
                self._generators = randomness.host_generator_states()
                randomness.restore_host_generators(outer)
            if update is None:
                return
            yield update

    def state(self) -> Any:
        """See Feed."""
        if not self.has_state:
            return None
        # A source may tell what it was given only once it is told its epoch.
        is_unused = self._loaded is not None
        return {
            "source": self._loaded if is_unused else self.source.state_dict(),
            "generators": self._generators,
            "is_at_end": self._is_at_end,
        }

    def load_state(self, state: Any) -> None:
        """See Feed."""
        if state is None or not self.has_state:
            return
        self.source.load_state_dict(state["source"])
        self._loaded = state["source"]
        self._generators = state["generators"]
        self._is_at_end = state["is_at_end"]

    def close(self) -> None:
        """See Feed."""
        end_workers(self._batches)


def has_exact_state(source: Any) -> bool:
    """Whether an iterable's own state is all that it needs to go on with the very next sample.

    A stream of Hugging Face's `datasets` that is shuffled in a buffer refills it on resume and so
    loses what was in it; it is replayed instead. Found by its parts, for it does not tell.
    Source: the documentation of `IterableDataset.load_state_dict` there.
    """
    if not hasattr(source, "state_dict"):
        return False
    parts = [getattr(source, "_ex_iterable", None)]
    for part in parts:
        if type(part).__name__.startswith("BufferShuffled"):
            return False
        if part is not None:
            several = getattr(part, "ex_iterables", None) or ()
            parts += [getattr(part, "ex_iterable", None), *several]
    return True


class _Stream(IterableDataset[Any]):
    """An iterable cut into updates; its draws are a function of (seed, epoch, worker)."""

    def __init__(self, source: Any, slicing: Slicing) -> None:
        self._source = source
        self._slicing = slicing
        self.epoch = 0
        self.is_seeded = True

    def __iter__(self) -> Iterator[list[list[Any]] | Refused]:
        info = get_worker_info()
        slicing = self._slicing
        if self.is_seeded:
            worker = info.id if info else 0
            randomness.seed_host_generators(
                randomness.mixed_seed(slicing.seed, "stream", self.epoch, worker)
            )
        size = slicing.micro_batch_size
        try:
            samples = iter(self._source)
            while update := list(itertools.islice(samples, slicing.batch_size)):
                yield [update[start : start + size] for start in range(0, len(update), size)]
        except FlatoutError as error:
            yield Refused(error)


@dataclass(frozen=True)
class _UpdateCollate:
    """Makes micro-batches of an update's lists of samples, with their numbers of samples."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, update: list[list[Any]] | Refused) -> list[MicroBatch] | Refused:
        try:
            pieces = unless_refused(update)
            return [(self.collate(samples), len(samples)) for samples in pieces]
        except FlatoutError as error:
            return Refused(error)
