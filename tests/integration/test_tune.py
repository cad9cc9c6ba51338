"""The search for a recipe on real experiments, driven as a user does."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.busy_machine import least_s

import flatout.engine
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.session import build
from flatout.engine.tuner.baseline_loop import BaselineLoop
from flatout.engine.tuner.cache_key import identity
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.driver import Search, _confirmed, tuned_recipe
from flatout.engine.tuner.trials import Trials
from flatout.errors import UsageError
from flatout.schema.run_lines import Tried
from flatout.schema.tuning import (
    Candidate,
    Decision,
    Interval,
    Known,
    Load,
    Result,
    Rung,
    Trial,
    TuneRequest,
)
from flatout.system import atomic_files
from flatout.system.store import recipe_cache
from flatout.tune.cache import cache_key, search_identity

WIDTH = 256


def experiment(**changes: Any) -> flatout.Experiment:
    """Wide enough that bf16 and more threads could matter, small enough to be quick."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, WIDTH, generator=generator)
    targets = torch.randint(10, (512,), generator=generator)
    fields: dict[str, Any] = {
        "model": lambda: torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)
        ),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        "loss": lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "train_data": lambda: (inputs, targets),
        "batch_size": 64,
        "epochs": 1,
    }
    return flatout.Experiment(**(fields | changes))


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))


def test_a_search_in_a_notebook_leaves_everything_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state().clone()
    threads = torch.get_num_threads()
    found = flatout.engine.tune(experiment(), budget_s=4, is_quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert found.decision.rungs[0].name == "plain loop"
    assert found.use == ({} if found.decision.is_default else found.decision.changes)


def test_what_was_found_is_found_again_without_a_search() -> None:
    first = flatout.engine.tune(experiment(), budget_s=4, is_quiet=True)
    again = flatout.engine.tune(experiment(), budget_s=4, is_quiet=True)
    # A machine that has changed its mind by 10 % meanwhile searches anew, and may.
    if again.decision.rungs == first.decision.rungs:
        assert again.decision.search_s < first.decision.search_s


def test_what_a_short_run_left_out_is_asked_anew_for_a_long_one(tmp_path: Path) -> None:
    def reason(num_steps: int) -> str:
        lines: list[Any] = []
        search = Search(
            subject=TuningTask(experiment=experiment()),
            options=TuneRequest(mode="full", budget_s=2.0),
            num_steps=num_steps,
            request=StopRequest(),
            on_event=lines.append,
            folder=tmp_path,
            # So that there is no time for other processes.
            load_s=60.0,
        )
        assert tuned_recipe(search) is not None
        skipped = {skip.name: skip.reason for skip in lines[-1].decision.skipped}
        return skipped["compiled forward and loss"]

    if "cannot pay" not in reason(100):
        pytest.skip("nothing can be compiled here")
    assert "more time with --budget" in reason(10**7)


def test_a_fixed_field_is_not_tried() -> None:
    found = flatout.engine.tune(experiment(), use={"precision": "fp32"}, budget_s=3, is_quiet=True)
    assert found.recipe.precision.value == "fp32"
    reasons = {skip.name: skip.reason for skip in found.decision.skipped}
    assert reasons["bf16 autocast"] == "you have set precision"


def test_what_you_have_set_need_not_be_seen_at_work() -> None:
    """Without effect, it is warned of; the search goes on with it."""
    trials = Trials(TuningTask(experiment=experiment(), fixed={"attention": "auto"}))
    changes = {"attention": "auto"}
    base = Candidate(name="base", axis="loop", changes=changes, why="")
    trial = Trial(stage="screen", candidate=base, incumbent=None, changes=changes)
    result = trials.measured(trial, 0.3)
    assert result.problem is None and result.speedup is not None


def test_micro_batches_are_seen_in_the_update() -> None:
    trials = Trials(TuningTask(experiment=experiment()))
    contestant, proof = trials.contestant({"micro_batch_size": 16}, {"micro_batch_size": 16})
    contestant.runner.close()
    assert proof.effect == "4 micro-batches of 16"


def test_a_search_leaves_a_warning_a_warning() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        contestant = Trials(TuningTask(experiment=experiment())).builder.plain()
        with contestant.settings():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_recipe_does_not_hold_for_another_loss_of_the_same_name() -> None:
    def key(loss: Any) -> Any:
        return identity(build(experiment(loss=loss), 0, None), {})

    def mean(model: Any, batch: Any) -> Any:
        return model(batch[0]).square().mean()

    same, before = mean, key(mean)

    def mean(model: Any, batch: Any) -> Any:  # type: ignore[no-redef]
        return model(batch[0]).square().sum(), len(batch[0])

    assert same.__qualname__ == mean.__qualname__
    assert key(same) == before and key(functools.partial(same)) != key(mean)
    assert before["code"] != key(mean)["code"]


def test_strict_numerics_try_no_other_rounding() -> None:
    found = flatout.engine.tune(experiment(), numerics="strict", budget_s=3, is_quiet=True)
    assert found.recipe.precision.value == "fp32"


def test_a_candidate_that_cannot_run_becomes_a_problem() -> None:
    trials = Trials(TuningTask(experiment=experiment()))
    candidate = Candidate(
        name="fused", axis="optimizer", changes={"precision": "fp16"}, why="not on a CPU"
    )
    trial = Trial(stage="screen", candidate=candidate, incumbent={}, changes={"precision": "fp16"})
    result = trials.measured(trial, 0.3)
    assert result.speedup is None
    assert result.problem is not None and result.problem.rule == "precision-not-here"


def test_channels_last_is_refused_where_weights_have_five_dimensions() -> None:
    volumes = experiment(
        model=lambda: torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, 4, 8, 8)),
            torch.nn.Conv3d(1, 2, 3),
            torch.nn.Flatten(),
            torch.nn.Linear(144, 10),
        )  # fmt: skip
    )
    with pytest.raises(UsageError) as caught:
        flatout.engine.train(volumes, use={"memory_format": "channels_last"}, is_quiet=True)
    assert caught.value.rule == "recipe-does-not-fit"


