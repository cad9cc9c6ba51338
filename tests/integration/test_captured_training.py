"""Trainings whose updates are made in graphs: what is told, saved and gone on from is the same."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from support.oom_injection import SAID
from support.recorded_graphs import RecordedGraphs
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.gate.fixtures import changed
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime.error_map import CaptureBroken
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.state import take_over
from flatout.engine.training.async_checkpoint import AsyncCheckpointer
from flatout.engine.training.checkpoints import read_checkpoint
from flatout.engine.training.hook_rounds import HookRounds
from flatout.engine.training.loop import Ending, Loop, LoopContext, LoopLimits
from flatout.engine.tuner.code_outline import outline
from flatout.errors import FlatoutError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import EpochEnded, RecipeSet, Validated
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Decision
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.tune.emit.code import program
from flatout.tune.emit.code_graphs import GRAPHS

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


class NotRecorded(RecordedGraphs):
    """Graphs that are never launched: each replay does what was to be recorded, step by step."""

    def recorded(self, action: Callable[[], object]) -> Any:
        self.num_recorded += 1

        class Repeated:
            def replay(self) -> None:
                action()

        return Repeated()


class ShortAtLaunch(RecordedGraphs):
    """Graphs of which the second launch of several steps finds no memory."""

    num_launches = 0

    def recorded(self, action: Callable[[], object]) -> Any:
        is_of_several = not self.num_recorded
        graph, graphs = super().recorded(action), self

        class Launched:
            def replay(self) -> None:
                graphs.num_launches += is_of_several
                if is_of_several and graphs.num_launches == 2:
                    raise RuntimeError(SAID)
                graph.replay()

        return Launched()


@dataclasses.dataclass
class Capturing:
    """Trains runs with graphs, as a run's course does."""

    experiment: Experiment
    graphs: Callable[[], RecordedGraphs]
    use: dict[str, Any]
    origin: Any = "measured"

    def go_on(self, folder: RunFolder, epochs: int, stop_after: int | None = None) -> Ending:
        """Trains a run on; stops where its loss was called so often, recorded calls included."""
        request = StopRequest()
        experiment = self.experiment
        if stop_after is not None:
            experiment = stopping(experiment, request, stop_after)
        built = replace(build(experiment, 0, "cpu"), graphs=self.graphs())
        recipe = self.recipe(built.recipe({"num_threads": 1}))
        checkpoint, _ = read_checkpoint(folder)
        journal = EventLog(folder)
        timer = StepTimer(built.device)
        if checkpoint is None:
            journal.event(RecipeSet(at=0.0, step=0, recipe=recipe), is_synced=True)
        with process_settings(recipe):
            session = Session(built, recipe)
            if checkpoint is not None:
                take_over(session, checkpoint.state)
                state = checkpoint.state["hooks"]
                session.hooks.load_state(state, session.device, is_changed=False)
            hooks = HookRounds(session, journal, folder)
            hooks.start()
            saver = AsyncCheckpointer(folder, recipe.checkpoint_every.value, timer)
            around = LoopContext(
                folder=folder, event_log=journal, saver=saver, timer=timer, request=request,
                hooks=hooks,
            )  # fmt: skip
            try:
                ending = Loop(session, LoopLimits(epochs=epochs, steps=None), around).run()
            finally:
                session.close()
                saver.finish()
                journal.close()
        return ending

    def recipe(self, plain: Recipe) -> Recipe:
        capture: Choice[Any] = Choice(value="step", why="so", origin=self.origin)
        return msgspec.structs.replace(changed(plain, **self.use), capture=capture)


def stopping(experiment: Experiment, request: StopRequest, after: int) -> Experiment:
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += model.training
        if calls == after:
            request.make("test")
        return experiment.loss(model, batch)  # type: ignore[misc]

    return replace(experiment, loss=loss)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_captured_run_leaves_what_an_eager_one_does(
    lab: Lab, tell: Tell, plain: Plain, num_steps: int
) -> None:
    experiment = plain(ema=0.9, clip_norm=0.5, validate_every=5)
    use = {"steps_per_launch": num_steps, "checkpoint_every": 4}
    folders = []
    for graphs in (RecordedGraphs, NotRecorded):
        folder = lab.new()
        assert Capturing(experiment, graphs, use).go_on(folder, epochs=4) == "finished"
        folders.append(folder)
    assert tell.traces(folders[0]) == tell.traces(folders[1])
    assert len(tell.metrics(folders[0], Validated)) == 6


