"""Programs without flatout give the same losses, metrics and weights as flatout, to the bit."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from support.fork_server import CAN_FORK

from flatout.engine import confusion
from flatout.engine.runlog.progress_echo import Echo
from flatout.engine.runtime.allocator import why_not_retained
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import build
from flatout.engine.step.compiled_loss import why_not_compiled
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.engine.tuner.code_outline import outline
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.recipe import Choice
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import EpochEnded, Validated
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Decision, TuneRequest
from flatout.system.store.run_folder import RunFolder, create_run, read_run
from flatout.tune.emit.code import program

if TYPE_CHECKING:
    from conftest import Lab, Tell

CODE = Path(__file__).resolve().parents[1] / "cases" / "code"
MINE = CODE / "mine.py"
SRC = Path(__file__).resolve().parents[2] / "src"
DECISION = Decision(
    is_default=True, changes={}, rungs=(), lost=(), refused=(), skipped=(), speedup=None,
    why="nothing was measured", search_s=0.0,
)  # fmt: skip


def written(spec: ExperimentSpec) -> str:
    """The program for an experiment under the recipe fields that its spec fixes."""
    built = build(load_experiment(spec), spec.seed, "cpu")
    recipe = built.recipe(spec.fixed)
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    tuned = TunedRecipe(
        folder="", recipe=recipe, decision=DECISION, is_from_cache=False, unit="rows"
    )
    return program(header, tuned, outline(built, recipe))


def barrier_in(folder: Path) -> Path:
    """A folder in it whose flatout cannot be imported: what runs with it runs without flatout."""
    barrier = folder / "barrier"
    barrier.mkdir()
    (barrier / "flatout.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    return barrier


def run_program(text: str, folder: Path, python_path: Path) -> str:
    """What the program prints; its modules are looked for in that folder first."""
    (folder / "plain.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "plain.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(python_path)}, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    # Libraries say there what they like: Triton tells of leaks when a process ends.
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run_quickly() -> Iterator[Callable[[str, Path, Path], str]]:
    """Runs programs as `run_program` does, in children of a process that has loaded torch."""
    if not CAN_FORK:
        yield run_program
        return
    command = [sys.executable, str(CODE / "run_each.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def run(text: str, folder: Path, python_path: Path) -> str:
            (folder / "plain.py").write_text(text, encoding="utf-8")
            asked = {"program": "plain.py", "folder": str(folder), "python_path": str(python_path)}
            print(json.dumps(asked), file=requests, flush=True)
            exit_code = answers.readline()
            printed = (folder / "printed.txt").read_text(encoding="utf-8")
            assert exit_code == "0\n", printed
            return printed

        yield run
        requests.close()


def kept_weights(model: torch.nn.Module, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights at a run's end, averaged where an average is kept."""
    weights = dict(model.state_dict())
    if state["average"] is not None:
        names = [name for name, _ in model.named_parameters()]
        weights |= dict(zip(names, state["average"]["averages"], strict=True))
    return weights


def epoch_losses(printed: str) -> list[float]:
    """The losses of the epochs that a program has told."""
    return [float(text) for text in re.findall(r"^epoch \d+: loss (.+)$", printed, re.M)]


# Only glibc can be told so.
KEPT = {} if why_not_retained() else {"allocator": "retain"}

COMPILED: list[tuple[str, dict[str, Any]]] = [
    ("tensors", {"compiled": "both", "micro_batch_size": 3}),
    ("rows", {"compiled": "loss", "clip_norm": 0.5}),
]
if why_not_compiled(torch.device("cpu")):
    COMPILED = []

