"""Samples that are read once and kept in memory: later epochs are cut out of what is kept.

In the first epoch samples are read by a DataLoader as without a cache, in the order in which they
are trained, so that nothing is waited for at the start. A cache is no part of a checkpoint: after
a resume, what is missing is read again when it is needed.

Data that turns out to be drawn anew, though the samples that were looked at were not, is read by a
loader from that update on. Nothing of it was trained by then, unless it draws from where nobody can
look: that shows when some samples are read again in a later epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatout.engine import randomness
from flatout.engine.batches import tensors_in, with_tensors
from flatout.engine.caching import (
    NOT_CACHEABLE,
    Caching,
    changed_since,
    copied,
    drawn_anew,
    form_of,
    is_moved,
    not_cacheable,
    own_generators,
    same_bits,
    states_of,
)
from flatout.engine.feed import Feed, MicroBatch, Slicing
from flatout.engine.loader import LoaderFeed, Loading, as_it_is, end_workers
from flatout.engine.part import Part
from flatout.engine.stacking import Refused, refused_to_exit, stacked, unless_refused
from flatout.errors import FlatoutError, UsageError

# So many samples are read again in each epoch.
_READ_AGAIN = 4


class CachedFeed:
    """A map-style dataset whose samples are the same each time.

    Args:
        dataset: has `__len__` and `__getitem__(index)`.
        slicing: how an epoch becomes updates.
        loading: how a DataLoader reads what is not kept yet.
        caching: how samples are kept.

    num_bytes: what the cache will take, predicted.
    num_read: samples of the newest update that were not in the cache.
    problem: why a loader reads them now; None as long as they are kept.
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
        # What each batch has to be read for; changed, never replaced: the loader keeps the list.
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
            # The memory is for others now.
            self._store = _Samples(0, stacked, is_pinned=False)
            self._instead = LoaderFeed(self._dataset, self._slicing, self._loading)
            self.problem = error
        for update in self._instead.updates(epoch, number):
            self.num_read = sum(size for _, size in update)
            yield update

    def _kept_updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """Updates out of the cache.

        Raises:
            UsageError: data-cannot-be-cached, before the first of those that cannot come from it.
        """
        slicing = self._slicing
        assert self.num_samples is not None
        # A part of the data is there to be measured, and its epochs are short.
        if not self._num_missing and not isinstance(self._dataset, Part):
            _check_again(self._dataset, self._store, slicing.seed, epoch)
        order = randomness.sample_order(self.num_samples, slicing.seed, epoch, slicing.is_shuffled)
        # One micro-batch at a time, each in memory of its own: alignment, and with it rounding,
        # does not depend on where a resume begins, nor on whether there is a cache.
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
        """Reads in this process what is missing."""
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


def _check_again(dataset: Any, store: _Store, seed: int, epoch: int) -> None:
    """Reads some samples again, others in each epoch: data may change where nobody looks.

    Raises:
        UsageError: data-cannot-be-cached, where one has changed.
    """
    seed, own = randomness.mixed_seed(seed, "read again"), own_generators(dataset)
    order = randomness.sample_order(len(dataset), seed, epoch, is_shuffled=True)
    for index in order[:_READ_AGAIN].tolist():
        error = changed_since(dataset, index, functools.partial(store.has, index), own)
        if error is not None:
            raise error


def problem_of(feed: Feed | None) -> UsageError | None:
    """Why a feed that was to keep its samples does not; None where it does, or never was to."""
    return feed.problem if isinstance(feed, CachedFeed) else None


