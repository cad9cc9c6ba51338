"""The gate's fixtures: a small copy of the subject, and the results of its plain step, kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import msgspec
from torch import nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.select_feed import built_data
from flatout.engine.gate.fakes import bare, few_samples, remembering
from flatout.engine.gate.fixed_rng import FixedRng
from flatout.engine.gate.runs import GateCase, Maker
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import chosen_device
from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.errors import FlatoutError
from flatout.schema.recipe import Recipe

DrawsKind = Literal["keyed", "expected", "own"]


@dataclass(frozen=True, kw_only=True)
class GateSubject:
    """The subject of a gate.

    Args:
        experiment: whose training is tuned.
        seed: of the run.
        device: `cpu`, `cuda` or `cuda:N`; None is the best one here.
        maker: how the candidate's sessions and steps are made.
        num_samples: in a batch of the gate, at most; fewer make it cheaper and less sure.
        train_data: what its factory has given before, where it need not be called again.
    """

    experiment: Experiment
    seed: int = 0
    device: str | None = None
    maker: Maker = field(default_factory=Maker)
    num_samples: int = 8
    train_data: Any = None


class PlainStepFailed(Exception):
    """The plain step raised something itself: so small a batch may not suit the experiment."""


class GateFixtures:
    """A subject on few samples, in cases that are run; the plain ones' results are kept.

    Args:
        subject: what is judged.
        plain: the recipe that candidates are compared with.
    """

    def __init__(self, subject: GateSubject, plain: Recipe) -> None:
        self.plain = plain
        self.device = chosen_device(subject.device)
        self._subject = subject
        self._results: dict[Any, Any] = {}
        self.size = min(subject.num_samples, subject.experiment.batch_size)
        with rng.untouched_generators(self.device):
            rng.seed_generators(rng.mixed_seed(subject.seed, "model"))
            self.model = subject.experiment.model()
            # Two whole batches, and one that is smaller but not a single sample.
            rest = self.size - 2 if self.size >= 4 else 0
            data = subject.train_data
            if data is None:
                data = built_data(subject.experiment, subject.experiment.train_data)
            self.data = few_samples(data, 2 * self.size + rest)

    @cached_property
    def experiment(self) -> Experiment:
        """The subject's experiment on few samples."""
        experiment = self._subject.experiment
        has_validation = experiment.validation_data is not None
        return replace(
            experiment,
            model=self.new_model,
            train_data=lambda: self.data,
            # Some schedules need it.
            validation_data=(lambda: self.data) if has_validation else None,
            batch_size=self.size,
        )

    @cached_property
    def remembering(self) -> Experiment:
        """The same with an optimizer that leaves the weights alone and keeps the gradients."""
        return replace(bare(self.experiment), optimizer=remembering, named_parameters=False)

    def new_model(self) -> nn.Module:
        """The model as it begins, copied rather than reinitialised where possible."""
        try:
            return copy.deepcopy(self.model)
        except (RuntimeError, TypeError, AttributeError, NotImplementedError):
            # Not everything that a module can hold can be copied.
            rng.seed_generators(rng.mixed_seed(self._subject.seed, "model"))
            return self._subject.experiment.model()

    def small(self, recipe: Recipe, **changes: Any) -> Recipe:
        """The recipe for a batch of the gate, read in this process; split if it splits the batch.

        Parts are unequal, and never a single sample where that can be: BatchNorm cannot have it.
        """
        whole = self._subject.experiment.batch_size
        micro, plain = recipe.micro_batch_size.value, self.plain.micro_batch_size.value
        size = self.size
        if micro < whole and size > 1:
            size = min(3, self.size - 1)
            if plain < whole and micro != plain:
                size = max(1, size - 1) if micro < plain else min(4, self.size - 1)
        alone: dict[str, Any] = {
            "loader_workers": 0, "loader_persistent": False,
            # Whether graphs repeat the step is a question of its own.
            "capture": "off", "steps_per_launch": 1,
        }  # fmt: skip
        if recipe.data_path.value == "cached":
            # The checks use few samples and need no cache.
            alone["data_path"] = "loader"
        return changed(recipe, **({"micro_batch_size": size} | alone | changes))

    def splits_otherwise(self, candidate: Recipe) -> bool:
        """Whether batches are cut into other parts, so that their draws cannot be the same."""
        sizes = [self.small(recipe).micro_batch_size.value for recipe in (candidate, self.plain)]
        return sizes[0] != sizes[1]

    def case(
        self, experiment: Experiment, recipe: Recipe, *, is_plain: bool, draws: DrawsKind = "keyed"
    ) -> GateCase:
        """Something to be run; draws: made of keys, as expected (see FixedRng), or torch's own."""
        return GateCase(
            experiment=experiment,
            recipe=recipe,
            seed=self._subject.seed,
            device=str(self.device),
            maker=Maker() if is_plain else self._subject.maker,
            draws=None if draws == "own" else FixedRng(is_expected=draws == "expected"),
        )

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """A result of the plain step, computed at the first request.

        Raises:
            PlainStepFailed: what was raised is its cause.
        """
        if key not in self._results:
            try:
                self._results[key] = make()
            except FlatoutError:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise PlainStepFailed(f"{type(error).__name__}: {error}") from error
        return self._results[key]


def changed(recipe: Recipe, **values: Any) -> Recipe:
    """The recipe with other values in some of its fields."""
    choices = {
        name: msgspec.structs.replace(getattr(recipe, name), value=value)
        for name, value in values.items()
    }
    return msgspec.structs.replace(recipe, **choices)
