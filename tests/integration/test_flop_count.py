"""FLOPs of a step: counted right, and without any trace in what is trained."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.model.activation_checkpointing import ActivationCheckpointing
from flatout.engine.runtime import rng
from flatout.engine.training import flop_count
from flatout.engine.training.flop_count import _TookTooLong, step_flops
from flatout.schema.run_lines import FlopsCounted

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
CPU = torch.device("cpu")
# Forward and weights' gradients of 6 x 16; forward and both gradients of 16 x 3.
PER_SAMPLE = 2 * (2 * 6 * 16) + 3 * (2 * 16 * 3)


def shapes(num: int = 8) -> tuple[Tensor, Tensor]:
    inputs = torch.empty(num, 6, device="meta")
    return inputs, torch.empty(num, dtype=torch.long, device="meta")


def counted(experiment: Experiment, model: nn.Module | None = None) -> int | str:
    model = experiment.model() if model is None else model
    return step_flops(experiment, model, shapes(), CPU, 60.0)


def test_counted_flops_are_those_of_the_products(plain: Plain) -> None:
    assert counted(plain()) == 8 * PER_SAMPLE


def test_frozen_weights_need_no_gradient(plain: Plain) -> None:
    model = plain().model()
    model[0].requires_grad_(False)
    assert counted(plain(), model) == 8 * (PER_SAMPLE - 2 * 6 * 16)


def test_what_is_computed_twice_counts_once(plain: Plain) -> None:
    def model() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)))

    experiment, once = plain(model=model), counted(plain(model=model))
    recomputed = model()
    checkpointing = ActivationCheckpointing(recomputed)
    assert checkpointing.num_blocks == 3 and counted(experiment, recomputed) == once
    # The model itself still recomputes.
    assert len(checkpointing._wrapped) == 3 and "forward" in vars(recomputed[0])


def test_count_leaves_model_and_generators_alone(plain: Plain) -> None:
    model = plain().model()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    states = rng.generator_states(CPU)
    assert counted(plain(), model) == 8 * PER_SAMPLE
    after = model.state_dict()
    assert all(torch.equal(after[name], one) for name, one in before.items())
    assert all(one.grad is None for one in model.parameters())
    assert not rng.moved_generators(states, rng.generator_states(CPU))


def test_fake_tensors_give_the_same_count(plain: Plain) -> None:
    experiment = plain()
    copied, mode = flop_count._fake(experiment.model())
    counter = flop_count._Counter(time.monotonic() + 1e6)
    with mode:
        batch = torch.zeros(8, 6), torch.zeros(8, dtype=torch.long)
        with counter:
            experiment.loss(copied, batch).backward()  # type: ignore[misc]
    assert counter.flops == 8 * PER_SAMPLE


def test_reason_when_the_loss_fails_on_another_batch(plain: Plain) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not batch[0].any():
            raise ValueError("a batch of zeros")
        return model(batch[0]).mean()

    assert counted(plain(loss=loss)) == "ValueError: a batch of zeros"


def test_count_gives_up_when_it_takes_too_long(plain: Plain) -> None:
    with pytest.raises(_TookTooLong):
        step_flops(plain(), plain().model(), shapes(), CPU, 0.0)


def test_large_model_is_not_copied(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flop_count, "_MOST_COPIED_BYTES", 100)
    assert counted(plain()) == "the model is too large to be copied"


def test_run_is_the_same_with_and_without_a_count(
    lab: Lab, tell: Tell, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = lab.run(plain(), checkpoint_every=3)
    monkeypatch.setattr(flop_count, "_MOST_SHARE", 1e6)
    folder = lab.run(plain(), checkpoint_every=3)
    [line] = tell.events(folder, FlopsCounted)
    # In the middle of the run, not at its end.
    assert (line.flops_per_sample, line.reason, line.step) == (PER_SAMPLE, None, 3)
    assert tell.traces(folder) == tell.traces(without)
    assert not tell.events(without, FlopsCounted)


def test_resumed_run_does_not_count_again(
    lab: Lab, tell: Tell, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flop_count, "_MOST_SHARE", 1e6)
    folder = lab.new()
    lab.go_on(folder, plain(), stop_after=9)
    lab.go_on(folder, plain())
    assert len(tell.events(folder, FlopsCounted)) == 1


def test_compiled_part_runs_as_it_is_written(plain: Plain) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        @torch.compile(backend="inductor")
        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs)

    assert counted(plain(model=Model)) == 8 * 2 * (2 * 6 * 3)


def test_batch_of_other_things_is_not_counted(
    lab: Lab, tell: Tell, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Batch:
        def __init__(self, samples: list[Any]) -> None:
            self.inputs = torch.stack([one for one, _ in samples])

    class Samples(list[Any]):
        pass

    monkeypatch.setattr(flop_count, "_MOST_SHARE", 1e6)
    data = Samples((torch.ones(6), number) for number in range(16))
    experiment = plain(
        train_data=lambda: data, validation_data=None, collate=Batch,
        loss=lambda model, batch: model(batch.inputs).square().mean(),
    )  # fmt: skip
    assert not tell.events(lab.run(experiment, loader_workers=0), FlopsCounted)
