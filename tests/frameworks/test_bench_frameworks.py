"""Every framework's program computes the same as a plain loop in torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from flatout.bench.framework_programs import FrameworkWay, ProgramResult, run_program
from flatout.bench.framework_turns import FrameworksRequest, written_data
from flatout.bench.frameworks import workload_of
from flatout.schema.framework_protocol import FrameworkData, FrameworkTask

pytest.importorskip("torch", reason="the data, and what is compared with, come from torch")

WAYS = [
    ("tensorflow", "xla"), ("tensorflow", "graph"), ("jax", "scan"), ("jax", "step"),
    ("paddle", "to_static"), ("paddle", "dynamic"), ("keras", "jax"), ("keras", "tensorflow"),
]  # fmt: skip


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> FrameworkData:
    """The data of `mlp`."""
    request = FrameworksRequest(workloads=("mlp",), frameworks={}, device="cpu", is_quick=True)
    workload = workload_of("mlp", "cpu", is_quick=True)
    return written_data(sys.executable, request, workload, str(tmp_path_factory.mktemp("data")))


# Convolutions, pooling, dropout that is left out, bytes: what `mnist-large` has, on few pixels.
def small_pictures(data: FrameworkData, folder: Path) -> FrameworkData:
    """A small network of all kinds of layers, with made-up pictures."""
    import numpy

    random = numpy.random.default_rng(1)

    def pictures(count: int) -> object:
        return random.integers(0, 256, (count, 1, 12, 12), dtype=numpy.uint8)

    def labels(count: int) -> object:
        return random.integers(0, 10, count, dtype=numpy.uint8)

    numpy.savez(
        folder / "data.npz", train_inputs=pictures(32), train_targets=labels(32),
        validation_inputs=pictures(16), validation_targets=labels(16),
    )  # fmt: skip
    shapes = [(4, 1, 3, 3), (4,), (6, 4, 3, 3), (6,), (20, 96), (20,), (10, 20), (10,)]
    weights = {
        str(number): 0.2 * random.standard_normal(shape, dtype=numpy.float32)
        for number, shape in enumerate(shapes)
    }
    order = numpy.arange(32, dtype=numpy.int32).reshape(4, 8)
    numpy.savez(folder / "weights.npz", order=order, **weights)
    return msgspec.structs.replace(
        data, data_file=str(folder / "data.npz"), weights_files=(str(folder / "weights.npz"),),
        layers=(
            ["conv", 1, 4, 3], ["relu"], ["conv", 4, 6, 3], ["relu"], ["maxpool", 2],
            ["dropout", 0.25], ["flatten", 6, 4, 4], ["linear", 96, 20], ["relu"],
            ["linear", 20, 10],
        ),
        loss="cross-entropy", pixels=(0.1307, 0.3081),
        optimizer={"name": "adadelta", "lr": 1.0, "rho": 0.9, "eps": 1e-6},
    )  # fmt: skip


def run(data: FrameworkData, program: str, python: str, variant: str) -> ProgramResult:
    is_mlp = data.loss == "mse"
    task = FrameworkTask(
        experiment="mlp", parameters={}, variant=variant, device="cpu", num_threads=1, seed=1,
        data_file=data.data_file, weights_file=data.weights_files[0], layers=data.layers,
        loss=data.loss, optimizer=data.optimizer, pixels=data.pixels,
        steps_per_call=2, num_steps=78 if is_mlp else 6, num_blocks=2, block_s=0.02,
        has_dropout=False,
    )  # fmt: skip
    way = FrameworkWay(name=program, program=program, python=python, variants=(variant,))
    result = run_program(way, task)
    if not isinstance(result, ProgramResult):
        pytest.fail(result)
    return result


@pytest.mark.parametrize(("program", "variant"), WAYS)
def test_program_computes_what_a_plain_loop_does(
    program: str,
    variant: str,
    data: FrameworkData,
    tmp_path: Path,
    interpreter_with: Callable[[str], str],
) -> None:
    # Keras is there, too.
    python = interpreter_with("tensorflow" if variant == "tensorflow" else program)
    for one in (data, small_pictures(data, tmp_path)):
        plain = run(one, "torch", sys.executable, "plain")
        result = run(one, program, python, variant)
        assert result.score.loss == pytest.approx(plain.score.loss, rel=1e-3)
        assert result.score.accuracy == plain.score.accuracy
        assert len(result.step_s) == 2 and min(result.step_s) > 0
        assert result.made_s > 0 and result.version