class Changing:
    """Changes, between epochs, what a graph would hold: a number, and which weights are trained."""

    def __init__(self) -> None:
        self.weight = 1.0

    def on_start(self, context: Any) -> None:
        context.model[0].requires_grad_(False)

    def on_epoch(self, context: Any) -> None:
        self.weight /= 2
        if context.epoch == 2:
            context.model[0].requires_grad_(True)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_graphs_do_not_keep_what_hooks_change(
    lab: Lab, tell: Tell, plain: Plain, num_steps: int
) -> None:
    folders, endings = [], []
    for graphs in (RecordedGraphs, NotRecorded):
        hook = Changing()

        def loss(model: nn.Module, batch: Any, hook: Changing = hook) -> Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1]) * hook.weight

        experiment = plain(loss=loss, hooks=lambda hook=hook: hook)
        capturing = Capturing(experiment, graphs, {"steps_per_launch": num_steps})
        folder = lab.new()
        endings.append([capturing.go_on(folder, epochs=4)])
        # Its own object goes on: as the factory of a new process would make it.
        hook.weight = 1.0
        endings[-1].append(capturing.go_on(folder, epochs=4))
        folders.append(folder)
    assert endings == [["recipe", "finished"]] * 2
    assert tell.traces(folders[0]) == tell.traces(folders[1])


@pytest.mark.parametrize("stop_after", [2, 5, 6, 8])
def test_a_captured_run_goes_on_bit_for_bit(
    lab: Lab, tell: Tell, plain: Plain, stop_after: int
) -> None:
    experiment = plain(clip_norm=0.5)
    capturing = Capturing(experiment, RecordedGraphs, {"steps_per_launch": 3})
    whole, parts = lab.new(), lab.new()
    capturing.go_on(whole, epochs=4)
    assert capturing.go_on(parts, epochs=4, stop_after=stop_after) == "stopped"
    capturing.go_on(parts, epochs=4)
    assert tell.traces(parts) == tell.traces(whole)