def test_workers_that_draw_alike_are_refused() -> None:
    trials = Trials(TuningTask(experiment=experiment(train_data=OwnDice)))
    [failed] = trials.judged({"loader_workers": 2}).failed
    assert failed.name == "samples"


class OwnDice(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Noise from a generator of its own: each worker has a copy of it."""

    def __init__(self) -> None:
        self.dice = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(WIDTH, generator=self.dice), index % 10


def test_a_setting_that_did_nothing_is_reported() -> None:
    """A model without a single product has nothing that autocast could round."""
    scaling = experiment(
        model=lambda: Scaling(),
        loss=lambda model, batch: model(batch[0]).square().mean(),
    )
    trials = Trials(TuningTask(experiment=scaling))
    changes = {"precision": "bf16"}
    candidate = Candidate(name="bf16 autocast", axis="precision", changes=changes, why="")
    trial = Trial(stage="screen", candidate=candidate, incumbent={}, changes=changes)
    result = trials.measured(trial, 0.3)
    assert result.problem is not None and result.problem.rule == "setting-without-effect"


class Scaling(torch.nn.Module):
    """One weight for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight


def test_the_plain_loop_makes_the_updates_of_a_loop_written_by_hand() -> None:
    described = experiment(shuffle=False, clip_norm=1.0)
    built = build(described, 0, None)
    by_hand = build(described, 0, None)
    BaselineLoop(built).run(8)
    inputs, targets = by_hand.train_data
    for start in range(0, 512, 64):
        by_hand.optimizers.only.zero_grad()
        batch = (inputs[start : start + 64], targets[start : start + 64])
        described.loss(by_hand.model, batch).backward()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(by_hand.model.parameters(), 1.0)
        by_hand.optimizers.only.step()
    for one, other in zip(built.model.parameters(), by_hand.model.parameters(), strict=True):
        assert torch.equal(one, other)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", *arguments],
        capture_output=True, text=True, timeout=300, env=dict(os.environ),
    )  # fmt: skip


