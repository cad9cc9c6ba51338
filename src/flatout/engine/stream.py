"""Iterables of samples, which have no index: read in their own order, cut into updates here.

Their generators are seeded once an epoch and worker, and kept apart from the model's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flatout.engine import randomness
from flatout.engine.feed import MicroBatch, Slicing
from flatout.engine.loader import Loading, end_workers
from flatout.engine.stacking import (
    Refused,
    refused_to_exit,
    samples_of,
    stacked,
    unless_refused,
)
from flatout.errors import FlatoutError, UsageError


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
        self._collate = _UpdateCollate(loading.collate)
        # Workers that outlive the epoch would keep the stream of the epoch they began with.
        arguments = replace(loading, persistent=False).arguments()
        arguments["collate_fn"] = self._collate
        # The stream itself makes the batches: a DataLoader's would all be of one size, and
        # micro-batches of 10 would then make batches of 30 where 24 were asked for.
        self._loader: DataLoader[Any] = DataLoader(self._stream, batch_size=None, **arguments)
        self._batches: Iterator[Any] = iter(())
        self._generators: dict[str, Any] | None = None
        self._loaded: Any = None
        self._is_at_end = False
        # What is being read now, and the number of the update that comes next from it.
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
            # It broke off: where, only the source knows.
            self._reading = None
            raise

    def _read(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
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
            self._is_at_end = self._stream.is_at_end
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

    def resize(self, micro_batch_size: int) -> None:
        """See Feed."""
        self._slicing = self._stream.slicing = self._slicing.resized(micro_batch_size)

    def can_go_on(self, first: int) -> bool:
        """See Feed: not with what workers have read, nor where reading broke off."""
        is_newest = first == self._next - 1 and self._collate.samples is not None
        is_there = is_newest or first == self._next
        return self._is_in_process and self._reading is not None and is_there

    def again(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed: samples that were taken from an iterable are not asked of it again."""
        reading, samples = self._reading, self._collate.samples
        assert reading is not None and self.can_go_on(first)
        if first == self._next:
            return reading
        assert samples is not None
        size = self._slicing.micro_batch_size
        pieces = [samples[start : start + size] for start in range(0, len(samples), size)]
        outer = randomness.host_generator_states()
        if self._collate.generators is not None:
            randomness.restore_host_generators(self._collate.generators)
        try:
            repeated = unless_refused(self._collate(pieces))
        finally:
            if self._collate.generators is not None:
                self._generators = randomness.host_generator_states()
            randomness.restore_host_generators(outer)
        return itertools.chain([repeated], reading)

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
    """An iterable cut into updates; its draws are a function of (seed, epoch, worker).

    is_at_end: the newest update was a short one, so there is none after it. It is the whole update
    that counts: a rank's share is always shorter than a batch.
    """

    def __init__(self, source: Any, slicing: Slicing) -> None:
        self._source = source
        self.slicing = slicing
        self.epoch = 0
        self.is_seeded = True
        self.is_at_end = False

    def __iter__(self) -> Iterator[list[list[Any]] | Refused]:
        info = get_worker_info()
        slicing = self.slicing
        if self.is_seeded:
            worker = info.id if info else 0
            randomness.seed_host_generators(
                randomness.mixed_seed(slicing.seed, "stream", self.epoch, worker)
            )
        try:
            samples = samples_of(self._source)
            while update := list(itertools.islice(samples, slicing.batch_size)):
                # It may have changed since the last update.
                size = self.slicing.micro_batch_size
                self.is_at_end = len(update) < slicing.batch_size
                begin, end = self.slicing.share.bounds(len(update))
                yield [update[at : min(at + size, end)] for at in range(begin, end, size)]
        except FlatoutError as error:
            yield Refused(error)
        except SystemExit as error:
            yield refused_to_exit(error)


class _UpdateCollate:
    """Makes micro-batches of an update's lists of samples, with their numbers of samples.

    samples: of the newest update, in this process; None before there was one.
    generators: as they were before an experiment's `collate` could draw from them.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate
        self.samples: list[Any] | None = None
        self.generators: dict[str, Any] | None = None

    def __call__(self, update: list[list[Any]] | Refused) -> list[MicroBatch] | Refused:
        try:
            pieces = unless_refused(update)
            self.samples = [sample for samples in pieces for sample in samples]
            if self._collate is not None:
                self.generators = randomness.host_generator_states()
            collate = self._collate or stacked
            return [(collate(samples), len(samples)) for samples in pieces]
        except FlatoutError as error:
            return Refused(error)
        except SystemExit as error:
            return refused_to_exit(error)
