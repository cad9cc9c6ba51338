"""Which feed reads an experiment's data, as its kind and the recipe say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flatout.engine.experiment import Experiment
from flatout.engine.facts import data_kind
from flatout.engine.feed import Feed, Slicing, TensorFeed, check_size
from flatout.engine.loader import LoaderFeed, Loading, StreamFeed
from flatout.engine.tensor_data import underneath
from flatout.errors import UsageError
from flatout.nouns.recipe import Recipe


def built_data(experiment: Experiment, make: Callable[[], Any]) -> Any:
    """The data that an experiment's function makes; of tensors in a data set the tensors.

    Whoever gives `collate` wants the samples, one by one.
    """
    return underneath(make()) if experiment.collate is None else make()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What decides how data is read: by whom, in which pieces, in which order."""

    experiment: Experiment
    recipe: Recipe
    seed: int

    def training_feed(self, data: Any, device: torch.device) -> Feed:
        """Feeds the training data, in a new order in each epoch if the experiment says so."""
        feed = self._feed(data, self._slicing(is_shuffled=self.experiment.shuffle), device)
        if feed.num_samples is not None:
            check_size(feed.num_samples, self.experiment.batch_size, "train")
        return feed

    def validation_feed(self, device: torch.device) -> Feed | None:
        """Feeds the validation data, in its own order; None where there is none."""
        if self.experiment.validation_data is None:
            return None
        data = built_data(self.experiment, self.experiment.validation_data)
        feed = self._feed(data, self._slicing(is_shuffled=False), device)
        if feed.num_samples is not None:
            check_size(feed.num_samples, 1, "validation")
        return feed

    def _slicing(self, *, is_shuffled: bool) -> Slicing:
        batch_size = self.experiment.batch_size
        return Slicing(
            batch_size=batch_size,
            micro_batch_size=min(self.recipe.micro_batch_size.value, batch_size),
            seed=self.seed,
            is_shuffled=is_shuffled,
        )

    def _feed(self, data: Any, slicing: Slicing, device: torch.device) -> Feed:
        recipe = self.recipe
        kind = data_kind(data)
        if kind == "tensors":
            is_resident = recipe.data_path.value == "resident"
            return TensorFeed(data, slicing, device if is_resident else torch.device("cpu"))
        loading = Loading(
            num_workers=recipe.loader_workers.value,
            prefetch=recipe.loader_prefetch.value,
            pin_memory=recipe.loader_pin_memory.value,
            persistent=recipe.loader_persistent.value and recipe.loader_workers.value > 0,
            collate=self.experiment.collate,
        )
        make = LoaderFeed if kind == "map-style" else StreamFeed
        return make(data, slicing, loading)


def check_apart(training: Feed, validation: Feed | None) -> None:
    """Refuses one stream for both where it knows a single position: a validation would move it.

    Raises:
        UsageError: bad-experiment.
    """
    if not isinstance(training, StreamFeed) or not isinstance(validation, StreamFeed):
        return
    if training.has_state and training.source is validation.source:
        raise UsageError(
            "bad-experiment",
            f"`train_data` and `validation_data` give the same {type(training.source).__name__}.",
            because="it keeps one position, and a validation would move the training's",
            fix="make a new one in each of them",
        )
