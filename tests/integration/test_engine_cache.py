"""Samples that are kept in memory: the same training, and never what is drawn anew."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed import cache_check
from flatout.engine.feed.cache_check import Caching, caching_of
from flatout.engine.feed.cached_feed import CachedFeed
from flatout.engine.feed.feed import Slicing
from flatout.engine.feed.loader_feed import LoaderFeed, Loading
from flatout.engine.feed.select_feed import FeedOptions
from flatout.engine.session.session import Session, build
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.trials import Trials
from flatout.errors import UsageError
from flatout.schema.tuning import Cache, Candidate, Result, Trial
from flatout.system.store.run_folder import read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]

Pair = namedtuple("Pair", "inputs label")


class Decoded:
    """Fifty points that are the same each time, or more that repeat them; reading is counted.

    change: makes of a sample what a test wants.
    """

    def __init__(
        self, change: Callable[[Tensor, int], Any] | None = None, num_samples: int = 50
    ) -> None:
        dice = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(50, 6, generator=dice)
        self.change = change
        self.num_samples = num_samples
        self.num_reads = 0

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        self.num_reads += 1
        index %= 50
        inputs, label = self.inputs[index].clone(), int(self.inputs[index, :3].argmax())
        return self.change(inputs, label) if self.change is not None else (inputs, label)


def drawing_collate(samples: list[Any]) -> list[Tensor]:
    inputs, labels = zip(*samples, strict=True)
    # It changes what it is given, as some do.
    inputs[0].add_(torch.rand(()) + random.random())
    return [torch.stack(inputs), torch.tensor(labels)]


# The same training.


@pytest.mark.parametrize(
    ("collate", "use"),
    [
        (None, {"loader_workers": 0}),
        (None, {"loader_workers": 2, "micro_batch_size": 3}),
        (drawing_collate, {"loader_workers": 0, "micro_batch_size": 3}),
        (drawing_collate, {"loader_workers": 2}),
    ],
)
def test_cached_run_is_that_of_the_loader(
    lab: Lab, tell: Tell, plain: Plain, collate: Any, use: dict[str, Any]
) -> None:
    experiment = plain(train_data=Decoded, validation_data=Decoded, collate=collate)
    read = lab.run(experiment, **(use | {"data_path": "loader"}))
    cached = lab.run(experiment, **(use | {"data_path": "cached"}))
    assert tell.traces(cached) == tell.traces(read)


@pytest.mark.parametrize(("collate", "stop_after"), [(None, 3), (drawing_collate, 9)])
def test_cached_run_goes_on_as_if_never_stopped(
    lab: Lab, tell: Tell, plain: Plain, collate: Any, stop_after: int
) -> None:
    experiment = plain(train_data=Decoded, collate=collate)
    use = {"data_path": "cached", "loader_workers": 0}
    whole = lab.run(experiment, **use)
    parts = lab.new(**use)
    lab.go_on(parts, experiment, stop_after=stop_after)
    lab.go_on(parts, experiment, stop_after=stop_after)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs, label: {"inputs": inputs, "more": [inputs.numpy(), label]},
        lambda inputs, label: Pair(inputs, float(label)),
        lambda inputs, label: inputs.to(torch.bfloat16),
        lambda inputs, label: (inputs * torch.nan, label > 1),
    ],
)
def test_batches_have_the_nesting_and_types_of_the_loader(plain: Plain, change: Any) -> None:
    feeds = [feed_of(plain(train_data=lambda: Decoded(change)), path) for path in PATHS]
    for epoch in (0, 1):
        loaded, cached = ([*feed.updates(epoch, 0)] for feed in feeds)
        assert len(loaded) == len(cached) == 7
        assert cache_check.same_bits(loaded, cached)


PATHS = ("loader", "cached")


def feed_of(experiment: Experiment, path: str, **use: Any) -> Any:
    built = build(experiment, 0, "cpu")
    recipe = built.recipe({"data_path": path, "loader_workers": 0} | use)
    return Session(built, recipe).feed


def test_samples_of_unequal_size_are_kept_one_by_one(plain: Plain) -> None:
    def change(inputs: Tensor, label: int) -> Tensor:
        return inputs[: label + 1]

    def padded(samples: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    experiment = plain(train_data=lambda: Decoded(change), collate=padded)
    feeds = [feed_of(experiment, path) for path in PATHS]
    for epoch in (0, 1):
        loaded, cached = ([*feed.updates(epoch, 0)] for feed in feeds)
        assert cache_check.same_bits(loaded, cached)
    # Without a collate they cannot be made batches; alone they can.
    assert not caching_of(Decoded(change), None).is_stacked


@pytest.mark.timing
def test_each_sample_is_read_once(plain: Plain) -> None:
    data = Decoded(num_samples=2000)
    feed = feed_of(plain(train_data=lambda: data), "cached")
    looked_at, data.num_reads = data.num_reads, 0
    # 256 samples and one of each class, twice each: not all of them.
    assert 512 <= looked_at <= 2 * (256 + 16)
    for epoch in range(3):
        numbers = [feed.num_read for _ in feed.updates(epoch, 0)]
        assert sum(numbers) == (2000 if epoch == 0 else 0)
    # In each epoch after the first some are read again, to see whether they are still the same.
    assert data.num_reads == 2000 + 2 * 4


def test_what_a_resume_has_passed_over_is_read_when_it_is_needed(plain: Plain) -> None:
    data = Decoded()
    feed = feed_of(plain(train_data=lambda: data), "cached", loader_workers=0)
    data.num_reads = 0
    assert len([*feed.updates(0, 5)]) == 2 and data.num_reads == 10
    assert len([*feed.updates(1, 0)]) == 7 and data.num_reads == 50


def test_a_batch_may_be_changed_without_changing_what_is_kept(plain: Plain) -> None:
    for collate in (None, drawing_collate):
        feed = feed_of(plain(train_data=Decoded, collate=collate), "cached")
        first = [batch[0].clone() for [(batch, _)] in feed.updates(0, 0)]
        for [(batch, _)] in feed.updates(0, 0):
            batch[0].zero_()
        again = [batch[0] for [(batch, _)] in feed.updates(0, 0)]
        assert all(map(torch.equal, first, again))


# What is drawn anew is never kept.


class Counting(Decoded):
    """Tells how often it was read, as who keeps a state of its own does."""

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs + self.num_reads, label


class OwnDice(Decoded):
    """Draws seldom, from a generator that it holds in one of its transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.transforms = [{"dice": numpy.random.default_rng(0)}]

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs * (self.transforms[0]["dice"].random() > 1e-9), label


