"""Samples that are read once and cached in memory for later epochs.

In the first epoch a DataLoader reads samples as without a cache, in training order, so that
nothing waits at the start. The cache is not part of a checkpoint: after a resume, missing samples
are read again when they are needed.

If data turns out to be random although the examined samples were not, a loader reads it from that
update on. No such sample has been trained on by then, unless it uses a random source that cannot
be watched: that is noticed when some samples are reread in a later epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatout.engine.feed.cache_check import (
    NOT_CACHEABLE,
    Caching,
    changed_since,
    copied,
    form_of,
    is_moved,
    not_cacheable,
    own_generators,
    random_samples,
    same_bits,
    states_of,
)
from flatout.engine.feed.collate import WorkerFailure, refused_to_exit, stacked, unless_refused
from flatout.engine.feed.datasets import DataSubset
from flatout.engine.feed.feed import Feed, MicroBatch, Slicing
from flatout.engine.feed.loader_feed import LoaderFeed, Loading, as_it_is, end_workers
from flatout.engine.runtime import rng
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.errors import FlatoutError, UsageError

# Number of samples to reread in each epoch.
_READ_AGAIN = 4


class CachedFeed:
    """A map-style dataset whose samples are always the same.

    Args:
        dataset: has `__len__` and `__getitem__(index)`.
        slicing: how an epoch becomes updates.
        loading: how a DataLoader reads samples that are not cached yet.
        caching: how samples are cached.

    num_bytes: predicted size of the cache.
    num_read: samples of the latest update that were not in the cache.
    problem: why a loader reads them now; None while they are cached.
    """

    def __init__(self, dataset: Any, slicing: Slicing, loading: Loading, caching: Caching) -> None:
        self.num_samples: int | None = len(dataset)
        self.updates_per_epoch: int | None = slicing.updates_per_epoch(len(dataset))
        self.num_bytes = caching.num_bytes
        self.num_read = 0
        self.problem: UsageError | None = None
        self._dataset, self._slicing, self._loading = dataset, slicing, loading
        self._instead: LoaderFeed | None = None
        self._is_kept = torch.zeros(len(dataset), dtype=torch.bool)
        self._num_missing = len(dataset)
        collate = loading.collate or stacked
        self._store: _Store
        if caching.is_stacked:
            self._store = _Rows(len(dataset), is_pinned=loading.pin_memory)
        else:
            self._store = _Samples(slicing.seed, collate, is_pinned=loading.pin_memory)
        self._readings = _Readings(dataset, stacked if caching.is_stacked else as_it_is)
        # The indices to read for each batch; changed in place, because the loader holds this list.
        self._asked: list[list[int]] = []
        arguments = replace(loading, persistent=False, pin_memory=False).arguments()
        self._loader: DataLoader[Any] = DataLoader(
            self._readings, batch_sampler=self._asked, **(arguments | {"collate_fn": as_it_is})
        )
        self._batches: Iterator[Any] = iter(())

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        number = first
        try:
            if self._instead is None:
                for update in self._kept_updates(epoch, first):
                    yield update
                    number += 1
                return
        except UsageError as error:
            if error.rule != NOT_CACHEABLE:
                raise
            end_workers(self._batches)
            self._batches = iter(())
            # Free the cache's memory.
            self._store = _Samples(0, stacked, is_pinned=False)
            self._instead = LoaderFeed(self._dataset, self._slicing, self._loading)
            self.problem = error
        yield from _counted(self, self._instead.updates(epoch, number))

    def _kept_updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """Updates from the cache.

        Raises:
            UsageError: data-cannot-be-cached, before the first update that cannot come from it.
        """
        slicing = self._slicing
        assert self.num_samples is not None
        # A subset of the data is used for timing only, and its epochs are short.
        if not self._num_missing and not isinstance(self._dataset, DataSubset):
            _check_again(self._dataset, self._store, slicing.seed, epoch)
        order = rng.sample_order(self.num_samples, slicing.seed, epoch, slicing.is_shuffled)
        # One micro-batch at a time, each in its own memory: alignment, and therefore rounding,
        # must depend neither on where a resume starts nor on whether there is a cache.
        updates = [
            order[begin:end].split(slicing.micro_batch_size) if end > begin else ()
            for begin, end in slicing.own(self.num_samples, first)
        ]
        end_workers(self._batches)
        self._batches = iter(())
        if self._num_missing:
            batches = [indices for update in updates for indices in update]
            missing = [batch[~self._is_kept[batch]] for batch in batches]
            self._asked[:] = [indices.tolist() for indices in missing if len(indices)]
            self._batches = iter(self._loader)
        for update in updates:
            self.num_read = 0
            yield [(self._batch(epoch, indices), len(indices)) for indices in update]
        if not self._num_missing:
            end_workers(self._batches)

    def fill(self) -> None:
        """Reads missing samples in this process."""
        missing = (~self._is_kept).nonzero().flatten()
        for indices in missing.split(self._slicing.batch_size):
            self._keep(indices, unless_refused(self._readings.__getitems__(indices.tolist())))

    def _batch(self, epoch: int, indices: Tensor) -> Any:
        missing = indices[~self._is_kept[indices]] if self._num_missing else indices[:0]
        if len(missing):
            self._keep(missing, unless_refused(next(self._batches)))
            self.num_read += len(missing)
        return self._store.batch(epoch, indices)

    def _keep(self, indices: Tensor, samples: Any) -> None:
        self._store.put(indices, samples)
        self._is_kept[indices] = True
        self._num_missing -= len(indices)

    def resize(self, micro_batch_size: int) -> None:
        """See Feed."""
        self._slicing = self._slicing.resized(micro_batch_size)
        if self._instead is not None:
            self._instead.resize(micro_batch_size)

    def can_go_on(self, first: int) -> bool:
        """See Feed."""
        return True

    def again(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        if self._instead is not None:
            return _counted(self, self._instead.again(epoch, first))
        return self.updates(epoch, first)

    def state(self) -> None:
        """See Feed: the order is a function of the epoch."""

    def load_state(self, state: Any) -> None:
        """See Feed."""

    def close(self) -> None:
        """See Feed."""
        end_workers(self._batches)
        if self._instead is not None:
            self._instead.close()


def _counted(feed: CachedFeed, updates: Iterator[list[MicroBatch]]) -> Iterator[list[MicroBatch]]:
    """Updates without cached samples."""
    for update in updates:
        feed.num_read = sum(size for _, size in update)
        yield update


def _check_again(dataset: Any, store: _Store, seed: int, epoch: int) -> None:
    """Rereads some samples, different ones in each epoch, to notice random data.

    Raises:
        UsageError: data-cannot-be-cached, if one has changed.
    """
    seed, own = rng.mixed_seed(seed, "read again"), own_generators(dataset)
    order = rng.sample_order(len(dataset), seed, epoch, is_shuffled=True)
    for index in order[:_READ_AGAIN].tolist():
        error = changed_since(dataset, index, functools.partial(store.has, index), own)
        if error is not None:
            raise error


def problem_of(feed: Feed | None) -> UsageError | None:
    """The reason why a caching feed no longer caches; None if it does, or is not a caching feed."""
    return feed.problem if isinstance(feed, CachedFeed) else None


class _Readings(Dataset[Any]):
    """Reads the samples of a micro-batch by index while watching the random generators."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate
        self._own: list[Any] | None = None

    def __getitems__(self, indices: list[int]) -> Any:
        if self._own is None:
            # Created in the reading process: a worker has its own copy of the data set.
            self._own = own_generators(self._dataset)
        states, own = rng.host_generator_states(), states_of(self._own)
        try:
            samples = [self._dataset[index] for index in indices]
            is_other = not same_bits(own, states_of(self._own))
            if is_other or is_moved(states, rng.host_generator_states()):
                raise random_samples(indices[0])
            return self._collate(samples)
        except FlatoutError as error:
            return WorkerFailure(error)
        except SystemExit as error:
            return refused_to_exit(error)
        finally:
            rng.restore_host_generators(states)


