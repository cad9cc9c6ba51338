"""What a replica tries before it is ready: what is faster is kept, everything else is undone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.recorded_graphs import RecordedGraphs
from torch import Tensor, nn

from flatout.engine.serve.batch_times import seconds_of
from flatout.engine.serve.graph_buckets import GraphBuckets
from flatout.engine.serve.run_model import RunModel
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import ReplicaStart, ValueInput
from flatout.system.scratch_files import ScratchFiles
from flatout.system.store.run_folder import RunFolder


@contextmanager
def warm(folder: RunFolder, **fields: Any) -> Iterator[tuple[RunModel, ServedModel]]:
    """A model after its warm-up, in this process."""
    with ExitStack() as stack:
        start = ReplicaStart(model=str(folder.path), **fields)
        model = RunModel(start, stack.enter_context(ScratchFiles()), stack)
        steps = model.warm_up(start)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                yield model, ended.value
                return


def test_torchs_compiler_is_not_loaded_by_a_replica(run_of: Callable[..., RunFolder]) -> None:
    folder = run_of(name="digits", parameters={"epochs": 1})
    body = msgspec.msgpack.encode(ReplicaStart(model=str(folder.path), num_threads=1))
    command = [sys.executable, "-P", "-X", "importtime", "-m", "flatout.engine.serve.worker"]
    done = subprocess.run(
        command, input=len(body).to_bytes(4, "big") + body, capture_output=True, check=False
    )
    assert done.returncode == 0 and b"ready" in done.stdout
    assert b"torch.nn" in done.stderr and b"torch._inductor" not in done.stderr


VIEWING = """
import torch
from torch import nn
import flatout


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return self.layer(images).view(len(images), -1)


def experiment() -> flatout.Experiment:
    return flatout.Experiment(
        model=Net,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, images: model(images).square().mean(),
        train_data=lambda: torch.rand(40, 3, 8, 8),
        batch_size=20,
        epochs=1,
    )
"""


def test_a_layout_that_the_model_cannot_take_is_undone(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    (tmp_path / "viewing.py").write_text(VIEWING)
    folder = run_of(name="viewing", file=str(tmp_path / "viewing.py"))
    with warm(folder, num_threads=2, fixed={"memory_format": "contiguous"}) as (_, described):
        assert not any("channels_last" in line for line in described.recipe)
    with warm(folder, num_threads=2) as (model, described):
        [tried] = [line for line in described.recipe if "channels_last" in line]
        assert tried.startswith("memory_format=channels_last is not used: RuntimeError: view size")
        assert not model.is_channels_last
        assert described.max_samples in described.batch_s and model.findings == []
        read = model.read(ValueInput(described.example))
        assert model.compute(read.data, 1).shape == (1, 4 * 6 * 6)


def test_numbers_of_threads_are_tried_where_a_replica_has_several(
    run_of: Callable[..., RunFolder],
) -> None:
    folder = run_of(name="digits", parameters={"epochs": 1})
    with warm(folder, num_threads=2) as (_, described):
        [line] = [line for line in described.recipe if line.startswith("num_threads=")]
        assert line.partition(":")[0] == f"num_threads={torch.get_num_threads()}"
        assert described.num_threads == torch.get_num_threads()
    with warm(folder, num_threads=2, fixed={"num_threads": 2}) as (_, described):
        assert torch.get_num_threads() == 2
        assert not any(line.startswith("num_threads=1") for line in described.recipe)


def test_a_slow_call_is_not_repeated_when_it_is_measured() -> None:
    calls: list[int] = []
    assert seconds_of(lambda: calls.append(1), first_s=1.0) == 1.0 and not calls
    assert 0 <= seconds_of(lambda: calls.append(1)) < 0.05
    assert 2 <= len(calls) <= 21


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        scores = self.layers(rows)
        return {"scores": scores, "best": scores.argmax(dim=1)}


def test_graphs_answer_as_the_model_for_any_number_of_samples() -> None:
    torch.manual_seed(0)
    model, graphs = Layers().eval(), RecordedGraphs()
    buckets = GraphBuckets(model, graphs)
    with torch.no_grad():
        for count in (1, 3, 2, 4, 7, 3, 8, 300):
            rows = torch.randn(count, 3)
            expected, found = model(rows), buckets(rows)
            torch.testing.assert_close(found, expected)
            # The next call must not change this answer.
            buckets(torch.randn(count, 3))
            torch.testing.assert_close(found, expected)
    # Of 1, 2, 4 and 8 samples; a larger batch is computed without.
    assert graphs.num_recorded == 4


def test_the_model_is_called_directly_where_no_graph_can_be_recorded() -> None:
    def waiting(rows: Tensor) -> Tensor:
        return rows * float(rows.sum())

    with torch.no_grad(), pytest.raises(ValueError, match="waits for the GPU"):
        GraphBuckets(waiting, RecordedGraphs())(torch.ones(2, 3))
    with torch.no_grad(), pytest.raises(ValueError, match="not tensors"):
        GraphBuckets(lambda rows: ["text"] * len(rows), RecordedGraphs())(torch.ones(2, 3))
    graphs = RecordedGraphs()
    buckets = GraphBuckets(lambda rows: rows + 1, graphs)
    with torch.no_grad():
        buckets(torch.zeros(1, 3))
        graphs.is_short = True
        assert buckets(torch.zeros(5, 3)).tolist() == [[1.0] * 3] * 5
        assert buckets.problem == "there is not enough memory for it"
        assert buckets(torch.ones(1, 3)).tolist() == [[2.0] * 3]
    assert graphs.num_recorded == 1


def test_graphs_are_of_few_shapes() -> None:
    graphs = RecordedGraphs()
    buckets = GraphBuckets(lambda rows: rows + 1, graphs)
    with torch.no_grad():
        for width in range(1, 9):
            assert buckets(torch.zeros(1, width)).shape == (1, width)
    assert graphs.num_recorded == 4
