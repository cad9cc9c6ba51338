"""Products in 8 bits on a GPU that has them; refused with the reason on one that has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from flatout.engine import Experiment
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.step.step import EagerStep
from flatout.engine.tuner.effect_checks import UpdateEvidence, observed_effect
from flatout.engine.tuner.op_trace import traced
from flatout.errors import FlatoutError
from flatout.schema.run_lines import Validated

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
NEEDED = (8, 9)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 3))  # fmt: skip


def skip_if_too_old() -> None:
    capability = torch.cuda.get_device_capability()
    if capability < NEEDED:
        pytest.skip(f"float8 needs compute capability 8.9; this GPU has {capability}")


def test_products_in_8_bits_are_seen(plain: Plain) -> None:
    skip_if_too_old()
    built = build(plain(model=wide), 0, "cuda")
    recipe = built.recipe({"precision": "float8"})
    with process_settings(recipe):
        session = Session(built, recipe)
        session.model.train()
        step = EagerStep(session.step_parts(), StepTimer(session.device))
        updates = list(session.feed.updates(0, 0))
        trace = traced(lambda: step.run(updates[0]))
        seen = UpdateEvidence(session=session, trace=trace, update=updates[0])
        # One layer fits: its forward pass and its two backward products.
        assert observed_effect({"precision": "float8"}, seen) == "3 products in float8"


def test_training_in_8_bits_learns_what_one_in_bf16_does(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    skip_if_too_old()
    losses = [
        tell.metrics(lab.run(plain(model=wide, epochs=10), precision=precision), Validated)[-1]
        .metrics["loss"]
        for precision in ("bf16", "float8")
    ]  # fmt: skip
    assert losses[1] == pytest.approx(losses[0], rel=0.2)


def test_it_can_be_captured(lab: Lab, tell: Tell, plain: Plain) -> None:
    skip_if_too_old()
    folders = [lab.run(plain(model=wide), precision="float8", capture=how)
               for how in ("step", "step")]  # fmt: skip
    assert tell.traces(folders[0]) == tell.traces(folders[1])


def test_a_gpu_without_it_refuses(lab: Lab, plain: Plain) -> None:
    if torch.cuda.get_device_capability() >= NEEDED:
        pytest.skip("this GPU has it")
    with pytest.raises(FlatoutError) as caught:
        lab.run(plain(model=wide), precision="float8")
    assert caught.value.rule == "precision-not-here"
    assert "8.9" in (caught.value.because or "")
