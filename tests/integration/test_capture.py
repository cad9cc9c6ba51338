"""Updates in graphs, on a CPU: recorded operations stand in for CUDA's graphs.

They are as strict as those (tests/support/recorded_graphs.py); tests/gpu has the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gate_graph_flaws import captured as capturing
from support.recorded_graphs import RecordedGraphs, code_is_seen
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from flatout.engine import Experiment
from flatout.engine.gate import GateSubject, judge
from flatout.engine.gate.fixtures import changed
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session, build
from flatout.engine.session.state import state_of
from flatout.engine.step.captured_step import NUM_WARM_UPS, CapturedStep
from flatout.engine.step.compiled_loss import StepLoss, why_not_compiled
from flatout.engine.step.step import EagerStep

Plain = Callable[..., Experiment]


def halving(optimizer: Any) -> LambdaLR:
    """Rates that 24 bits can hold."""
    return LambdaLR(optimizer, lambda step: 0.5 ** (step % 7))


needs_compiler = pytest.mark.skipif(
    why_not_compiled(torch.device("cpu")) is not None, reason="needs a C++ compiler"
)


@pytest.fixture(scope="module")
def seen(shared_folder: Path) -> Iterator[None]:
    """What is compiled is seen by recordings, and kept for these tests alone."""
    with pytest.MonkeyPatch.context() as patch, code_is_seen():
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared_folder / "seen"))
        yield


def session_of(
    experiment: Experiment, graphs: RecordedGraphs | None, use: dict[str, Any] | None = None
) -> Session:
    """A session whose updates are made in graphs, or not."""
    built = replace(build(experiment, 0, "cpu"), graphs=graphs)
    recipe = built.recipe({"num_threads": 1, **(use or {})})
    return Session(built, changed(recipe, capture="step"))


def captured(session: Session, num_steps: int = 1) -> CapturedStep:
    assert session.graphs is not None
    return CapturedStep(session.step_parts(), StepTimer(session.device), session.graphs, num_steps)


def trained(session: Session, step: Any, epochs: int = 3) -> list[float]:
    """Losses of some epochs, read at their end."""
    session.model.train()
    torch.manual_seed(1)
    losses = []
    for epoch in range(epochs):
        for update in session.feed.updates(epoch, 0):
            # Kernels round by the address of what they read, and slices have others.
            copied = [((batch[0].clone(), batch[1].clone()), size) for batch, size in update]
            losses.append(step.run(copied))
            if session.learning_rates.are_per_step:
                session.learning_rates.after_update()
    step.flush()
    return [float(loss) for loss in losses]


def assert_alike(one: Session, other: Session) -> None:
    """All that a checkpoint holds is equal, bit for bit."""
    ours, theirs = state_of(one), state_of(other)
    for name, value in ours["model"].items():
        assert torch.equal(value, theirs["model"][name]), name
    for index, state in ours["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, theirs["optimizer"]["state"][index][name])
    for name in ("schedule", "scaler"):
        assert str(ours[name]) == str(theirs[name])
    assert torch.equal(ours["generators"]["torch"], theirs["generators"]["torch"])
    if ours["average"] is not None:
        for a, b in zip(ours["average"]["averages"], theirs["average"]["averages"], strict=True):
            assert torch.equal(a, b)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.9, nesterov=True)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2**-7)


def counted_loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """A sum over what counts, and how many that are."""
    inputs, labels = batch
    weights = (inputs[:, 0] > 0).float()
    values = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    return (values * weights).sum(), weights.sum()


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "one by one": ({}, {}, 1),
    "four per launch": ({}, {}, 4),
    "sgd with momentum": ({"optimizer": sgd}, {}, 2),
    "clipped, averaged": ({"clip_norm": 0.5, "ema": 0.9}, {}, 2),
    "accumulated": ({}, {"micro_batch_size": 3}, 2),
    "accumulated sums": ({"loss": counted_loss, "clip_norm": 0.5}, {"micro_batch_size": 3}, 4),
    "a schedule": ({"schedule": halving, "schedule_every": "step"}, {}, 4),
    "bf16": ({}, {"precision": "bf16"}, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_captured_updates_are_the_eager_ones_bit_for_bit(plain: Plain, name: str) -> None:
    fields, use, num_steps = CASES[name]
    experiment = plain(**{"optimizer": adamw, **fields})
    graphs = RecordedGraphs()
    ours, theirs = session_of(experiment, graphs, use), session_of(experiment, None, use)
    step = captured(ours, num_steps)
    losses = trained(ours, step)
    assert losses == trained(theirs, EagerStep(theirs.step_parts(), StepTimer(theirs.device)))
    assert_alike(ours, theirs)
    # 7 updates an epoch, the last one partial; the first three are made to warm up.
    assert step.problem is None and graphs.num_recorded == len({1, num_steps})
    assert (step.num_replayed, step.num_eager) == (18 - NUM_WARM_UPS, 3)


def test_scaler_is_in_the_graph(plain: Plain) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return 1000 * nn.functional.cross_entropy(model(batch[0]), batch[1])

    experiment = plain(optimizer=adamw, clip_norm=0.5, loss=loss)
    sessions = [session_of(experiment, graphs) for graphs in (RecordedGraphs(), None)]
    for session in sessions:
        # So large that gradients overflow, and grows again soon.
        session.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**121, growth_interval=2)
    ours, theirs = sessions
    step = captured(ours, 2)
    assert trained(ours, step) == trained(
        theirs, EagerStep(theirs.step_parts(), StepTimer(theirs.device))
    )
    assert step.problem is None and step.num_replayed
    assert_alike(ours, theirs)
    assert ours.scaler is not None and ours.scaler.get_scale() < 2.0**121


def reading(model: nn.Module, batch: Any) -> Tensor:
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return value if value.item() > 0 else value * 2


def drawing(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) * random.uniform(0.5, 1.5)


class Replacing(nn.Module):
    """Counts in a tensor that is another one after each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.count = self.count + 1
        return self.inner(inputs)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss": reading}, "waits for the GPU"),
        ({"loss": drawing}, "python's random generator"),
        ({"model": Replacing}, "buffer `count`"),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "loss": reading}, "waits"),
    ],
)
def test_what_a_graph_cannot_repeat_is_found(
    plain: Plain, fields: dict[str, Any], reason: str
) -> None:
    experiment = plain(**{"optimizer": adamw, **fields})
    ours, theirs = session_of(experiment, RecordedGraphs()), session_of(experiment, None)
    step = captured(ours, 2)
    random.seed(0)
    losses = trained(ours, step)
    random.seed(0)
    assert losses == trained(theirs, EagerStep(theirs.step_parts(), StepTimer(theirs.device)))
    assert step.problem is not None and reason in step.problem and step.num_replayed == 0
    assert_alike(ours, theirs)