class _Readings(Dataset[Any]):
    """Samples by the indices of a micro-batch, read while the random generators are watched."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate
        self._own: list[Any] | None = None

    def __getitems__(self, indices: list[int]) -> Any:
        if self._own is None:
            # In the process that reads: a worker has a data set of its own.
            self._own = own_generators(self._dataset)
        states, own = randomness.host_generator_states(), states_of(self._own)
        try:
            samples = [self._dataset[index] for index in indices]
            is_other = not same_bits(own, states_of(self._own))
            if is_other or is_moved(states, randomness.host_generator_states()):
                raise drawn_anew(indices[0])
            return self._collate(samples)
        except FlatoutError as error:
            return Refused(error)
        except SystemExit as error:
            return refused_to_exit(error)
        finally:
            randomness.restore_host_generators(states)


class _Store(Protocol):
    """Where samples are kept."""

    def put(self, indices: Tensor, samples: Any) -> None:
        """Keeps what was read for these indices."""
        ...

    def batch(self, epoch: int, indices: Tensor) -> Any:
        """A batch of samples that are kept; it shares no memory with them."""
        ...

    def has(self, index: int, sample: Any) -> bool:
        """Whether that sample is what was kept under that index."""
        ...


class _Rows:
    """Samples as rows of tensors; what is put in are whole batches."""

    def __init__(self, num_samples: int, *, is_pinned: bool) -> None:
        self._num_samples = num_samples
        self._is_pinned = is_pinned
        self._form = ""
        self._nesting: Any = None
        self._tensors: list[Tensor] = []

    def put(self, indices: Tensor, samples: Any) -> None:
        """See _Store.

        Raises:
            UsageError: data-cannot-be-cached, where samples are not of the form of those before.
        """
        form, rows = form_of(samples), list(tensors_in(samples))
        if not self._tensors:
            self._form = form
            self._tensors = [row.new_empty((self._num_samples, *row.shape[1:])) for row in rows]
            self._nesting = with_tensors(samples, iter(self._tensors))
        if form != self._form:
            raise not_cacheable(
                f"its samples are not all alike: some have the form {self._form}, some {form}"
            )
        for tensor, row in zip(self._tensors, rows, strict=True):
            tensor.index_copy_(0, indices, row)

    def batch(self, epoch: int, indices: Tensor) -> Any:
        """See _Store."""
        rows = (self._rows(tensor, indices) for tensor in self._tensors)
        return with_tensors(self._nesting, rows)

    def has(self, index: int, sample: Any) -> bool:
        """See _Store."""
        rows = stacked([sample])
        kept = with_tensors(self._nesting, (one[index : index + 1] for one in self._tensors))
        return same_bits(list(tensors_in(rows)), list(tensors_in(kept)))

    def _rows(self, tensor: Tensor, indices: Tensor) -> Tensor:
        if not self._is_pinned:
            return tensor.index_select(0, indices)
        shape = (len(indices), *tensor.shape[1:])
        pinned = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, indices, out=pinned)


class _Samples:
    """Samples one by one, collated anew for each batch."""

    def __init__(self, seed: int, collate: Callable[[list[Any]], Any], *, is_pinned: bool) -> None:
        self._seed = seed
        self._collate = collate
        self._is_pinned = is_pinned
        self._samples: dict[int, Any] = {}

    def put(self, indices: Tensor, samples: Any) -> None:
        """See _Store."""
        # What a worker has sent is memory that is shared, of which a process has only so much.
        self._samples |= zip(indices.tolist(), map(copied, samples), strict=True)

    def batch(self, epoch: int, indices: Tensor) -> Any:
        """See _Store."""
        numbers = indices.tolist()
        samples = [self._samples[index] for index in numbers]
        states = randomness.host_generator_states()
        # Without a cache, a `collate` that draws goes on where the last sample has left off.
        seed = randomness.mixed_seed(self._seed, "sample", epoch, numbers[-1])
        randomness.seed_host_generators(seed)
        try:
            # It may change what it is given.
            batch = self._collate([copied(sample) for sample in samples])
        finally:
            randomness.restore_host_generators(states)
        if not self._is_pinned:
            return batch
        return with_tensors(batch, (tensor.pin_memory() for tensor in tensors_in(batch)))

    def has(self, index: int, sample: Any) -> bool:
        """See _Store."""
        return same_bits(self._samples[index], sample)