def test_the_command_keeps_what_it_has_decided_and_nothing_else(tmp_path: Path) -> None:
    tuned = run("tune", "mlp", "--epochs", "1", "--budget", "8", "--json")
    assert tuned.returncode == 0, tuned.stderr
    document = json.loads(tuned.stdout)
    decision = document["decision"]
    skipped = {skip["name"]: skip["reason"] for skip in decision["skipped"]}
    assert skipped["compiled forward and loss"].startswith("compiling does not pay off in 79 steps")
    assert [rung["name"] for rung in decision["rungs"][:2]] == ["plain loop", "flatout's defaults"]
    assert (Path(document["folder"]) / "recipe.json").exists()
    # How busy the machine is decides whether anything is decided.
    assert decision["load"]["num_cpus"] >= 1
    assert decision["is_decided"] == bool(list((tmp_path / "recipes").glob("*.json")))
    if decision["is_default"]:
        assert document["recipe"]["num_threads"]["value"] == 1
        assert document["recipe"]["optimizer_implementation"]["value"] == "fused"


def test_train_takes_the_recipe_that_tune_has_found() -> None:
    script = Path(__file__).with_name("tune_then_train.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300,
        env=dict(os.environ), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tuned, trained, shown, _ = done.stdout.split("\0\n")
    decision = json.loads(tuned)["decision"]
    found = decision["rungs"][2:]
    assert found and not decision["is_default"]
    recipe = json.loads(trained)["run"]["recipe"]
    for rung in found:
        for name, value in rung["changes"].items():
            choice = recipe[name]
            assert (choice["value"], choice["origin"]) == (value, "measured")
            assert choice["why"].startswith(f"{rung['name']}: x1.50")
            [line] = [line for line in shown.splitlines() if line.split()[:1] == [name]]
            assert "measured" in line
    assert "tuned       x1.50 [" in done.stderr
    assert "found before, probed in" in done.stderr


@pytest.mark.timing
def test_a_budget_holds_once_the_process_runs() -> None:
    lines: list[Any] = []
    # A trial that has begun is ended after the pair of blocks in which the time is over. Next to
    # other programs, that pair may take long.
    limit_s = 4.0 + 2.5
    took_s = least_s(lambda: tuned_recipe(search_of(lines, budget_s=4.0)), limit_s, most_calls=3)
    assert took_s < limit_s
    assert lines[-1].decision.search_s < limit_s


def search_of(lines: list[Any], budget_s: float | None = None, **changes: Any) -> Search:
    fields: dict[str, Any] = {
        "subject": TuningTask(experiment=experiment()),
        "options": TuneRequest(mode="full", budget_s=budget_s),
        "num_steps": 8,
        "request": StopRequest(),
        "on_event": lines.append,
        "folder": None,
    }
    return Search(**(fields | changes))


def kept(changes: dict[str, Any], **others: Any) -> Path:
    """A decision of before for this experiment: that a recipe was twice as fast, or as given."""
    trials = Trials(TuningTask(experiment=experiment()))
    identity = search_identity(trials.builder.identity, "default", has_processes=False)
    gain = Interval(middle=2.0, low=1.9, high=2.1)
    defaults = trials.builder.setting.defaults
    fields: dict[str, Any] = {
        "changes": {**defaults, **changes}, "lost": (), "refused": (), "skipped": (),
        "speedup": gain, "why": "for the test", "search_s": 1.0,
        "rungs": (
            Rung(name="plain loop", changes={}, samples_per_s=1.0),
            Rung(name="flatout's defaults", changes=defaults, samples_per_s=2.0, gain=gain),
            Rung(name="the rest", changes=changes, samples_per_s=4.0, gain=gain),
        ),
    }  # fmt: skip
    known = Known(
        identity=identity, decided_at=0.0, is_thorough=True, budget_s=60.0,
        decision=Decision(**(fields | others)), probe=gain,
    )  # fmt: skip
    key = cache_key(identity)
    recipe_cache.keep(key, known)
    return recipe_cache.recipes_folder() / f"{key}.json"


def test_defaults_that_were_decided_on_are_taken_without_a_search() -> None:
    kept({}, is_default=True, speedup=None)
    lines: list[Any] = []
    recipe = tuned_recipe(search_of(lines, options=TuneRequest(mode="auto")))
    assert recipe is not None and recipe.optimizer_implementation.value == "fused"
    assert lines[-1].is_from_cache and not [line for line in lines if isinstance(line, Tried)]


def test_a_kept_recipe_that_is_slower_than_the_defaults_is_forgotten() -> None:
    # A sample at a time: no machine is so busy that this looks as fast.
    path = kept({"micro_batch_size": 1})
    assert path.exists()
    assert tuned_recipe(search_of([], options=TuneRequest(mode="auto"))) is None
    assert not path.exists()


class Probed:
    """A contest whose probes come out as is said."""

    def __init__(self, *results: tuple[float, bool]) -> None:
        self._results = list(results)
        self.builder = Trials(TuningTask(experiment=experiment())).builder

    def take_as_plain(self, baseline: dict[str, Any]) -> None:
        pass

    def measured(self, trial: Trial, limit_s: float) -> Result:
        gain, is_busy = self._results.pop(0)
        return Result(
            trial=trial, cost_s=0.5, load=Load(other_cpus=1.2 if is_busy else 0.0, num_cpus=2),
            speedup=Interval(middle=gain, low=gain * 0.99, high=gain * 1.01),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("was_busy", "probes", "holds", "is_busy_now"),
    [
        (False, [(2.0, False)], True, False),
        (False, [(2.0, True)], True, False),
        (False, [(0.9, False), (0.9, False)], False, None),
        # Found beside others: much less may be left of it, but not less than the defaults have.
        (True, [(1.2, False)], True, False),
        (True, [(0.8, False), (0.8, False)], False, None),
        (True, [(1.0, False), (1.0, False)], False, None),
        (True, [(2.0, True)], True, True),
    ],
)
def test_what_was_found_beside_others_is_measured_again_when_they_are_gone(
    was_busy: bool, probes: list[tuple[float, bool]], holds: bool, is_busy_now: bool | None
) -> None:
    load = Load(other_cpus=1.5 if was_busy else 0.0, num_cpus=2)
    known = atomic_files.read_json(kept({"num_threads": 1}, load=load), Known)
    confirmed = _confirmed(Probed(*probes), known)  # type: ignore[arg-type]
    assert (confirmed is not None) == holds
    if confirmed is not None:
        assert confirmed.decision.is_busy == is_busy_now


def test_what_an_older_flatout_has_kept_is_not_found() -> None:
    """It may say that a plain loop stays, which is slower than the defaults."""
    trials = Trials(TuningTask(experiment=experiment()))
    identity = {**trials.builder.identity, "numerics": "default", "has_processes": False}
    folder = recipe_cache.recipes_folder()
    folder.mkdir(parents=True)
    old = {"identity": {}, "decided_at": 0.0, "is_thorough": True, "decision": {"is_plain": True}}
    (folder / f"{cache_key(identity)}.json").write_text(json.dumps(old))
    lines: list[Any] = []
    assert tuned_recipe(search_of(lines, options=TuneRequest(mode="auto"))) is None
    assert lines == []


def test_a_short_run_takes_the_defaults_without_a_search() -> None:
    trained = run("train", "mlp", "--epochs", "1", "--json")
    assert trained.returncode == 0, trained.stderr
    recipe = json.loads(trained.stdout)["run"]["recipe"]
    assert all(choice["origin"] != "measured" for choice in recipe.values())


def test_a_step_of_its_own_is_not_searched() -> None:
    def step(updates: Any, model: Any, batch: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        updates["optimizer"](loss)
        return loss

    own = experiment(loss=None, step=step)
    with pytest.raises(UsageError) as caught:
        flatout.engine.tune(own, budget_s=1, is_quiet=True)
    assert caught.value.rule == "no-search-for-own-step"


def test_samples_of_any_kind_can_be_searched_for() -> None:
    """A list of dicts with numbers, as tokenizers and tables give them."""
    rows = [{"x": [float(number)] * WIDTH, "label": number % 10} for number in range(128)]

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([sample[name] for sample in samples]) for name in ("x", "label")}

    listed = experiment(train_data=lambda: rows, loss=loss, collate=collate)
    found = flatout.engine.tune(listed, budget_s=3, is_quiet=True)
    assert found.decision.rungs[0].name == "plain loop"


class Stream:
    """Samples without an index, and without torch's class for such."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(1)
        for number in range(256):
            yield torch.randn(WIDTH, generator=generator), number % 10


def test_an_iterable_can_be_searched_for() -> None:
    found = flatout.engine.tune(
        experiment(train_data=Stream, shuffle=False), budget_s=3, is_quiet=True
    )
    assert found.decision.rungs[0].name == "plain loop"
