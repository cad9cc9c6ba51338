"""A part of a data set on which reading can be measured with and without a cache.

To fill a cache of all samples would take as long as an epoch. So a part of them is kept, and who
reads without a cache reads the same samples, over and over, in an epoch as long as the whole.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch

from flatout.engine.feed.cache_check import Caching, Collate, caching_of
from flatout.engine.feed.datasets import DataSubset
from flatout.errors import UsageError
from flatout.schema.tuning import Cache

# Reading the part takes about this long; but it has whole batches.
_READING_S = 1.0
_LEAST_BATCHES = 2


class CacheSubset:
    """The cost of caching a map-style data set, and the subset on which it is measured.

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
        """The ways of caching all samples.

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
    def part(self) -> DataSubset:
        """Samples from all over the data."""
        indices = torch.linspace(0, len(self._dataset) - 1, self.size)
        return DataSubset(dataset=self._dataset, indices=indices.round().long().tolist())

    def is_read_once(self, num_steps: int | None) -> bool:
        """Whether few samples are read again in a run of so many steps; None is a long one."""
        two_epochs = 2 * len(self._dataset) / self._batch_size
        return num_steps is not None and num_steps < two_epochs

    def cost(self, num_steps: int | None) -> Cache:
        """The cost in numbers, or the reason against it.

        Args:
            num_steps: of the run; None if unknown.
        """
        num_samples = len(self._dataset)
        if self.is_read_once(num_steps):
            return Cache(problem="the run has fewer than two epochs: few samples are read again")
        try:
            num_bytes = self.caching.num_bytes
        except UsageError as error:
            return Cache(problem=error.because or error.problem)
        return Cache(num_bytes=num_bytes, num_samples=num_samples, num_measured=self.size)
