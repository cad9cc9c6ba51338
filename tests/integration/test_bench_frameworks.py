"""What frameworks are given, and the three ways of torch: without any other framework."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from flatout.bench.framework_programs import FrameworkWay, ProgramResult, run_program
from flatout.bench.frameworks import workload_of
from flatout.engine.bench.framework_data import full_batches, layers_of, order_of, write_data
from flatout.engine.runtime.rng import sample_order
from flatout.schema.framework_protocol import FrameworkData, FrameworkDataRequest, FrameworkTask


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FrameworkData:
    """The data of `mlp` with two seeds."""
    folder = tmp_path_factory.mktemp("data")
    workload = workload_of("mlp", "cpu", is_quick=True)
    return write_data(
        FrameworkDataRequest(
            experiment=workload.experiment, parameters={}, device="cpu", num_samples=1000,
            num_validation=100, seeds=(1, 2), num_epochs=2, folder=str(folder),
        )
    )  # fmt: skip


def test_written_data_is_of_full_batches_with_weights_of_each_seed(data: FrameworkData) -> None:
    assert data.num_samples == 960 and data.num_parameters == 20 * 128 + 128 + 128 + 1
    assert data.layers == (["linear", 20, 128], ["relu"], ["linear", 128, 1])
    assert data.optimizer["name"] == "adam" and data.loss == "mse" and data.pixels is None
    # Two products forward, and two each backward but for the input's gradient.
    assert data.flops_per_step == pytest.approx(2 * 64 * (2 * 2560 + 3 * 128), rel=0.01)
    with np.load(data.data_file) as arrays:
        assert arrays["train_inputs"].shape == (960, 20)
        assert arrays["validation_targets"].shape == (100, 1)
    first, second = (np.load(file) for file in data.weights_files)
    assert first["order"].shape == (30, 64) and first["0"].shape == (128, 20)
    assert not np.array_equal(first["0"], second["0"])
    assert sorted(first["order"][:15].reshape(-1)) == list(range(960))


def test_order_is_that_of_flatouts_own_feed() -> None:
    order = order_of(12, 4, 7, 2)
    expected = [*sample_order(12, 7, 0, True).tolist(), *sample_order(12, 7, 1, True).tolist()]
    assert order.reshape(-1).tolist() == expected


def test_full_batches_when_there_are_more_samples() -> None:
    assert full_batches(5000, 64, None) == 4992
    assert full_batches(5000, 64, 100) == 64


def test_layers_of_a_network_with_pictures() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(18, 4),
    )  # fmt: skip
    assert list(layers_of(model, torch.zeros(1, 1, 8, 8))) == [
        ["conv", 1, 2, 3], ["relu"], ["maxpool", 2], ["dropout", 0.25], ["flatten", 2, 3, 3],
        ["linear", 18, 4],
    ]  # fmt: skip
    with pytest.raises(TypeError, match="Tanh"):
        list(layers_of(nn.Sequential(nn.Tanh()), torch.zeros(1)))


def test_ways_of_torch_compute_the_same(data: FrameworkData) -> None:
    results = {}
    for program, variant in (("torch", "plain"), ("torch", "eager"), ("flatout", "recipe")):
        way = FrameworkWay(
            name=program, program=program, python=sys.executable, variants=(variant,)
        )
        task = FrameworkTask(
            experiment="mlp", parameters={}, variant=variant, device="cpu", num_threads=1, seed=1,
            data_file=data.data_file, weights_file=data.weights_files[0], layers=data.layers,
            loss=data.loss, optimizer=data.optimizer, pixels=None, steps_per_call=3, num_steps=18,
            num_blocks=2, block_s=0.02, has_dropout=False,
        )  # fmt: skip
        found = run_program(way, task)
        assert isinstance(found, ProgramResult), found
        results[program, variant] = found
    losses = [found.score.loss for found in results.values()]
    # flatout's own order of samples and initial weights are those that it has written.
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    own = results["flatout", "recipe"]
    assert own.fields["precision"] == "fp32" and own.recipe.startswith("flatout: ")
    assert own.fields["num_threads"] == 1
    assert own.peak_bytes is not None and own.peak_bytes > 2**20


def test_program_when_the_data_is_gone(data: FrameworkData, tmp_path: Path) -> None:
    way = FrameworkWay(name="torch", program="torch", python=sys.executable, variants=("plain",))
    task = FrameworkTask(
        experiment="mlp", parameters={}, variant="plain", device="cpu", num_threads=1, seed=1,
        data_file=str(tmp_path / "none.npz"), weights_file="", layers=data.layers, loss="mse",
        optimizer=data.optimizer, pixels=None, steps_per_call=1, num_steps=1, num_blocks=1,
        block_s=0.02,
    )  # fmt: skip
    assert "FileNotFoundError" in str(run_program(way, task))
    assert msgspec.json.decode(msgspec.json.encode(task), type=FrameworkTask) == task
