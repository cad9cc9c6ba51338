"""Hooks: what they may do, what is refused, and that a killed run ends as one that was not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.forked_ranks import ForkedRanks, run_fresh
from support.ranks_runs import RanksFailed
from torch import nn

from flatout.engine import Experiment
from flatout.engine.recipe.default_recipe import chosen_recipe
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.session.hook_set import HookSet
from flatout.engine.session.session import build
from flatout.engine.step.compiled_loss import why_not_compiled
from flatout.errors import FlatoutError, UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Finished, Logged, Validated
from flatout.system.store.run_folder import RunFolder, create_run, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]
    Run = Callable[[RunFolder], int]

CASE = Path(__file__).parents[1] / "cases" / "hooks" / "hooked.py"
LIMIT_S = 300.0
# By SIGKILL.
KILLED = -9
needs_compiler = pytest.mark.skipif(
    why_not_compiled(torch.device("cpu")) is not None, reason="needs a C++ compiler"
)


class Hooked:
    """A hook made of functions, by the names of its methods."""

    def __init__(self, **calls: Callable[[Any], None]) -> None:
        for name, call in calls.items():
            setattr(self, name, call)


class Unfreeze:
    """Freezes the first layer until the end of an epoch."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch

    def on_start(self, context: Any) -> None:
        context.model[0].requires_grad_(False)

    def on_epoch(self, context: Any) -> None:
        if context.epoch == self.epoch:
            context.model[0].requires_grad_(True)


