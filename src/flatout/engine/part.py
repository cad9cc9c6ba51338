"""A part of a data set on which reading can be measured with and without a cache.

To fill a cache of all samples would take as long as an epoch. So a part of them is kept, and who
reads without a cache reads the same samples, over and over, in an epoch as long as the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from flatout.engine.caching import Caching, Collate, caching_of
from flatout.errors import UsageError
from flatout.nouns.tuning import Cache

# Reading the part takes about this long; but it has whole batches.
_READING_S = 1.0
_LEAST_BATCHES = 2


@dataclass(frozen=True, kw_only=True)
class Part:
    """Samples from all over a map-style data set."""

    dataset: Any
    indices: list[int]
    kept: dict[int, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        # Several caches are filled of it, one after another: it is read for the first alone.
        if index not in self.kept:
            self.kept[index] = self.dataset[self.indices[index]]
        return self.kept[index]


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A data set with the samples of a part in all places, read anew each time."""

    part: Part

    def __len__(self) -> int:
        return len(self.part.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.part.dataset[self.part.indices[index % len(self.part)]]


class Keeping:
    """What keeping a map-style data set's samples would mean, and the part on which it is measured.

    Args:
        dataset: whose samples they are.
        collate: the experiment's own, if it has one.
        batch_size: of an update.
        reserved_bytes: memory that is left to others.
        size: samples of the part; None finds a size.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate | None,
        *,
        batch_size: int,
        reserved_bytes: int,
        size: int | None,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._batch_size = batch_size
        self._reserved_bytes = reserved_bytes
        self._size = size

    @cached_property
    def caching(self) -> Caching:
        """How all samples can be kept.

        Raises:
            UsageError: data-cannot-be-cached.
        """
        return caching_of(self._dataset, self._collate, reserved_bytes=self._reserved_bytes)

    @property
    def size(self) -> int:
        """Samples of the part; all of them where reading takes no time.

        Raises:
            UsageError: data-cannot-be-cached.
        """
        if self._size is not None:
            return self._size
        in_time = math.ceil(_READING_S / max(self.caching.sample_s, 1e-9))
        return min(len(self._dataset), max(_LEAST_BATCHES * self._batch_size, in_time))

    @cached_property
    def part(self) -> Part:
        """Samples from all over the data."""
        places = torch.linspace(0, len(self._dataset) - 1, self.size)
        return Part(dataset=self._dataset, indices=places.round().long().tolist())

    def is_read_once(self, num_steps: int | None) -> bool:
        """Whether few samples are read again in a run of so many steps; None is a long one."""
        two_epochs = 2 * len(self._dataset) / self._batch_size
        return num_steps is not None and num_steps < two_epochs

    def told(self, num_steps: int | None) -> Cache:
        """What it means, in numbers, or why it cannot be.

        Args:
            num_steps: of the run; None where nobody knows.
        """
        num_samples = len(self._dataset)
        if self.is_read_once(num_steps):
            return Cache(problem="the run has less than two epochs: few samples are read again")
        try:
            num_bytes = self.caching.num_bytes
        except UsageError as error:
            return Cache(problem=error.because or error.problem)
        return Cache(num_bytes=num_bytes, num_samples=num_samples, num_measured=self.size)