class _Store(Protocol):
    """Holds the cached samples."""

    def put(self, indices: Tensor, samples: Any) -> None:
        """Caches what was read for these indices."""
        ...

    def batch(self, epoch: int, indices: Tensor) -> Any:
        """A batch of cached samples; it shares no memory with them."""
        ...

    def has(self, index: int, sample: Any) -> bool:
        """Whether that sample equals the cached one at that index."""
        ...


class _Rows:
    """Samples as rows of tensors; whole batches are put in."""

    def __init__(self, num_samples: int, *, is_pinned: bool) -> None:
        self._num_samples = num_samples
        self._is_pinned = is_pinned
        self._form = ""
        self._nesting: Any = None
        self._tensors: list[Tensor] = []

    def put(self, indices: Tensor, samples: Any) -> None:
        """See _Store.

        Raises:
            UsageError: data-cannot-be-cached, if the form of samples changes.
        """
        form, rows = form_of(samples), list(tensors_in(samples))
        if not self._tensors:
            self._form = form
            self._tensors = [row.new_empty((self._num_samples, *row.shape[1:])) for row in rows]
            self._nesting = with_tensors(samples, iter(self._tensors))
        if form != self._form:
            raise not_cacheable(f"its samples differ in form: some are {self._form}, some {form}")
        for tensor, row in zip(self._tensors, rows, strict=True):
            tensor.index_copy_(0, indices, row)

    def batch(self, epoch: int, indices: Tensor) -> Any:
        """See _Store."""
        rows = (self._rows(tensor, indices) for tensor in self._tensors)
        return with_tensors(self._nesting, rows)

    def has(self, index: int, sample: Any) -> bool:
        """See _Store."""
        rows = stacked([sample])
        cached = with_tensors(
            self._nesting, (tensor[index : index + 1] for tensor in self._tensors)
        )
        return same_bits(list(tensors_in(rows)), list(tensors_in(cached)))

    def _rows(self, tensor: Tensor, indices: Tensor) -> Tensor:
        if not self._is_pinned:
            return tensor.index_select(0, indices)
        shape = (len(indices), *tensor.shape[1:])
        pinned = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, indices, out=pinned)


