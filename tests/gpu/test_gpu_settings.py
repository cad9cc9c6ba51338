"""Settings that torch has once per process, on a GPU: the same for both loops; the right GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.step_timer import Losses
from flatout.engine.session.session import process_settings
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
PAUSE_CYCLES = 200_000_000


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 3))


def images() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(64, 3, 8, 8, generator=dice), torch.arange(64) % 3


def test_plain_loop_and_plain_recipe_compute_the_same(plain: Plain) -> None:
    experiment = plain(model=convolution, train_data=images, validation_data=None)
    contestants = CandidateBuilder(TuningTask(experiment=experiment, device_name="cuda"))
    layer = nn.Conv2d(64, 64, 3).cuda()
    inputs = torch.randn(8, 64, 32, 32, device="cuda")
    found: list[Any] = []
    for settings in (
        contestants.plain().settings,
        lambda: process_settings(contestants.plain_recipe()),
    ):
        with settings():
            flags = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
            found.append((flags, layer(inputs).detach()))
    assert found[0][0] == found[1][0] == (False, False)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-6)


def raised_by(layer: nn.Module, inputs: Tensor) -> Exception | None:
    try:
        layer(inputs).sum().backward()
    except RuntimeError as error:
        return error
    return None


@pytest.mark.parametrize("is_benchmarking", [False, True])
def test_convolution_that_runs_out_of_memory_says_so(is_benchmarking: bool) -> None:
    # Its inputs and outputs fit, its workspaces do not: cuDNN's words are not the allocator's.
    device = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(device).total_memory
    layer = nn.Conv2d(64, 64, 5, padding=2).cuda()
    inputs = torch.randn(64, 64, 128, 128, device=device, requires_grad=True)
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = is_benchmarking
        for spare in range(0, 2 * 2**30, 64 * 2**20):
            release_memory()
            held = torch.cuda.memory_reserved(device)
            torch.cuda.set_per_process_memory_fraction(min(1.0, (held + spare) / total), device)
            said = raised_by(layer, inputs)
            if said is None:
                break
            assert is_out_of_memory(said), said
    finally:
        torch.backends.cudnn.benchmark = before
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def second_gpu() -> str:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs (torch sees {torch.cuda.device_count()})")
    return "cuda:1"


def test_losses_on_the_second_gpu_are_there_when_they_are_read() -> None:
    device = torch.device(second_gpu())
    losses = Losses(device)
    losses.add(torch.zeros((), device=device), 8)
    losses.take(is_waiting=True)
    with torch.cuda.device(device):
        torch.cuda._sleep(PAUSE_CYCLES)
        losses.add(torch.full((), 3.0, device=device), 8)
    assert losses.take() == []
    assert losses.take(is_waiting=True) == [(3.0, 8)]


def test_training_on_the_second_gpu_is_that_on_the_first(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    second, before = second_gpu(), torch.cuda.current_device()
    weights = []
    for device in ("cuda:0", second):
        folder = lab.run(plain(), device=device)
        weights.append(tell.state(folder)["model"])
        assert torch.cuda.current_device() == before
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])
