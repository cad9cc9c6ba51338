"""Iterables of samples without an index: read in their own order and cut into updates.

Their generators are seeded once per epoch and worker, separately from the model's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flatout.engine.feed.collate import (
    WorkerFailure,
    refused_to_exit,
    samples_of,
    stacked,
    unless_refused,
)
from flatout.engine.feed.feed import MicroBatch, Slicing
from flatout.engine.feed.loader_feed import Loading, end_workers
from flatout.engine.runtime import rng
from flatout.engine.runtime.user_code import kind_text
from flatout.errors import FlatoutError, UsageError


class IterableFeed:
    """An iterable of samples without an index.

    Exact on resume if the iterable has `state_dict` and `load_state_dict` (without workers), or if
    it yields the same samples each time it is iterated for the same epoch (then it is replayed up
    to its position). `set_epoch(epoch)` is called if it exists.

    Args:
        source: `iter(source)` starts an epoch; `len(source)`, if any, is its number of samples.
    """

    def __init__(self, source: Any, slicing: Slicing, loading: Loading) -> None:
        if isinstance(source, Iterator):
            raise UsageError(
                "data-can-be-read-only-once",
                f"the training data is {kind_text(source)}: it is empty after one epoch.",
                fix="return an object whose __iter__ starts over each time",
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
        self._collate = _UpdateCollate(loading.collate)
        # Persistent workers would keep the stream of their first epoch.
        arguments = replace(loading, persistent=False).arguments()
        arguments["collate_fn"] = self._collate
        # The stream makes the batches itself: a DataLoader's would all have one size, and
        # micro-batches of 10 would then add up to batches of 30 instead of 24.
        self._loader: DataLoader[Any] = DataLoader(self._stream, batch_size=None, **arguments)
        self._batches: Iterator[Any] = iter(())
        self._generators: dict[str, Any] | None = None
        self._loaded: Any = None
        self._is_at_end = False
        # The current stream, and the number of its next update.
        self._reading: Iterator[list[MicroBatch]] | None = None
        self._next = 0

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        self._reading, self._next = self._counted(self._read(epoch, first)), first
        return self._reading

    def _counted(self, updates: Iterator[list[MicroBatch]]) -> Iterator[list[MicroBatch]]:
        try:
            for update in updates:
                self._next += 1
                yield update
        except Exception:
            # Iteration was interrupted; only the source knows where.
            self._reading = None
            raise

    def _read(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        # At the beginning of an epoch there is nothing to resume.
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
            # The source has ended, and may have started over.
            self._is_at_end = self._stream.is_at_end
            yield update

    def _begin_epoch(self, epoch: int, loaded: Any) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        if loaded is not None:
            # set_epoch may have reset it to the beginning of the epoch.
            self.source.load_state_dict(loaded)
        self._stream.epoch = epoch
        self._stream.is_seeded = loaded is None

    def _own_generators(self, updates: Iterator[Any]) -> Iterator[Any]:
        """Separates the iterable's random state from the model's if they share a process.

        So the iterable draws the same numbers when it is replayed without a model.
        """
        if not self._is_in_process:
            yield from updates
            return
        while True:
            outer = rng.host_generator_states()
            if self._generators is not None:
                rng.restore_host_generators(self._generators)
            try:
                update = next(updates, None)
            finally:
                self._generators = rng.host_generator_states()
                rng.restore_host_generators(outer)
            if update is None:
                return
            yield update

    def resize(self, micro_batch_size: int) -> None:
        """See Feed."""
        self._slicing = self._stream.slicing = self._slicing.resized(micro_batch_size)

    def can_go_on(self, first: int) -> bool:
        """See Feed: impossible if workers have read ahead, or reading was interrupted."""
        is_newest = first == self._next - 1 and self._collate.samples is not None
        is_there = is_newest or first == self._next
        return self._is_in_process and self._reading is not None and is_there

    def again(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed: samples already taken from an iterable are reused."""
        reading, samples = self._reading, self._collate.samples
        assert reading is not None and self.can_go_on(first)
        if first == self._next:
            return reading
        assert samples is not None
        size = self._slicing.micro_batch_size
        pieces = [samples[start : start + size] for start in range(0, len(samples), size)]
        outer = rng.host_generator_states()
        if self._collate.generators is not None:
            rng.restore_host_generators(self._collate.generators)
        try:
            repeated = unless_refused(self._collate(pieces))
        finally:
            if self._collate.generators is not None:
                self._generators = rng.host_generator_states()
            rng.restore_host_generators(outer)
        return itertools.chain([repeated], reading)

    def state(self) -> Any:
        """See Feed."""
        if not self.has_state:
            return None
        # A source may accept a state only after `set_epoch`.
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
    """Whether an iterable's own state is enough to continue with exactly the next sample.

    A stream of Hugging Face's `datasets` that is shuffled in a buffer refills it on resume and so
    loses what was in it; it is replayed instead. It has no flag for this: its parts are searched.
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
    """An iterable cut into updates; its random state is a function of (seed, epoch, worker).

    is_at_end: the latest update was a partial one, so there is none after it. The whole update
    counts, not this rank's share, which is always shorter than a batch.
    """

    def __init__(self, source: Any, slicing: Slicing) -> None:
        self._source = source
        self.slicing = slicing
        self.epoch = 0
        self.is_seeded = True
        self.is_at_end = False

    def __iter__(self) -> Iterator[list[list[Any]] | WorkerFailure]:
        info = get_worker_info()
        slicing = self.slicing
        if self.is_seeded:
            worker = info.id if info else 0
            rng.seed_host_generators(rng.mixed_seed(slicing.seed, "stream", self.epoch, worker))
        try:
            samples = samples_of(self._source)
            while update := list(itertools.islice(samples, slicing.batch_size)):
                # It may have changed since the last update.
                size = self.slicing.micro_batch_size
                self.is_at_end = len(update) < slicing.batch_size
                begin, end = self.slicing.share.bounds(len(update))
                yield [update[at : min(at + size, end)] for at in range(begin, end, size)]
        except FlatoutError as error:
            yield WorkerFailure(error)
        except SystemExit as error:
            yield refused_to_exit(error)


class _UpdateCollate:
    """Makes micro-batches from an update's lists of samples, with their numbers of samples.

    samples: of the latest update, in this process; None before the first.
    generators: their state before the experiment's `collate` could draw from them.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate
        self.samples: list[Any] | None = None
        self.generators: dict[str, Any] | None = None

    def __call__(self, update: list[list[Any]] | WorkerFailure) -> list[MicroBatch] | WorkerFailure:
        try:
            pieces = unless_refused(update)
            self.samples = [sample for samples in pieces for sample in samples]
            if self._collate is not None:
                self.generators = rng.host_generator_states()
            collate = self._collate or stacked
            return [(collate(samples), len(samples)) for samples in pieces]
        except FlatoutError as error:
            return WorkerFailure(error)
        except SystemExit as error:
            return refused_to_exit(error)