def test_an_optimizer_that_asks_the_device_is_found(plain: Plain) -> None:
    """The loop over parameters reads the learning rate: torch would say so on a GPU, too."""
    experiment = plain(optimizer=lambda p: torch.optim.SGD(p, lr=0.125))
    session = session_of(experiment, RecordedGraphs(), {"optimizer_implementation": "for-loop"})
    step = captured(session)
    trained(session, step, epochs=1)
    assert step.problem is not None and step.num_replayed == 0


def test_a_schedule_of_more_than_the_rate_is_made_without_graphs(plain: Plain) -> None:
    def schedule(optimizer: Any) -> OneCycleLR:
        return OneCycleLR(optimizer, max_lr=0.01, total_steps=500)

    experiment = plain(schedule=schedule, schedule_every="step")
    session = session_of(experiment, RecordedGraphs())
    step = captured(session)
    trained(session, step, epochs=12)
    # Only the one that the graph was recorded for.
    assert step.num_replayed == 1
    assert step.problem is not None and "more than the learning rate" in step.problem


def test_batches_that_hold_more_than_tensors_are_not_captured(plain: Plain) -> None:
    session = session_of(plain(), RecordedGraphs())
    step = captured(session)
    [batch, *_] = next(session.feed.updates(0, 0))
    parts = session.step_parts()
    named = [((batch[0][0], batch[0][1], "a name"), batch[1])]
    loss = parts.experiment.loss
    assert loss is not None
    taking = StepLoss(lambda model, three: loss(model, three[:2]), session.recipe)
    step = CapturedStep(replace(parts, loss=taking), StepTimer(session.device), RecordedGraphs(), 1)
    step.run(named)
    assert step.problem is not None and "a str" in step.problem


