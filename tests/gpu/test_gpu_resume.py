"""Exact resume on a GPU: with deterministic on, bit for bit in every precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam

from flatout.engine import Experiment
from flatout.schema.run_lines import RecipeSet

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


class Points(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6), index % 3


def images(count: int = 50) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(count, 8, 8, 8, generator=dice), torch.arange(count) % 3


def convolution() -> nn.Module:
    # No pooling: on a GPU the gradient of most kinds does not repeat bit for bit.
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(16, 16, 3, stride=4), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


PICTURES: dict[str, Any] = {
    "model": convolution, "train_data": images, "validation_data": lambda: images(20),
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "resident": ({}, {"data_path": "resident"}),
    "sliced": ({}, {"data_path": "sliced"}),
    "loader": ({"train_data": Points}, {"loader_workers": 2}),
    "loader, pinned": ({"train_data": Points}, {"loader_workers": 1, "loader_pin_memory": True}),
    "accumulated": ({"clip_norm": 0.5}, {"micro_batch_size": 3}),
    "bf16": (PICTURES, {"precision": "bf16"}),
    "fp16 with its scaler": (PICTURES, {"precision": "fp16"}),
    "fp16, clipped": (PICTURES | {"clip_norm": 0.5}, {"precision": "fp16"}),
    "tf32": (PICTURES, {"precision": "tf32"}),
    "channels last": (PICTURES | {"ema": 0.9}, {"memory_format": "channels_last"}),
    "sgd": ({"optimizer": lambda p: SGD(p, lr=0.05, momentum=0.9)}, {}),
    "adam, one by one": (
        {"optimizer": lambda p: Adam(p, amsgrad=True)}, {"optimizer_implementation": "for-loop"},
    ),
    "adam, foreach": ({"optimizer": Adam}, {"optimizer_implementation": "foreach"}),
    "adagrad": ({"optimizer": lambda p: Adagrad(p, lr=0.1)}, {}),
}  # fmt: skip


def skip_if_too_old(use: dict[str, Any]) -> None:
    capability = torch.cuda.get_device_capability()
    if use.get("precision") in ("bf16", "tf32") and capability < (8, 0):
        pytest.skip(f"{use['precision']} needs compute capability 8.0; this GPU has {capability}")


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_is_identical_on_the_gpu(lab: Lab, tell: Tell, plain: Plain, name: str) -> None:
    fields, use = CASES[name]
    skip_if_too_old(use)
    experiment = plain(**fields)
    whole = lab.run(experiment, **use)
    again = lab.run(experiment, **use)
    assert tell.traces(again) == tell.traces(whole)
    parts = lab.new(**use)
    micro_batches = -(-8 // use.get("micro_batch_size", 8))
    for steps in (3, 7):
        lab.go_on(parts, experiment, stop_after=(steps - 1) * micro_batches + 1)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)
    assert tell.state(parts)["generators"]["cuda"].numel() > 0


def test_state_of_the_scaler_is_kept(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new(precision="fp16")
    lab.go_on(folder, plain(**PICTURES), stop_after=5)
    scaler = tell.state(folder)["scaler"]
    # The first scale overflows or not; what matters is that it is told and goes on.
    assert scaler["scale"] > 0 and scaler["_growth_tracker"] <= 5
    lab.go_on(folder, plain(**PICTURES), stop_after=5)
    after = tell.state(folder)["scaler"]
    assert (after["scale"], after["_growth_tracker"]) != (scaler["scale"],
                                                          scaler["_growth_tracker"])  # fmt: skip


def test_data_paths_give_the_same_weights(lab: Lab, tell: Tell, plain: Plain) -> None:
    runs = [lab.run(plain(), data_path=path) for path in ("resident", "sliced")]
    assert tell.traces(runs[0]) == tell.traces(runs[1])


@pytest.mark.parametrize("devices", [("cpu", "cuda"), ("cuda", "cpu")])
def test_run_goes_from_device_to_device(
    lab: Lab, tell: Tell, plain: Plain, devices: tuple[str, str]
) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    # Without Adam, which makes large differences of small ones.
    experiment = plain(model=model, optimizer=lambda p: SGD(p, lr=0.1, momentum=0.9), ema=0.9)
    results = []
    for first, second in (devices, ("cpu", "cpu")):
        folder = lab.new(device=first)
        lab.go_on(folder, experiment, stop_after=5)
        # The change is made, lost with a crash, and made once more as the history tells.
        lab.crash(folder, experiment, 3, device=second)
        lab.go_on(folder, experiment)
        results.append(tell.state(folder)["model"])
    for name, value in results[0].items():
        assert torch.allclose(value, results[1][name], atol=1e-4)


def test_default_recipe_is_that_of_a_gpu(lab: Lab, tell: Tell, plain: Plain) -> None:
    lab.use = {}
    recipe = tell.events(lab.run(plain()), RecipeSet)[0].recipe
    assert recipe.device.value.startswith("cuda:")
    assert recipe.data_path.value == "resident" and "free on the GPU" in recipe.data_path.why
    assert recipe.deterministic.value is False
    assert recipe.optimizer_implementation.value == "fused"
    loaded = tell.events(lab.run(plain(train_data=Points)), RecipeSet)[0].recipe
    assert loaded.loader_pin_memory.value is True and loaded.data_path.value == "loader"