class Remembering:
    """Stops once it has seen three validations, and logs how many there were."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_validation(self, context: Any) -> None:
        self.losses.append(context.metrics["loss"])
        context.log("validations", len(self.losses))
        if len(self.losses) == 3:
            context.stop("three validations")


def new_folder(tmp_path: Path, name: str, use: dict[str, Any]) -> RunFolder:
    fixed = {"num_threads": 1, "loader_workers": 0, "checkpoint_every": 4} | use
    parameters = {"is_spread": use.get("sharding") == "full"}
    spec = ExperimentSpec(name="hooked", file=str(CASE), fixed=fixed, parameters=parameters)
    header = RunHeader(id=name, created_at=0.0, flatout_version="0", python="", spec=spec)
    folder = create_run(header, tmp_path / "runs")
    shutil.copy(CASE, folder.experiment)
    return folder


def trained(runs: Sequence[Run], folder: RunFolder, kills: Sequence[int] = ()) -> RunFolder:
    """Trains in processes, each but the last killed at that sample of its own.

    runs: each gives how its processes ended.
    """
    for run, kill in zip(runs, [*kills, 0], strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KILL_AT", str(kill))
            patch.setenv("FLATOUT_RANKS_LIMIT_S", "60")
            exit_code = run(folder)
        logs = [path.read_text() for path in folder.path.glob("*.log")]
        assert exit_code == (KILLED if kill else 0), "\n".join(logs)
    return folder


def run_whole(folder: RunFolder, num_ranks: int) -> int:
    """Trains as the command line has it done."""
    module = "flatout.engine.training.worker" if num_ranks == 1 else "flatout.engine.launch"
    on = [] if num_ranks == 1 else ["--on", f"local:{num_ranks}"]
    command = ["-m", module, str(folder.path), *on]
    printed = folder.path / "printed.log"
    exit_code = run_fresh(command, os.environ, printed, limit_s=LIMIT_S)
    # A launcher's own says only that a rank is gone.
    is_rank_killed = f" exited with code {KILLED}\n" in printed.read_text()
    return KILLED if exit_code and is_rank_killed else exit_code


def run_forked(folder: RunFolder, num_ranks: int, forked_ranks: ForkedRanks) -> int:
    """Trains in children of a process that has loaded torch; no launcher starts the ranks."""
    command = ["-m", "flatout.engine.training.worker", str(folder.path)]
    if num_ranks == 1:
        printed = folder.path / "printed.log"
        return forked_ranks.run_alone(command, os.environ, printed, limit_s=LIMIT_S)
    try:
        forked_ranks.run(num_ranks, [*command, "--ranked"], folder.path, LIMIT_S)
    except RanksFailed as failed:
        # The other rank may have noticed, and ended by itself.
        return KILLED if KILLED in failed.codes else max(failed.codes, key=abs)
    return 0


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Linux does")
@pytest.mark.parametrize(
    ("use", "num_ranks"),
    [
        pytest.param({}, 1, id="plain"),
        pytest.param({"micro_batch_size": 3}, 1, id="accumulated"),
        pytest.param({"compiled": "both"}, 1, id="compiled", marks=needs_compiler),
        pytest.param({}, 2, id="two ranks"),
        pytest.param({"sharding": "full"}, 2, id="spread over two ranks"),
    ],
)
def test_killed_run_ends_as_one_that_was_not(
    tmp_path: Path, tell: Tell, forked_ranks: ForkedRanks, use: dict[str, Any], num_ranks: int
) -> None:
    # In a process of its own: children of one process share what differs between others.
    launch = partial(run_whole, num_ranks=num_ranks)
    whole = trained([launch], new_folder(tmp_path, "whole", use))
    # Before the first checkpoint, just before and after the layer is unfrozen, and later.
    kills = [20, 40, 45] if num_ranks > 1 else [75, 50] if use.get("compiled") else [20, 75, 50, 90]
    fork = partial(run_forked, num_ranks=num_ranks, forked_ranks=forked_ranks)
    # Ranks are killed under their launcher, too, but once: each time it loads torch.
    runs = [launch if num_ranks > 1 else fork, *[fork] * len(kills)]
    killed = trained(runs, new_folder(tmp_path, "killed", use), kills)
    assert tell.traces(killed) == tell.traces(whole)
    logged = [[(line.step, line.name, line.value, line.text) for line in tell.metrics(one, Logged)]
              for one in (whole, killed)]  # fmt: skip
    assert logged[0] == logged[1]
    pictures = [
        {path.name: path.read_bytes() for path in one.pictures.iterdir()} for one in (whole, killed)
    ]
    assert pictures[0] == pictures[1] and len(pictures[0]) == 5
    (finished,) = tell.events(killed, Finished)
    assert finished.step == 25 and finished.reason.startswith("seen five, the last with")
    assert not tell.rules(killed) - tell.rules(whole) - {"rank-lost"}


def test_frozen_weights_stay_until_they_are_unfrozen(lab: Lab, plain: Plain) -> None:
    seen: list[torch.Tensor] = []

    def look(context: Any) -> None:
        seen.append(context.model[0].weight.detach().clone())

    hooks = lambda: [Unfreeze(2), Hooked(on_start=look, on_epoch=look)]  # noqa: E731
    lab.run(plain(hooks=hooks))
    begin, first, second, third = seen
    assert begin.equal(first) and begin.equal(second) and not begin.equal(third)


@needs_compiler
def test_compiled_step_trains_what_was_unfrozen(lab: Lab, tell: Tell, plain: Plain) -> None:
    # Adam makes differences of rounding large.
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    experiment = plain(hooks=Unfreeze, optimizer=optimizer)
    uncompiled = tell.metrics(lab.run(experiment), Validated)
    folder = lab.run(experiment, compiled="both")
    losses = [line.metrics["loss"] for line in tell.metrics(folder, Validated)]
    expected = [line.metrics["loss"] for line in uncompiled]
    assert losses == pytest.approx(expected, rel=1e-4)
    # Two graphs, of the loss with and without the frozen weights, are no storm.
    assert read_run(folder).adaptations == ()


@pytest.mark.parametrize("where", ["model", "hook"])
def test_loss_reads_the_number_that_a_hook_has_set(
    lab: Lab, tell: Tell, plain: Plain, where: str
) -> None:
    class Weigh:
        def __init__(self) -> None:
            self.weight = 1.0

        def on_epoch(self, context: Any) -> None:
            if where == "hook":
                self.weight = 0.0
            else:
                context.model.weight = 0.0

    hook = Weigh()

    def loss(model: Any, batch: Any) -> torch.Tensor:
        weight = hook.weight if where == "hook" else getattr(model, "weight", 1.0)
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) * weight

    folder = lab.run(plain(loss=loss, hooks=lambda: hook, epochs=2))
    assert [line.metrics["loss"] == 0 for line in tell.metrics(folder, Validated)] == [False, True]


def test_run_ends_early_with_the_reason_and_can_be_continued(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    experiment = plain(hooks=Remembering, epochs=8)
    folder = lab.run(experiment)
    (finished,) = tell.events(folder, Finished)
    assert (finished.step, finished.reason) == (3 * 7, "three validations")
    assert [line.value for line in tell.metrics(folder, Logged)] == [1, 2, 3]
    lab.go_on(folder, experiment)
    again = tell.events(folder, Finished)[-1]
    assert (again.step, again.reason) == (8 * 7, None)
    assert [line.value for line in tell.metrics(folder, Logged)] == list(range(1, 9))


def test_stop_holds_when_killed_before_the_end_is_logged(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    experiment = plain(hooks=Remembering, epochs=8)
    folder = lab.run(experiment)
    lines = folder.events.read_bytes().splitlines(keepends=True)
    folder.events.write_bytes(b"".join(line for line in lines if b'"finished"' not in line))
    lab.go_on(folder, experiment)
    (finished,) = tell.events(folder, Finished)
    assert (finished.step, finished.reason) == (3 * 7, "three validations")


def test_on_step_sees_each_loss_and_may_stop(lab: Lab, tell: Tell, plain: Plain) -> None:
    steps: list[int] = []

    class Look:
        def __init__(self) -> None:
            self.last = 0.0

        def on_step(self, context: Any) -> None:
            steps.append(context.step)
            self.last = float(context.loss)
            if context.step == 10:
                context.stop("ten steps")

    folder = lab.run(plain(hooks=Look))
    assert steps == list(range(1, 11))
    assert tell.events(folder, Finished)[-1].reason == "ten steps"
    assert tell.state(folder)["hooks"]["hooks"]["Look"]["values"]["last"] > 0


def test_average_begins_with_the_weights_that_on_start_leaves(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    begin = lambda context: context.model[0].weight.fill_(5.0)  # noqa: E731
    still = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    hooks = lambda: Hooked(on_start=begin)  # noqa: E731
    folder = lab.run(plain(hooks=hooks, optimizer=still, ema=0.9, epochs=1))
    first, *_ = tell.state(folder)["average"]["averages"]
    assert torch.allclose(first, torch.tensor(5.0))


def test_attributes_in_slots_are_kept(lab: Lab, tell: Tell, plain: Plain) -> None:
    class Slotted:
        __slots__ = ("count",)

        def __init__(self) -> None:
            self.count = 0

        def on_epoch(self, context: Any) -> None:
            self.count += 1

    folder = lab.run(plain(hooks=Slotted, epochs=2))
    assert tell.state(folder)["hooks"]["hooks"]["Slotted"]["values"] == {"count": 2}


def test_tensor_that_was_on_the_cpu_is_taken_up_there(plain: Plain) -> None:
    def saw(context: Any) -> None: ...

    hooks = [HookSet(plain(hooks=lambda: Hooked(on_epoch=saw))) for _ in range(2)]
    before, after = (one.by_name["Hooked"] for one in hooks)
    before.kept = torch.ones(3)
    # A device that no tensor of the factory is on.
    hooks[1].load_state(hooks[0].state(), torch.device("meta"), is_changed=False)
    assert after.kept.device.type == "cpu" and after.kept.equal(torch.ones(3))


def test_on_step_is_paid_for_with_graphs(plain: Plain) -> None:
    built = build(plain(hooks=lambda: Hooked(on_step=print)), 0, "cpu")
    recipe = built.recipe({})
    assert recipe.capture.value == "off" and "on_step" in recipe.capture.why
    on_gpu = replace(built.facts, device=torch.device("cuda", 0), free_device_bytes=2**30)
    with pytest.raises(UsageError) as refused:
        check_recipe(chosen_recipe(on_gpu, {"capture": "step"}), on_gpu)
    assert "on_step" in str(refused.value.because)


def test_memory_that_runs_out_in_a_hook_sends_the_run_back(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    shortages = [torch.OutOfMemoryError("CUDA out of memory")]

    def log(context: Any) -> None:
        context.log("epoch", context.epoch)
        if context.epoch == 2 and shortages:
            raise shortages.pop()

    # Without BatchNorm, a batch can be split.
    model = lambda: nn.Linear(6, 3)  # noqa: E731
    hooks = lambda: Hooked(on_epoch=log)  # noqa: E731
    folder = lab.run(plain(model=model, hooks=hooks), checkpoint_every=4)
    assert [line.value for line in tell.metrics(folder, Logged)] == [1, 2, 3]
    assert read_run(folder).adaptations and not shortages


def test_rates_that_a_hook_sets_hold(lab: Lab, tell: Tell, plain: Plain) -> None:
    def still(context: Any) -> None:
        for group in context.optimizer.param_groups:
            group["lr"] = group["weight_decay"] = 0.0

    weights: list[torch.Tensor] = []

    def look(context: Any) -> None:
        weights.append(context.model[0].weight.clone())
        still(context)

    lab.run(plain(hooks=lambda: Hooked(on_epoch=look)))
    assert weights[0].equal(weights[1]) and weights[1].equal(weights[2])


def test_names_of_pictures_are_safe(lab: Lab, tell: Tell, plain: Plain) -> None:
    names = ["../../up", "CON", "con", "a/b", "a b", "\udcff", "ä" * 300]

    def draw(context: Any) -> None:
        for name in names:
            context.log_picture(name, torch.eye(4))

    folder = lab.run(plain(hooks=lambda: Hooked(on_start=draw)))
    files = [line.picture for line in tell.metrics(folder, Logged)]
    assert len({file.lower() for file in files}) == len(names)
    for file in files:
        path = folder.path / file
        assert path.parent == folder.pictures and path.is_file()
        assert all(letter.isascii() for letter in path.name)


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (3, 5, 7)])
def test_pictures_have_the_pixels_that_were_logged(
    lab: Lab, tell: Tell, plain: Plain, shape: tuple[int, ...]
) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = torch.rand(shape)
    draw = lambda context: context.log_picture("x", picture)  # noqa: E731
    folder = lab.run(plain(hooks=lambda: Hooked(on_start=draw)))
    with image.open(folder.pictures / "x-000000.png") as opened:
        pixels = torch.tensor(list(opened.tobytes()))
    expected = picture.mul(255).round()
    expected = expected.permute(1, 2, 0) if len(shape) == 3 else expected
    assert pixels.tolist() == expected.flatten().int().tolist()


def with_attribute(value: Any) -> Any:
    hook = Hooked(on_epoch=print)
    hook.kept = value  # type: ignore[attr-defined]
    return hook


def set_on_start() -> Any:
    hook = Hooked()

    def on_start(context: Any) -> None:
        hook.layer = context.model[0]  # type: ignore[attr-defined]

    hook.on_start = on_start  # type: ignore[attr-defined]
    return hook


class OneSided:
    def on_epoch(self, context: Any) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}


class Misspelt:
    def on_epoch(self, context: Any) -> None: ...

    def on_epochs(self, context: Any) -> None: ...


class Bare:
    def on_epoch(self) -> None: ...


REFUSED: dict[str, tuple[Any, str, str]] = {
    "a set": (lambda: with_attribute({1}), "hook-state-not-stored", "`kept`"),
    "a module": (lambda: with_attribute(nn.Linear(1, 1)), "hook-state-not-stored", "`kept`"),
    "a layer taken later": (set_on_start, "hook-state-not-stored", "`layer`"),
    "no hook": (lambda: object(), "bad-hook", "no hook"),
    "a class": (lambda: Unfreeze, "bad-hook", "the class Unfreeze"),
    "another name": (Misspelt, "bad-hook", "`on_epochs`"),
    "no context": (Bare, "bad-hook", "not called like this"),
    "half a state": (OneSided, "bad-hook", "only one of"),
    "a text": (
        lambda: Hooked(on_start=lambda c: c.log("a", [1])), "hook-logged-wrong-kind", "a list",
    ),
    "a picture": (
        lambda: Hooked(on_start=lambda c: c.log_picture("a", torch.ones(2, 4, 4))),
        "hook-logged-wrong-kind", "(2, 4, 4)",
    ),
    "more groups": (
        lambda: Hooked(on_start=lambda c: c.optimizer.add_param_group(
            {"params": [nn.Parameter(torch.ones(1))]})),
        "parameter-groups-changed", "have changed by step 0",
    ),
    "another layer": (
        lambda: Hooked(on_start=lambda c: c.model.append(nn.Linear(3, 3))),
        "hook-replaced-weights", "other weights",
    ),
    "its own error": (
        lambda: Hooked(on_start=lambda c: c.model[99]), "experiment-raised", "range",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_wrong_hook_is_refused_before_the_first_step(
    lab: Lab, tell: Tell, plain: Plain, kind: str
) -> None:
    hooks, rule, words = REFUSED[kind]
    folder = lab.new()
    with pytest.raises(FlatoutError) as refused:
        lab.go_on(folder, plain(hooks=hooks))
    error = refused.value
    assert error.rule == rule
    assert words in f"{error.problem} {error.because}"
    if rule in ("experiment-raised", "hook-logged-wrong-kind"):
        assert "test_hooks.py" in f"{error.problem} {error.because}"
    assert not folder.checkpoint_steps()


def test_validation_hook_without_validation_is_refused(lab: Lab, plain: Plain) -> None:
    with pytest.raises(UsageError, match="nothing is validated"):
        lab.run(plain(hooks=Remembering, validation_data=None))


def test_hooks_must_be_a_factory(plain: Plain) -> None:
    with pytest.raises(UsageError) as refused:
        plain(hooks=[Unfreeze()])
    assert refused.value.rule == "not-a-function"


def test_error_in_a_later_call_is_the_users(lab: Lab, plain: Plain) -> None:
    class Fails:
        def on_epoch(self, context: Any) -> None:
            raise ValueError("no such thing")

    with pytest.raises(FlatoutError) as raised:
        lab.run(plain(hooks=Fails))
    error = raised.value
    said = f"{error.problem} {error.because}"
    assert error.rule == "experiment-raised"
    assert "no such thing" in said and "test_hooks.py" in said


def test_hooks_are_not_called_by_a_search(plain: Plain, lab: Lab) -> None:
    from flatout.engine import tune

    def fail(context: Any) -> None:
        raise AssertionError

    # A search leaves validation out.
    calls = dict.fromkeys(("on_start", "on_epoch", "on_step", "on_validation"), fail)
    experiment = plain(hooks=lambda: Hooked(**calls))
    tuned = tune(experiment, use={"num_threads": 1}, budget_s=2.0, is_quiet=True)
    assert tuned.recipe.capture.value == "off"