def test_losses_of_what_is_laid_aside_are_there_when_it_is_finished(plain: Plain) -> None:
    session = session_of(plain(optimizer=adamw), RecordedGraphs())
    step = captured(session, 4)
    updates = list(session.feed.updates(0, 0))
    before: list[Tensor] = []
    for update in updates[:5]:
        before = [p.detach().clone() for p in session.model.parameters()]
        step.run(update)
    # Two of four are laid aside.
    weights = list(session.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))
    assert step.num_replayed == 0
    step.flush()
    assert step.num_replayed == 2
    assert not all(torch.equal(a, b) for a, b in zip(before, weights, strict=True))


def test_recording_that_lacks_memory_leaves_everything_as_it_was(plain: Plain) -> None:
    # Its buffer is another tensor after each pass: of the recording, one that was never computed.
    experiment = plain(optimizer=adamw, model=Replacing)
    session = session_of(experiment, RecordedGraphs(is_short=True))
    step = captured(session)
    updates = list(session.feed.updates(0, 0))
    for update in updates[:NUM_WARM_UPS]:
        step.run(update)
    before = [p.detach().clone() for p in session.model.parameters()]
    with pytest.raises(torch.OutOfMemoryError):
        step.enqueue(updates[NUM_WARM_UPS])
    assert not step.has_begun
    assert all(torch.equal(a, b) for a, b in zip(before, session.model.parameters(), strict=True))
    assert all(p.grad is None for p in session.model.parameters())
    assert session.model.get_buffer("count").item() == NUM_WARM_UPS


@needs_compiler
@pytest.mark.usefixtures("seen")
def test_compiled_code_in_graphs_gives_the_bits_it_gives_alone(plain: Plain) -> None:
    experiment = plain(optimizer=adamw, clip_norm=0.5, schedule=halving, schedule_every="step")
    ours, theirs = (session_of(experiment, graphs, {"compiled": "loss"})
                    for graphs in (RecordedGraphs(), None))  # fmt: skip
    step = captured(ours, 2)
    losses = trained(ours, step)
    assert losses == trained(theirs, EagerStep(theirs.step_parts(), StepTimer(theirs.device)))
    assert_alike(ours, theirs)
    assert step.problem is None and step.num_replayed == 18 - NUM_WARM_UPS
    assert ours.loss is not None and ours.loss.compiler is not None
    # The three that warm up, and the two recordings of three updates; the graphs hold the code.
    assert ours.loss.compiler.num_calls == NUM_WARM_UPS + 3
    # What is compiled differs by rounding from what is written, or nothing was compared.
    written = session_of(experiment, None)
    assert losses != trained(written, EagerStep(written.step_parts(), StepTimer(written.device)))


@needs_compiler
@pytest.mark.usefixtures("seen")
def test_nothing_is_compiled_anew_while_a_graph_is_recorded(plain: Plain) -> None:
    scale = [1]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return scale[0] * nn.functional.cross_entropy(model(batch[0]), batch[1])

    session = session_of(plain(optimizer=adamw, loss=loss), RecordedGraphs(), {"compiled": "loss"})
    step = captured(session)
    session.model.train()
    for number, update in enumerate(list(session.feed.updates(0, 0))[:5]):
        scale[0] = 1 if number < NUM_WARM_UPS else 2
        step.run(update)
    assert step.problem is not None and "recompile" in step.problem
    assert step.num_replayed == 0 and step.problem.startswith("recording failed")


@needs_compiler
@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("flaw", ["", "learning rate frozen in the graph"])
def test_the_gate_judges_compiled_code_in_graphs(plain: Plain, flaw: str) -> None:
    experiment = plain(optimizer=adamw)
    eager = build(experiment, 0, "cpu").recipe({"num_threads": 1})
    candidate = changed(eager, capture="step", steps_per_launch=2, compiled="loss")
    verdict = judge(
        GateSubject(experiment=experiment, device="cpu", maker=capturing(flaw)), candidate, eager
    )
    assert [check.name for check in verdict.checks][0] == "replays"
    assert {"gradients", "masks", "loss curve"} <= {check.name for check in verdict.checks}
    assert [check.name for check in verdict.failed] == (["replays"] if flaw else [])