class _Samples:
    """Samples one by one, collated again for each batch."""

    def __init__(self, seed: int, collate: Callable[[list[Any]], Any], *, is_pinned: bool) -> None:
        self._seed = seed
        self._collate = collate
        self._is_pinned = is_pinned
        self._samples: dict[int, Any] = {}

    def put(self, indices: Tensor, samples: Any) -> None:
        """See _Store."""
        # A worker sends shared memory, and the number of shared blocks per process is limited.
        self._samples |= zip(indices.tolist(), map(copied, samples), strict=True)

    def batch(self, epoch: int, indices: Tensor) -> Any:
        """See _Store."""
        numbers = indices.tolist()
        samples = [self._samples[index] for index in numbers]
        states = rng.host_generator_states()
        # Without a cache, a random `collate` continues from the state after the last sample.
        seed = rng.mixed_seed(self._seed, "sample", epoch, numbers[-1])
        rng.seed_host_generators(seed)
        try:
            # `collate` may modify its input.
            batch = self._collate([copied(sample) for sample in samples])
        finally:
            rng.restore_host_generators(states)
        if not self._is_pinned:
            return batch
        return with_tensors(batch, (tensor.pin_memory() for tensor in tensors_in(batch)))

    def has(self, index: int, sample: Any) -> bool:
        """See _Store."""
        return same_bits(self._samples[index], sample)