CASES = [
    ("tensors", {"micro_batch_size": 3}),
    ("tensors", {"optimizer_implementation": "for-loop", "nonfinite_loss": "skip"}),
    ("samples", {"loader_workers": 0}),
    ("samples", {"loader_workers": 2, "micro_batch_size": 5}),
    ("decoded", {"data_path": "cached", "loader_workers": 0}),
    ("decoded", {"data_path": "cached", "loader_workers": 2, "micro_batch_size": 3}),
    ("collated", {"data_path": "cached", "loader_workers": 0, "micro_batch_size": 5}),
    ("tokens", {"precision": "bf16", "micro_batch_size": 3, "clip_norm": 0.1}),
    ("tokens", {"optimizer_implementation": "foreach", "attention": "math"}),
    ("stream", {"micro_batch_size": 5}),
    ("images", {"precision": "bf16", "memory_format": "channels_last"}),
    ("rows", KEPT),
    ("blocks", {"activation_checkpointing": True, "precision": "bf16", "attention": "math"}),
    ("broken", {"nonfinite_loss": "skip"}),
    *COMPILED,
]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: threads are kept on CPUs there")
def test_program_keeps_its_threads_on_the_cpus_of_the_recipe(
    tmp_path: Path, run_quickly: Any
) -> None:
    assert sys.platform == "linux"
    first = min(os.sched_getaffinity(0))
    fixed = {"num_threads": 1, "loader_workers": 1}
    spec = ExperimentSpec(
        name="mine", file=str(MINE), parameters={"case": "samples"}, seed=5, fixed=fixed
    )
    built = build(load_experiment(spec), spec.seed, "cpu")
    recipe = built.recipe(fixed)
    kept: Choice[Any] = Choice(value="one-per-core", why="so")
    about = msgspec.structs.replace(outline(built, recipe), cpus={"one-per-core": (first,)})
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    texts = []
    for chosen in (recipe, msgspec.structs.replace(recipe, cpu_affinity=kept)):
        tuned = TunedRecipe(
            folder="", recipe=chosen, decision=DECISION, is_from_cache=False, unit="rows"
        )
        texts.append(program(header, tuned, about))
    reported = (
        texts[1] + "\n    import os\n\n    print(sorted(os.sched_getaffinity(0)), len(ALL_CPUS))\n"
    )
    plain, pinned = (run_quickly(text, place, barrier_in(place))
                     for text, place in ((texts[0], folder(tmp_path, "plain")),
                                         (reported, folder(tmp_path, "pinned"))))  # fmt: skip
    assert epoch_losses(pinned) == epoch_losses(plain) != []
    assert pinned.splitlines()[-1] == f"[{first}] {len(os.sched_getaffinity(0))}"


def folder(parent: Path, name: str) -> Path:
    """A new folder."""
    made = parent / name
    made.mkdir()
    return made


@pytest.mark.parametrize(("case", "use"), CASES, ids=lambda value: str(value))
def test_program_computes_what_flatout_computes(
    lab: Lab, tell: Tell, tmp_path: Path, run_quickly: Any, case: str, use: dict[str, Any]
) -> None:
    parameters = {"case": case}
    spec = ExperimentSpec(
        name="mine", file=str(MINE), parameters=parameters, seed=5, fixed=lab.use | use
    )
    printed = run_quickly(written(spec), tmp_path, barrier_in(tmp_path))
    losses = epoch_losses(printed)
    found = re.findall(r"^step (\d+): ({.+})$", printed, re.M)

    folder: RunFolder = lab.new(seed=5, **use)
    model = lab.go_on(folder, load_experiment(spec))
    reported = [line.loss for line in tell.metrics(folder, EpochEnded)]
    # A run that ends by steps in the midst of an epoch tells nothing of that one.
    assert reported and losses[: len(reported)] == reported
    validated = [(line.step, line.metrics) for line in tell.metrics(folder, Validated)]
    assert [(int(step), ast.literal_eval(text)) for step, text in found] == validated
    expected = kept_weights(model, tell.state(folder))
    weights = torch.load(tmp_path / "mine.pt")
    assert weights.keys() == expected.keys()
    different = [name for name, value in expected.items() if not torch.equal(weights[name], value)]
    assert different == []


def test_program_of_a_built_in_computes_the_same(lab: Lab, tell: Tell, tmp_path: Path) -> None:
    spec = ExperimentSpec(name="digits", parameters={"epochs": 1}, fixed=lab.use)
    printed = run_program(written(spec), tmp_path, SRC)
    folder = lab.new()
    lab.go_on(folder, load_experiment(spec))
    assert epoch_losses(printed) == [line.loss for line in tell.metrics(folder, EpochEnded)]


@pytest.mark.parametrize("early_stop", [2, None])
def test_outline_when_best_comes_from_a_confusion(early_stop: int | None) -> None:
    described = replace(
        load_experiment(ExperimentSpec(name="mine", file=str(MINE))),
        metrics=lambda model, batch: {"classes": confusion(model(batch[0]), batch[1])},
        best="macro_f1",
        early_stop=early_stop,
    )
    built = build(described, 0, "cpu")
    if early_stop is None:
        assert outline(built, built.recipe({})).best == "macro_f1"
        return
    with pytest.raises(UsageError) as caught:
        outline(built, built.recipe({}))
    assert caught.value.rule == "no-code-for-class-scores"


@pytest.mark.parametrize("is_wanted", [True, False])
def test_search_gives_a_program_where_one_is_wanted(lab: Lab, is_wanted: bool) -> None:
    wish = TuneRequest(mode="full", budget_s=1.0, is_only=True, emit="code" if is_wanted else None)
    spec = ExperimentSpec(name="mine", file=str(MINE), fixed={"num_threads": 1}, tuning=wish)
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    folder = create_run(header)
    # Somebody who reads along keeps the search in this process.
    task = TrainTask(folder, spec, Change(), StopRequest(), Echo(None))
    train_in(task, lambda: load_experiment(spec))
    code = runs_api.tuned(read_run(folder)).code
    if is_wanted:
        assert code is not None and "clip_grad_norm_(parameters, 0.5)" in code
        compile(code, "plain.py", "exec")
    else:
        assert code is None
