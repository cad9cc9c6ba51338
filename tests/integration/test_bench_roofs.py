"""The roofs of this machine, measured with torch on its CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flatout.bench.effort import QUICK
from flatout.bench.limits import _reduced
from flatout.engine.bench import memory_roofs, products
from flatout.engine.bench.blocks import Roof, calls_per_block, measured
from flatout.engine.bench.limits_worker import replies
from flatout.schema.bench import BenchRow
from flatout.schema.limits_protocol import Measured, Measuring, Ready, RoofRequest
from flatout.system.clock import sleep_s

CPU = torch.device("cpu")


def sleeping(num: int) -> None:
    sleep_s(0.002 * num)


def failing(num: int) -> None:
    raise RuntimeError(f"no kernel for {num} calls\nmore lines")


def test_block_is_long_enough() -> None:
    assert 9 <= calls_per_block(sleeping, 0.02) <= 40


def test_measured_when_one_quantity_fails() -> None:
    good = Roof(id="a", label="a", unit="B/s", run=sleeping, work=1e6)
    late = Roof(id="b", label="b", unit="s", run=sleeping)
    bad = Roof(id="c", label="c", unit="B/s", run=failing, work=1e6)
    first, second, third = measured([good, late, bad], 3, 0.005)
    assert len(first.samples) == 3 and 1e8 < max(first.samples) <= 5.1e8
    assert first.is_higher_better and not second.is_higher_better
    assert min(second.samples) >= 0.0019
    assert third.samples == () and third.unread == "no kernel for 2 calls"


@pytest.mark.parametrize("kind", products.kinds())
def test_product_of_each_dtype_is_right_or_has_a_reason(kind: products.Kind) -> None:
    roof = products.product_roof(kind, CPU, 0.001, {f"limits/matmul/{kind}": 64})
    if isinstance(roof, BenchRow):
        assert roof.unread and not roof.samples
        # These work in every build for a CPU.
        assert kind not in ("fp64", "fp32", "bf16")
    else:
        assert roof.work == 2 * 64**3 and roof.conditions == {"size": "64"}
        roof.run(2)


def test_product_that_is_wrong_is_no_roof() -> None:
    a_NN, b_NN = torch.randn(32, 32), torch.randn(32, 32)
    products._check("fp32", a_NN, b_NN, a_NN @ b_NN)
    with pytest.raises(products.ProductWrong):
        products._check("fp32", a_NN, b_NN, b_NN @ a_NN)
    with pytest.raises(products.ProductWrong):
        products._check("bf16", a_NN, b_NN, torch.full((32, 32), torch.nan))


@pytest.mark.parametrize(
    ("call_s", "slow_from", "size"), [(1e-9, 9999, 256), (0.05, 9999, 1024), (0.05, 1024, 512)]
)
def test_size_is_the_largest_that_is_quick_enough_and_not_clearly_slower(
    monkeypatch: pytest.MonkeyPatch, call_s: float, slow_from: int, size: int
) -> None:
    monkeypatch.setattr(products, "_product", lambda kind, device, size: size)
    # At 1e11 products/s 512 takes 1.3 ms, 1024 takes 11 ms and the next one 86 ms.
    monkeypatch.setattr(
        products, "_quickest", lambda size: size**3 / (1e10 if size >= slow_from else 1e11)
    )
    assert products._fastest_size("fp32", CPU, call_s) == size


@pytest.mark.parametrize(
    ("kind", "capability", "reason"),
    [
        ("tf32", (7, 5), "needs compute capability 8.0; this GPU has 7.5"),
        ("float8", (8, 6), "needs compute capability 8.9; this GPU has 8.6"),
        ("float8", (8, 9), None), ("tf32", (8, 0), None), ("bf16", (7, 5), None),
        ("tf32", None, "a mode of NVIDIA GPUs"), ("float8", None, None),
    ],
)  # fmt: skip
def test_dtypes_of_a_gpu_depend_on_its_capability(
    kind: products.Kind, capability: tuple[int, int] | None, reason: str | None
) -> None:
    assert products.not_here(kind, capability) == reason


def pinned(num_blocks: int) -> Iterator[torch.Tensor]:
    for _ in range(num_blocks):
        yield torch.empty(0)
    raise RuntimeError("CUDA error: out of memory")


def test_pinned_limit_when_there_is_one() -> None:
    row = memory_roofs.pinned_row(pinned(3), 16 * 2**30)
    assert row.samples == (3 * 256 * 2**20,)
    none = memory_roofs.pinned_row(pinned(0), 16 * 2**30)
    assert none.samples == () and none.unread == "no memory can be pinned"


def test_pinned_limit_when_none_is_found() -> None:
    row = memory_roofs.pinned_row(pinned(100), 2**30)
    assert row.samples == () and row.unread == "no limit up to 1 GiB; not tried beyond"


def test_worker_measures_everything_once() -> None:
    request = RoofRequest(
        device="cpu", num_blocks=2, block_s=0.002, call_s=0.0001, is_last=True,
        sizes={f"limits/matmul/{kind}": 64 for kind in products.kinds()},
    )  # fmt: skip
    first, *others = replies(request)
    assert isinstance(first, Ready) and first.instructions and first.num_threads >= 1
    rows = [reply.row for reply in others if isinstance(reply, Measured)]
    assert len(rows) == len({row.id for row in rows}) == 18
    assert len([reply for reply in others if isinstance(reply, Measuring)]) == 5
    assert all(bool(row.samples) != bool(row.unread) for row in rows)
    by_id = {row.id: row for row in rows}
    assert len(by_id["limits/memory/triad"].samples) == 2
    assert by_id["limits/to-device/pinned"].unread == "no GPU is measured"
    assert len(by_id["limits/loader/start"].samples) == 2


def test_all_reduce_between_two_processes() -> None:
    bandwidth, latency = _reduced(sys.executable, "gloo", 2, QUICK)
    assert bandwidth.unit == "B/s" and len(bandwidth.samples) == QUICK.num_reduced
    assert latency.unit == "s" and 0 < min(latency.samples) < 1
    assert not latency.is_higher_better and bandwidth.is_higher_better


def test_all_reduce_when_there_is_no_nccl() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    rows = list(_reduced(sys.executable, "nccl", 2, QUICK))
    assert len(rows) == 2 and all(row.unread and not row.samples for row in rows)


def test_limits_are_stored_and_shown_again(tmp_path: Path) -> None:
    source = str(Path(__file__).resolve().parents[2] / "src")
    environment = {**os.environ, "FLATOUT_STATE": str(tmp_path), "PYTHONPATH": source}
    argv = [sys.executable, "-m", "flatout", "bench", "limits", "--device", "cpu", "--quick"]
    out = tmp_path / "limits.json"
    documents = []
    for more in (["--json"], ["--json", "--out", str(out)]):
        done = subprocess.run(
            [*argv, *more], env=environment, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout))
    assert documents[0] == documents[1] == json.loads(out.read_text())
    # The stored result needs no measurement, so there is no progress to show.
    assert done.stderr == ""
    ids = {row["id"] for row in documents[0]["rows"]}
    assert {"limits/matmul/bf16", "limits/all-reduce/gloo/latency", "limits/process/torch"} <= ids
