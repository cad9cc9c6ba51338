"""Threads are kept on some CPUs, all of them, and put back; loader workers have the others, too."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import flatout
from flatout.engine.feed.select_feed import FeedOptions
from flatout.engine.recipe.default_recipe import chosen_recipe
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runtime.cpu_affinity import cpus_by_thread, pinned_to
from flatout.engine.session.session import BuiltExperiment, Session, build
from flatout.engine.tuner.effect_checks import UpdateEvidence, observed_effect
from flatout.engine.tuner.op_trace import Trace
from flatout.errors import UsageError
from flatout.schema.cpu_topology import LogicalCpu, Topology

if TYPE_CHECKING:
    from conftest import Lab

ALL = tuple(sorted(os.sched_getaffinity(0))) if sys.platform == "linux" else ()

needs_cpus = pytest.mark.skipif(
    len(ALL) < 2, reason=f"needs Linux and two CPUs: here are {len(ALL)}"
)

# As if the first two CPUs of this machine shared a core.
SHARED = Topology(cpus=tuple(LogicalCpu(index=cpu, core="one") for cpu in (ALL[:2] or (0, 1))))


class Samples:
    """Samples that tell on which CPUs they may be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        assert sys.platform == "linux"
        return torch.tensor([float(cpu in os.sched_getaffinity(0)) for cpu in ALL])


def built(topology: Topology = SHARED) -> BuiltExperiment:
    experiment = flatout.Experiment(
        model=lambda: torch.nn.Linear(len(ALL) or 1, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, batch: model(batch).square().mean(),
        train_data=Samples,
        batch_size=4,
        epochs=1,
    )
    found = build(experiment, 0, "cpu")
    return dataclasses.replace(found, facts=dataclasses.replace(found.facts, topology=topology))


@needs_cpus
def test_threads_are_kept_on_some_cpus_and_put_back() -> None:
    torch.randn(512, 512) @ torch.randn(512, 512)
    before = cpus_by_thread()
    with pinned_to(ALL[1:2]):
        meanwhile = cpus_by_thread()
        late: dict[str, Any] = {}
        ended = threading.Event()
        reported = threading.Event()
        thread = threading.Thread(
            target=lambda: (late.update(cpus=here()), reported.set(), ended.wait()), daemon=True
        )
        thread.start()
        assert reported.wait(180)
    assert meanwhile.keys() >= before.keys()
    assert set(meanwhile.values()) == {frozenset(ALL[1:2])}
    after = cpus_by_thread()
    ended.set()
    thread.join()
    assert late["cpus"] == {ALL[1]}
    assert set(after.values()) == {frozenset(ALL)} == set(before.values())


def here() -> set[int]:
    assert sys.platform == "linux"
    return os.sched_getaffinity(0)


@needs_cpus
@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_have_the_cpus_that_the_steps_threads_are_kept_from(num_workers: int) -> None:
    subject = built()
    fixed = {"cpu_affinity": "one-per-core", "loader_workers": num_workers}
    reading = FeedOptions(
        experiment=subject.experiment,
        recipe=subject.recipe(fixed),
        seed=0,
        cpus=subject.facts.topology.indices,
    )
    with pinned_to(ALL[:1]):
        feed = reading.training_feed(subject.train_data, subject.device)
        [(batch, _)] = next(feed.updates(0, 0))
        feed.close()
    allowed = SHARED.indices if num_workers else ALL[:1]
    assert batch[0].tolist() == [float(cpu in allowed) for cpu in ALL]


@needs_cpus
def test_effect_is_read_from_the_threads() -> None:
    subject = built()
    changes = {"cpu_affinity": "one-per-core", "num_threads": 1}
    session = Session(subject, subject.recipe(changes | {"loader_workers": 0}))
    seen = UpdateEvidence(session=session, trace=Trace(), update=[])
    torch.set_num_threads(1)
    assert observed_effect(changes, seen) is None
    with pinned_to(ALL[:1]):
        effect = observed_effect(changes, seen)
    assert effect is not None and effect.endswith("threads pinned to 1 of 2 CPUs, 1 thread")


@needs_cpus
def test_recipe_has_as_many_threads_as_there_are_cpus_left() -> None:
    facts = dataclasses.replace(built().facts, topology=SHARED, num_parameters=10**8, num_threads=2)
    recipe = chosen_recipe(facts, {"cpu_affinity": "one-per-core"})
    assert recipe.num_threads.value == 1 and check_recipe(recipe, facts) == []
    many = chosen_recipe(facts, {"cpu_affinity": "one-per-core", "num_threads": 2})
    assert [one.rule for one in check_recipe(many, facts)] == ["more-threads-than-cpus"]


def test_affinity_when_it_cannot_be_or_does_nothing() -> None:
    hidden = built(Topology(problem="nobody tells")).facts
    with pytest.raises(UsageError, match="cpu_affinity=one-per-core") as caught:
        check_recipe(chosen_recipe(hidden, {"cpu_affinity": "one-per-core"}), hidden)
    assert caught.value.rule == "recipe-does-not-fit"
    facts = built().facts
    [finding] = check_recipe(chosen_recipe(facts, {"cpu_affinity": "performance-cores"}), facts)
    assert (finding.rule, finding.because) == (
        "setting-without-effect", "all cores that this process may use are of one kind",
    )  # fmt: skip


@needs_cpus
def test_training_leaves_the_process_where_it_was(lab: Lab) -> None:
    experiment = dataclasses.replace(
        built().experiment, train_data=lambda: torch.randn(16, len(ALL))
    )
    lab.go_on(lab.new(cpu_affinity="one-per-core"), experiment)
    assert set(cpus_by_thread().values()) == {frozenset(ALL)}