def test_a_graph_that_finds_no_memory_is_done_without(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    # A rate that 24 bits can hold.
    experiment = plain(optimizer=lambda p: torch.optim.AdamW(p, lr=2**-7))
    capturing = Capturing(experiment, lambda: RecordedGraphs(is_short=True), {})
    assert capturing.go_on(folder, epochs=3) == "finished"
    [adaptation] = read_run(folder).adaptations
    assert (adaptation.kind, adaptation.part, adaptation.is_in_place) == (
        "uncaptured", "capture", True,
    )  # fmt: skip
    assert tell.events(folder, RecipeSet)[-1].recipe.capture.value == "off"
    eager = lab.new()
    Capturing(experiment, NotRecorded, {}).go_on(eager, epochs=3)
    assert tell.traces(folder)["weights"] == tell.traces(eager)["weights"]


def test_a_launch_that_finds_no_memory_loses_no_update(lab: Lab, tell: Tell, plain: Plain) -> None:
    def model() -> nn.Module:
        # Nothing in it sees how many samples are computed at a time.
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    folders = []
    for graphs in (ShortAtLaunch, NotRecorded):
        folder = lab.new()
        assert (
            Capturing(plain(model=model), graphs, {"steps_per_launch": 3}).go_on(folder, epochs=4)
            == "finished"
        )
        folders.append(folder)
    # Smaller parts of a batch need no less of what a launch takes.
    assert [one.kind for one in read_run(folders[0]).adaptations] == ["uncaptured"]
    whole = tell.state(folders[1])["model"]
    for name, value in tell.state(folders[0])["model"].items():
        # The rates of a graph have 32 bits; an update that is lost is far more.
        torch.testing.assert_close(value, whole[name], rtol=1e-4, atol=1e-6)


def reading(model: nn.Module, batch: Any) -> Tensor:
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return value if value.item() > 0 else value * 2


def test_what_cannot_be_captured_is_reported_and_trained(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.new()
    assert Capturing(plain(loss=reading), RecordedGraphs, {}).go_on(folder, epochs=2) == "finished"
    assert "step-not-captured" in tell.rules(folder)


def test_what_cannot_be_captured_although_it_was_set_ends_the_run(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    capturing = Capturing(plain(loss=reading), RecordedGraphs, {}, origin="yours")
    folder = lab.new()
    with pytest.raises(FlatoutError) as caught:
        capturing.go_on(folder, epochs=2)
    assert caught.value.rule == "step-not-captured"
    assert "waits" in (caught.value.because or "")
    # What was trained until then is kept.
    assert tell.state(folder)["position"]["step"] == 3


def test_a_loss_that_is_not_finite_ends_a_captured_run(lab: Lab, tell: Tell, plain: Plain) -> None:
    def points() -> tuple[Tensor, Tensor]:
        dice = torch.Generator().manual_seed(1)
        inputs = torch.randn(50, 6, generator=dice)
        inputs[7] = torch.nan
        return inputs, torch.arange(50) % 3

    folder = lab.new()
    capturing = Capturing(plain(train_data=points), RecordedGraphs, {"steps_per_launch": 4})
    with pytest.raises(FlatoutError) as caught:
        capturing.go_on(folder, epochs=3)
    assert caught.value.rule == "nonfinite-loss"
    kept = (folder.path / "nonfinite.json").read_text()
    assert "7" in kept


ROOT = Path(__file__).resolve().parents[2]
MINE = ROOT / "tests" / "cases" / "code" / "mine.py"


@pytest.mark.parametrize(
    ("case", "use"),
    [
        ("tensors", {"steps_per_launch": 3, "micro_batch_size": 3}),
        ("rows", {}),
    ],
)
def test_a_program_with_graphs_computes_what_flatout_computes(
    lab: Lab, tell: Tell, tmp_path: Path, case: str, use: dict[str, Any]
) -> None:
    spec = ExperimentSpec(name="mine", file=str(MINE), parameters={"case": case})
    experiment = load_experiment(spec)
    capturing = Capturing(experiment, RecordedGraphs, use)
    folder = lab.new()
    assert capturing.go_on(folder, epochs=3) in ("finished", "early")
    built = build(experiment, 0, "cpu")
    recipe = capturing.recipe(built.recipe({"num_threads": 1}))
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    decision = Decision(
        is_default=True, changes={}, rungs=(), lost=(), refused=(), skipped=(), speedup=None,
        why="nothing was measured", search_s=0.0,
    )  # fmt: skip
    tuned = TunedRecipe(
        folder="", recipe=recipe, decision=decision, is_from_cache=False, unit="rows"
    )
    text = program(header, tuned, outline(built, recipe))
    # A CPU has no graphs: recordings stand in for them.
    cuda = GRAPHS.strip("\n")
    assert cuda in text
    text = text.replace(cuda, "from support.recorded_graphs import RecordedGraphs as Graphs")
    counted = '    print("graphs", len(captured.recorded))\n    return model\n'
    text = text.replace("    return model\n", counted)
    (tmp_path / "plain.py").write_text(text, encoding="utf-8")
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    done = subprocess.run(
        [sys.executable, "plain.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    num_graphs = len({1, recipe.steps_per_launch.value})
    assert done.stdout.splitlines()[-1] == f"graphs {num_graphs}"
    losses = [float(one) for one in re.findall(r"^epoch \d+: loss (.+)$", done.stdout, re.M)]
    assert losses == [line.loss for line in tell.metrics(folder, EpochEnded)]
    validated = re.findall(r"^step (\d+): ({.+})$", done.stdout, re.M)
    assert [(int(step), ast.literal_eval(found)) for step, found in validated] == [
        (line.step, line.metrics) for line in tell.metrics(folder, Validated)
    ]
    expected = tell.state(folder)
    weights = torch.load(tmp_path / "mine.pt")
    kept = dict(expected["model"])
    if expected["average"] is not None:
        names = [name for name, _ in built.model.named_parameters()]
        kept |= dict(zip(names, expected["average"]["averages"], strict=True))
    assert [name for name, one in kept.items() if not torch.equal(weights[name], one)] == []


class Unended(RecordedGraphs):
    """Graphs whose recording fails, and cannot be ended either."""

    def recorded(self, action: Callable[[], object]) -> Any:
        action()
        raise CaptureBroken("operation not permitted when stream is capturing")


def test_process_ends_where_a_recording_cannot_be_ended(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new(checkpoint_every=2)
    with pytest.raises(FlatoutError) as lost:
        Capturing(plain(), Unended, {"checkpoint_every": 2}).go_on(folder, epochs=2)
    # Who restarts the worker goes by this rule, and finds in the history that no graph is made.
    assert lost.value.rule == "gpu-state-lost"
    [adaptation] = read_run(folder).adaptations
    assert (adaptation.kind, adaptation.is_in_place) == ("uncaptured", False)
    [*_, last] = tell.events(folder, RecipeSet)
    assert last.recipe.capture.value == "off"
    # Nothing is saved from a process whose GPU is lost: the checkpoint is from before.
    assert folder.checkpoint_steps() == [2]