def noise(draw: Callable[[], Any]) -> Callable[[], Decoded]:
    return lambda: Decoded(lambda inputs, label: (inputs, label if draw() is not None else 0))


DRAWING = {
    "torch": noise(lambda: torch.rand(())),
    "python": noise(random.random),
    "numpy": noise(numpy.random.rand),
    "counting": Counting,
    "own dice": OwnDice,
}


@pytest.mark.parametrize("name", DRAWING)
def test_samples_that_are_drawn_anew_are_refused(lab: Lab, plain: Plain, name: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(UsageError) as caught:
        lab.run(plain(train_data=DRAWING[name]), data_path="cached")
    assert caught.value.rule == "data-cannot-be-cached"
    assert "its samples are random" in (caught.value.because or "")
    assert torch.equal(torch.get_rng_state(), state)


def many() -> Decoded:
    """So many points that some are not looked at before the training."""
    return Decoded(num_samples=600)


UNSEEN = next(one for one in range(600) if one not in cache_check._looked_for(many()))


class Seldom(Decoded):
    """As many points, of which one is drawn anew."""

    def __init__(self) -> None:
        super().__init__(num_samples=600)

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return (torch.rand(6) if index == UNSEEN else inputs), label


@pytest.mark.parametrize("use", [{"loader_workers": 0}, {"loader_workers": 1}])
@pytest.mark.parametrize("micro_batch_size", [8, 3])
def test_a_loader_takes_over_where_a_sample_draws_after_all(
    lab: Lab, tell: Tell, plain: Plain, use: dict[str, Any], micro_batch_size: int
) -> None:
    use = use | {"micro_batch_size": micro_batch_size}
    experiment = plain(train_data=Seldom, validation_data=None, epochs=2)
    folder = lab.run(experiment, data_path="cached", **use)
    read = lab.run(experiment, data_path="loader", **use)
    assert tell.traces(folder) == tell.traces(read)
    [adaptation] = read_run(folder).adaptations
    assert adaptation.kind == "uncached" and "its samples are random" in (adaptation.because or "")
    # Going on after a stop, too.
    parts = lab.new(data_path="cached", **use)
    lab.go_on(parts, experiment, stop_after=100)
    lab.go_on(parts, experiment, stop_after=40)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(read)


def test_the_loader_that_took_over_reads_an_update_again() -> None:
    slicing = Slicing(batch_size=8, micro_batch_size=8, seed=1, is_shuffled=False)
    loading = Loading(num_workers=1, prefetch=2, pin_memory=False, persistent=False, collate=None)
    feed = CachedFeed(
        Seldom(), slicing, loading, Caching(num_bytes=1, is_stacked=True, sample_s=0.0)
    )
    whole = list(feed.updates(0, 0))
    updates = feed.updates(1, 0)
    next(updates)
    [(before, _)] = next(updates)
    assert feed.problem is not None and feed._instead is not None
    workers = feed._instead._batches._workers  # type: ignore[attr-defined]
    feed.resize(4)
    repeated = next(feed.again(1, 1))
    # As a loader's own: what read ahead in the old size has ended.
    assert not any(worker.is_alive() for worker in workers) and len(whole) == 75
    assert torch.equal(torch.cat([batch[0] for batch, _ in repeated]), before[0])
    assert feed.num_read == 8
    feed.close()


def test_a_loader_takes_over_in_the_validation(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(train_data=many, validation_data=Seldom, epochs=2)
    folder = lab.run(experiment, data_path="cached", loader_workers=0)
    read = lab.run(experiment, data_path="loader", loader_workers=0)
    assert tell.traces(folder)["weights"] == tell.traces(read)["weights"]
    assert [finding.rule for finding in tell.findings(folder)] == ["data-cannot-be-cached"]


def test_a_loader_takes_over_where_samples_change_from_epoch_to_epoch(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    factor = [1.0]

    class Curriculum(Decoded):
        def __getitem__(self, index: int) -> Any:
            inputs, label = super().__getitem__(index)
            return inputs * factor[0], label

    def loss(model: nn.Module, batch: Any) -> Tensor:
        factor.append(0.0)
        # As a callback does at the end of an epoch: after the seven updates of the second.
        factor[0] = 1.0 if len(factor) <= 14 else 2.0
        value: Tensor = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return value

    experiment = plain(train_data=Curriculum, validation_data=None, loss=loss, epochs=4)
    folder = lab.run(experiment, data_path="cached", loader_workers=0)
    [adaptation] = read_run(folder).adaptations
    assert (adaptation.kind, adaptation.step) == ("uncached", 15)


DICE = random.Random(1)


def test_generators_around_functions_are_seen() -> None:
    inner = random.Random(2)

    def by_closure(inputs: Tensor, label: int) -> Any:
        return inputs + (inner.random() < 0), label

    def by_global(inputs: Tensor, label: int) -> Any:
        return inputs + (DICE.random() < 0), label

    for change in (by_closure, by_global, functools.partial(by_global)):
        with pytest.raises(UsageError, match="does not work with this data"):
            caching_of(Decoded(change), None)


def test_one_sample_of_each_class_is_looked_at() -> None:
    class Classes(Decoded):
        def __init__(self, *, is_augmented: bool) -> None:
            super().__init__(num_samples=600)
            self.is_augmented = is_augmented
            self.targets = torch.zeros(600, dtype=torch.long)
            self.targets[UNSEEN] = 1

        def __getitem__(self, index: int) -> Any:
            inputs, label = super().__getitem__(index)
            is_drawn = self.is_augmented and self.targets[index] == 1
            return (torch.rand(6) if is_drawn else inputs), label

    assert caching_of(Classes(is_augmented=False), None)
    with pytest.raises(UsageError, match="does not work with this data"):
        caching_of(Classes(is_augmented=True), None)


def test_a_loader_takes_over_where_samples_are_not_alike(plain: Plain) -> None:
    class Unlike(Decoded):
        def __init__(self) -> None:
            super().__init__(num_samples=600)

        def __getitem__(self, index: int) -> Any:
            inputs, label = super().__getitem__(index)
            return inputs, float(label) if index == UNSEEN else label

    # Alone in its batch, a loader makes another type of it.
    feeds = [feed_of(plain(train_data=Unlike), path, micro_batch_size=1) for path in PATHS]
    loaded, cached = ([*feed.updates(0, 0)] for feed in feeds)
    assert cache_check.same_bits(loaded, cached)
    assert "differ in form" in (feeds[1].problem.because or "")


def test_samples_that_do_not_fit_the_memory_are_refused() -> None:
    # Six numbers of four bytes and one of eight.
    assert caching_of(Decoded(), None).num_bytes == 50 * 32
    with pytest.raises(UsageError) as caught:
        caching_of(Decoded(), None, reserved_bytes=2**60)
    assert "would take 1.6 KiB; half of the free memory" in (caught.value.because or "")
    with pytest.raises(UsageError, match="does not work") as caught:
        caching_of(Decoded(), None, num_sharing=2**40)
    assert "for each of 1099511627776 ranks" in (caught.value.because or "")


@pytest.mark.parametrize(
    ("data", "path"), [((torch.zeros(50, 6), torch.zeros(50)), "cached"), (iter, "cached")]
)
def test_other_data_has_no_cache(lab: Lab, plain: Plain, data: Any, path: str) -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter(Decoded())

    make = Stream if data is iter else lambda: data
    with pytest.raises(UsageError) as caught:
        lab.run(plain(train_data=make), data_path=path)
    assert caught.value.rule == "recipe-does-not-fit"


def test_validation_data_is_cached_where_it_can_be(plain: Plain) -> None:
    kinds = []
    for make in (Decoded, DRAWING["torch"]):
        experiment = plain(train_data=Decoded, validation_data=make)
        built = build(experiment, 0, "cpu")
        recipe = built.recipe({"data_path": "cached", "loader_workers": 0})
        reading = FeedOptions(experiment=experiment, recipe=recipe, seed=0, caching=built.caching)
        kinds.append(type(reading.validation_feed(torch.device("cpu"))))
    assert kinds == [CachedFeed, LoaderFeed]


def test_persistent_workers_without_effect_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    use = {"data_path": "cached", "loader_workers": 1, "loader_persistent": True}
    folder = lab.run(plain(train_data=Decoded, epochs=1), **use)
    [finding] = [one for one in tell.findings(folder) if one.rule == "setting-without-effect"]
    assert "loader_persistent" in finding.problem


# In the search.


def tried(trials: Trials, before: dict[str, Any], **changes: Any) -> Result:
    candidate = Candidate(name="it", axis="cache", changes=changes, why="")
    trial = Trial(stage="screen", candidate=candidate, incumbent=before, changes=before | changes)
    return trials.measured(trial, 0.3)


class Slow(Decoded):
    """Takes its time."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> Any:
        for _ in range(40):
            self.inputs.sort()
        return super().__getitem__(index % 50)


def reported(trials: Trials, num_steps: int | None) -> Cache:
    assert trials.builder.cache_subset is not None
    return trials.builder.cache_subset.cost(num_steps)


def test_a_cache_is_measured_on_a_part_that_is_kept(plain: Plain) -> None:
    trials = Trials(TuningTask(experiment=plain(train_data=Slow), device_name="cpu"))
    cache = reported(trials, None)
    assert cache.problem is None
    assert 16 <= cache.num_measured < cache.num_samples == 5000
    result = tried(trials, {}, data_path="cached")
    assert result.effect == "no sample was read; all came from the cache"
    assert result.speedup is not None and result.speedup.low > 1
    assert trials.judged({"data_path": "cached"}).is_passed


def test_a_run_of_one_epoch_needs_no_cache(plain: Plain) -> None:
    trials = Trials(TuningTask(experiment=plain(train_data=Decoded), device_name="cpu"))
    cache = reported(trials, 7)
    assert cache.problem is not None and "epochs" in cache.problem
    cache = reported(trials, 14)
    assert cache.problem is None


def test_what_is_drawn_anew_is_not_offered(plain: Plain) -> None:
    subject = TuningTask(experiment=plain(train_data=DRAWING["torch"]), device_name="cpu")
    trials = Trials(subject)
    cache = reported(trials, None)
    assert "its samples are random" in (cache.problem or "")
    with pytest.raises(UsageError, match="does not work"):
        Trials(dataclasses.replace(subject, fixed={"data_path": "cached"}))


def test_batches_read_ahead_are_seen(plain: Plain) -> None:
    trials = Trials(TuningTask(experiment=plain(train_data=Slow), device_name="cpu"))
    workers = {"loader_workers": 1, "loader_persistent": True}
    assert tried(trials, workers, loader_prefetch=4).effect == "4 batches ahead"
    few = Trials(TuningTask(experiment=plain(train_data=Decoded, batch_size=25), device_name="cpu"))
    result = tried(few, workers, loader_prefetch=4)
    assert result.problem is not None and result.problem.rule == "setting-without-effect"
