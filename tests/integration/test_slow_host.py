"""A plain loop that is slowed down on purpose, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flatout.engine.bench.slow_host import SlowLoader, SlowLoop, SlowOperators, launches
from flatout.schema.slow_host import SlowBlock, SlowHostRequest
from flatout.schema.workloads import WORKLOADS, measured_size
from flatout.system.clock import thread_s


@pytest.fixture(scope="module")
def loop() -> SlowLoop:
    size = measured_size(WORKLOADS["mlp"], "cpu", ["cpu"], 1)
    return SlowLoop(SlowHostRequest(device="cpu", size=size))


def test_views_and_memory_launch_nothing() -> None:
    aten = torch.ops.aten
    for operator in (aten.view.default, aten.t.default, aten.empty.memory_format):
        assert not launches(operator)
    for operator in (aten.mm.default, aten.add.Tensor, aten.copy_.default):
        assert launches(operator)


def test_operators_of_the_backward_pass_are_counted() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    mode = SlowOperators(thread_s)
    with mode:
        loss = (weight @ weight).sum()
        num_forward = mode.num_launches
        loss.backward()
    assert num_forward == 2 and mode.num_launches > num_forward


def test_late_batch_waits_by_the_clock_it_was_given() -> None:
    times = iter(range(10))
    loader = SlowLoader(torch.device("cpu"), lambda: next(times))
    loader.delay_s = 3.0
    loader.mark("forward")
    assert next(times) == 0
    loader.mark("data")
    assert next(times) == 5


@pytest.mark.timing
def test_step_is_longer_by_all_its_delays(loop: SlowLoop) -> None:
    ready = loop.ready()
    assert ready.num_launches > 20 and ready.pid == os.getpid()
    delay_s = 5e-3
    is_longer_by(
        delay_s * ready.num_launches, loop,
        SlowBlock(num_steps=2, delay_s=0.0), SlowBlock(num_steps=2, delay_s=delay_s),
    )  # fmt: skip


@pytest.mark.timing
def test_step_is_longer_by_a_late_batch(loop: SlowLoop) -> None:
    loop.ready()
    is_longer_by(0.3, loop, SlowBlock(num_steps=2), SlowBlock(num_steps=2, loader_s=0.3))


def is_longer_by(added_s: float, loop: SlowLoop, rest: SlowBlock, slower: SlowBlock) -> None:
    """Asserts what a delay adds to a step, where it is much longer than the step.

    No difference is taken: next to other tests, the step itself varies by half.
    """
    pairs = [(loop.block(rest).thread_s, loop.block(slower).thread_s) for _ in range(3)]
    before_s, after_s = (min(times) for times in zip(*pairs, strict=True))
    assert before_s < added_s / 2
    assert added_s <= after_s < 2 * added_s


def test_command_gives_one_document(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "flatout", "bench", "slow-host", "mlp", "--quick", "--json",
            "--device", "cpu"]  # fmt: skip
    done = subprocess.run(
        argv, env={**os.environ, "FLATOUT_STATE": str(tmp_path)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["workload"] == "mlp" and len(report["quotas"]) == 2
    # How much is felt is shown by benchmarks/slow_host_check.py: one pair next to other tests is
    # no measurement.
    felt = report["operators"]["felt"]
    assert felt["low"] <= felt["high"]
    assert report["words"]
    assert "process 1 of 1" in done.stderr


def test_unknown_workload_is_refused(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "flatout", "bench", "slow-host", "mpl"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 2 and "unknown-workload" in done.stderr
