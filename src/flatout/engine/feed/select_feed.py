"""Chooses the feed that reads an experiment's data, by its kind and the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flatout.engine.experiment import Experiment
from flatout.engine.feed.cache_check import Caching, caching_of
from flatout.engine.feed.cached_feed import CachedFeed
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.feed.datasets import underneath
from flatout.engine.feed.feed import BatchShard, Feed, Slicing, TensorFeed, check_size
from flatout.engine.feed.iterable_feed import IterableFeed
from flatout.engine.feed.loader_feed import LoaderFeed, Loading
from flatout.errors import UsageError
from flatout.schema.recipe import Recipe


def built_data(experiment: Experiment, make: Callable[[], Any]) -> Any:
    """The data that an experiment's function returns; for a data set of tensors, the tensors.

    An experiment's own `collate` needs the samples one by one.
    """
    return underneath(make()) if experiment.collate is None else make()


@dataclass(frozen=True, kw_only=True)
class FeedOptions:
    """The settings that decide how data is read.

    caching: how to cache the training samples, if the recipe says so; None does not cache.
    cpus: those that workers may use, if the recipe keeps the step's threads off some of them.
    share: the rank's part of each batch.
    """

    experiment: Experiment
    recipe: Recipe
    seed: int
    caching: Caching | None = None
    cpus: tuple[int, ...] = ()
    share: BatchShard = BatchShard()

    def training_feed(self, data: Any, device: torch.device) -> Feed:
        """The feed of the training data, in a new order in each epoch if the experiment says so."""
        slicing = self._slicing(is_shuffled=self.experiment.shuffle)
        feed = self._feed(data, slicing, device, self.caching)
        if feed.num_samples is not None:
            check_size(feed.num_samples, self.experiment.batch_size, "train")
        return feed

    def validation_feed(self, device: torch.device) -> Feed | None:
        """The feed of the validation data, in its own order; None if there is none.

        It is cached in addition to the training data if possible; otherwise it is read each time.
        """
        if self.experiment.validation_data is None:
            return None
        data = built_data(self.experiment, self.experiment.validation_data)
        caching = self._validation_caching(data)
        slicing = self._slicing(is_shuffled=False)
        feed = self._feed(data, slicing, device, caching, is_validation=True)
        if feed.num_samples is not None:
            check_size(feed.num_samples, 1, "validation")
        return feed

    def _validation_caching(self, data: Any) -> Caching | None:
        if self.caching is None or data_kind(data) != "map-style" or len(data) == 0:
            return None
        try:
            num_sharing = self.caching.num_sharing
            return caching_of(
                data,
                self.experiment.collate,
                reserved_bytes=self.caching.num_bytes * num_sharing,
                num_sharing=num_sharing,
            )
        except UsageError as error:
            if error.rule != "data-cannot-be-cached":
                raise
            return None

    def _slicing(self, *, is_shuffled: bool) -> Slicing:
        batch_size = self.experiment.batch_size
        return Slicing(
            batch_size=batch_size,
            micro_batch_size=min(self.recipe.micro_batch_size.value, batch_size),
            seed=self.seed,
            is_shuffled=is_shuffled,
            share=self.share,
        )

    def _feed(
        self,
        data: Any,
        slicing: Slicing,
        device: torch.device,
        caching: Caching | None,
        *,
        is_validation: bool = False,
    ) -> Feed:
        recipe = self.recipe
        kind = data_kind(data)
        if kind == "tensors":
            is_resident = recipe.data_path.value == "resident"
            if is_resident:
                return TensorFeed(data, slicing, device)
            is_pinned = device.type == "cuda"
            return TensorFeed(data, slicing, torch.device("cpu"), is_pinned=is_pinned)
        loading = Loading(
            num_workers=recipe.loader_workers.value,
            prefetch=recipe.loader_prefetch.value,
            pin_memory=recipe.loader_pin_memory.value,
            persistent=recipe.loader_persistent.value and recipe.loader_workers.value > 0,
            collate=self.experiment.collate,
            cpus=self.cpus if recipe.cpu_affinity.value != "all" else (),
        )
        if is_validation and recipe.loader_persistent.origin != "yours":
            loading = loading.for_validation()
        if kind == "map-style" and caching is not None:
            return CachedFeed(data, slicing, loading, caching)
        make = LoaderFeed if kind == "map-style" else IterableFeed
        return make(data, slicing, loading)


def check_streams_differ(training: Feed, validation: Feed | None) -> None:
    """Refuses one stateful stream for both: validation would move the training's position.

    Raises:
        UsageError: bad-experiment.
    """
    if not isinstance(training, IterableFeed) or not isinstance(validation, IterableFeed):
        return
    if training.has_state and training.source is validation.source:
        raise UsageError(
            "bad-experiment",
            f"`train_data` and `validation_data` return the same {type(training.source).__name__}.",
            because="it has a single position, which validation would move",
            fix="create a new one in each of them",
        )
