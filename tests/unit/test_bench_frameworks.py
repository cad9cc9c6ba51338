"""`flatout bench run --frameworks`: what is decided without any framework."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.bench import framework_turns, frameworks
from flatout.bench.equality import equality
from flatout.bench.framework_environments import (
    FrameworkPython,
    MissingFramework,
    find_framework,
    parse_frameworks,
)
from flatout.bench.framework_programs import FrameworkWay, ProgramResult, run_program
from flatout.bench.framework_rows import WayRows, WaySamples
from flatout.bench.framework_turns import FrameworksRequest, fastest, num_threads_of
from flatout.bench.framework_verdicts import agreements, warnings_of_results
from flatout.bench.run import BenchRequest
from flatout.bench.run_summary import speed_ratio
from flatout.cli.render.show_bench_frameworks import print_frameworks
from flatout.engine.bench.programs import training_program
from flatout.engine.bench.programs.training_program import Steps, Task
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.framework_protocol import FrameworkData, FrameworkTask, Scored
from flatout.schema.machine import Cpu, Machine
from flatout.system.process_env import framework_environment

MLP = frameworks.workload_of("mlp", "cpu", is_quick=True)
MNIST = frameworks.workload_of("mnist-large", "cpu", is_quick=True)
DATA = FrameworkData(
    torch="2.13", data_file="data.npz", weights_files=("weights-1.npz",),
    layers=(["linear", 20, 128], ["relu"], ["linear", 128, 1]), loss="mse",
    optimizer={"name": "adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}, pixels=None,
    batch_size=64, num_samples=4992, num_parameters=2817, flops_per_step=7e5,
)  # fmt: skip
IS_WINDOWS = sys.platform == "win32"


def result(step_s: float, loss: float = 1.0, accuracy: float | None = None) -> ProgramResult:
    return ProgramResult(
        version="1.0", recipe="jax.jit", fields={}, made_s=2.0,
        score=Scored(loss=loss, accuracy=accuracy), step_s=(step_s,) * 3, busy_cpus=1.0,
        peak_bytes=1000,
    )  # fmt: skip


def rows_for(way: str, losses: Sequence[float], step_s: float = 0.001) -> list[BenchRow]:
    samples = WaySamples(results=[result(step_s, loss) for loss in losses])
    rows = WayRows(workload=MLP, way=way, device="cpu", num_threads=2, limit=7e9)
    return list(rows.measured(DATA, samples))


def file_of(rows: Sequence[BenchRow]) -> BenchFile:
    state = DeviceState(at="2026-11-24T20:00:00Z", other_cpus=0.0)
    return BenchFile(
        kind="run", flatout="1", machine=Machine(cpu=Cpu(name="AMD EPYC", num_threads=2)),
        settings={"num_processes": "3", "effort": "quick"}, began=state, ended=state,
        rows=tuple(rows),
    )  # fmt: skip


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse_frameworks(text)
    return caught.value


# Equal results.


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ((0.981, 0.979, 0.982, 0.978), "equal"),
        ((0.95, 0.951, 0.949, 0.95), "different"),
        ((1.01, 1.009, 1.011, 1.01), "different"),
        ((0.99, 0.94, 1.0, 0.96), "cannot tell"),
    ],
)
def test_equality_with_a_tolerance_of_one_point(second: tuple[float, ...], verdict: str) -> None:
    first = (0.98, 0.981, 0.979, 0.98)
    found = equality(first, second, 0.01)
    assert found.verdict == verdict and found.num_seeds == 4
    assert found.low <= found.difference <= found.high


def test_equality_of_one_seed_cannot_be_told() -> None:
    found = equality([1.0], [1.0], 0.1)
    assert found.verdict == "cannot tell" and found.low == found.high == 0.0
    assert math.isfinite(found.low)


def test_equality_of_identical_results() -> None:
    assert equality([1.0, 2.0], [1.0, 2.0], 0.1).verdict == "equal"


def test_warnings_of_results_name_what_is_not_equal() -> None:
    rows = [*rows_for("plain", (1.0, 1.1, 0.9)), *rows_for("jax", (1.001, 1.1, 0.9))]
    assert list(warnings_of_results(rows)) == []
    rows += rows_for("paddle", (2.0, 2.1, 1.9))
    [warning] = warnings_of_results(rows)
    assert "loss of paddle differs" in warning and "+1.0000 against plain" in warning


def test_agreements_prefer_the_accuracy() -> None:
    rows = []
    for way, accuracy in (("plain", 0.9), ("jax", 0.901)):
        samples = WaySamples(results=[result(0.1, 0.3, accuracy) for _ in range(3)])
        made = WayRows(workload=MNIST, way=way, device="cpu", num_threads=2)
        rows += made.measured(DATA, samples)
    [one] = agreements(rows)
    assert (one.quantity, one.way, one.first) == ("accuracy", "jax", "plain")
    assert one.equality.verdict == "equal" and one.equality.tolerance == 0.01


# Which frameworks, and where.


def test_parse_frameworks_with_an_interpreter() -> None:
    found = parse_frameworks(f"torch, jax={sys.executable}")
    assert found == {"torch": None, "jax": sys.executable}


def test_parse_frameworks_when_one_is_unknown() -> None:
    error = refused("torch,tensorflo")
    assert error.rule == "unknown-framework" and "tensorflow" in (error.fix or "")
    assert refused("").rule == "unknown-framework"
    assert refused("jax=/no/such/python").rule == "python-not-found"


def fake_python(folder: Path, name: str, report: str) -> str:
    """An interpreter that reports these packages."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{report}\nEND\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(IS_WINDOWS, reason="a shell script stands for Python")
def test_find_framework_when_it_is_there_or_not(tmp_path: Path) -> None:
    report = '{"packages": {"keras": {"version": "3.15.1"}, "jax": {"version": "0.10"}}}'
    python = fake_python(tmp_path, "python", report)
    found = find_framework("keras", python, "/own", "cpu")
    assert isinstance(found, FrameworkPython) and found.version == "3.15.1"
    assert [way.variants for way in frameworks.ways_of([found], "/own")] == [("jax",)]
    missing = find_framework("paddle", python, "/own", "cpu")
    assert isinstance(missing, MissingFramework)
    assert missing.fix == "flatout setup paddle --cpu"
    assert find_framework("keras", fake_python(tmp_path, "bad", "no"), "/own", "cuda:0") == (
        MissingFramework(
            framework="keras", reason=f"{tmp_path / 'bad'} does not have it",
            fix="flatout setup tensorflow",
        )
    )  # fmt: skip


def test_ways_of_torch_are_three() -> None:
    torch = FrameworkPython(framework="torch", python="/torch", version="2.13")
    ways = list(frameworks.ways_of([torch], "/own"))
    assert [way.name for way in ways] == ["plain", "torch", "flatout"]
    assert ways[2].python == "/own" and "search" in ways[2].variants
    quick = list(frameworks.ways_of([torch], "/own", is_quick=True))
    assert "search" not in quick[2].variants


@pytest.mark.parametrize(
    ("command", "text", "rule"),
    [
        (BenchRequest(workloads=("bert-large",)), "torch", "workload-not-in-frameworks"),
        (BenchRequest(devices="cpu,cuda"), "torch", "one-device-with-frameworks"),
        (BenchRequest(), "torch,mxnet", "unknown-framework"),
    ],
)
def test_run_frameworks_when_it_is_refused(command: BenchRequest, text: str, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        list(frameworks.run_frameworks(command, text))
    assert caught.value.rule == rule and caught.value.fix


# What is measured.


def test_fastest_ignores_what_failed_or_computes_something_else() -> None:
    tried: dict[str, ProgramResult | str] = {
        "slow": result(0.2), "quick": result(0.1, 1.0001), "wrong": result(0.01, 1.1),
        "broken": "no compiler",
    }  # fmt: skip
    found = fastest(tried, Scored(loss=1.0))
    assert found is not None and found[0] == "quick"
    assert fastest({"wrong": result(0.01, 1.1), "broken": "x"}, Scored(loss=1.0)) is None
    nan = fastest({"nan": result(0.01, math.nan)}, Scored(loss=1.0))
    assert nan is None


def test_way_rows_have_the_contract_of_ids() -> None:
    rows = {row.id.rpartition("/")[2]: row for row in rows_for("jax", (1.0, 1.1, 1.2))}
    assert rows["step_s"].id == "frameworks/mlp/jax/cpu/step_s"
    assert rows["samples_per_s"].samples == pytest.approx((64_000.0,) * 9)
    assert rows["mfu"].samples == pytest.approx((0.1,) * 9)
    assert rows["loss"].samples == (1.0, 1.1, 1.2) and "accuracy" not in rows
    conditions = rows["step_s"].conditions
    assert conditions["recipe"] == "jax.jit" and conditions["flops_per_step"] == "700000"
    assert rows["time_to_steps"].conditions["steps"] == "78"


def test_way_rows_when_a_process_failed() -> None:
    samples = WaySamples(results=[result(0.1)])
    samples.add("its process was killed")
    made = WayRows(workload=MLP, way="jax", device="cpu", num_threads=2)
    rows = list(made.measured(DATA, samples))
    assert rows and not any(row.samples for row in rows)
    assert {row.unread for row in rows} == {"its process was killed"}


def test_num_threads_of_a_machine() -> None:
    assert num_threads_of(Machine(cpu=Cpu(num_cores=8, num_threads=16))) == 8
    assert num_threads_of(Machine(cpu=Cpu(num_cores=8, num_threads=2))) == 2
    assert num_threads_of(Machine()) == 1


def test_framework_environment_is_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    variables = framework_environment("cpu", 2)
    assert variables["OMP_NUM_THREADS"] == variables["PJRT_NPROC"] == "2"
    assert variables["CUDA_VISIBLE_DEVICES"] == "-1" and "PYTHONPATH" not in variables
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    variables = framework_environment("cuda:1", 2, PYTHONPATH="/programs")
    assert variables["CUDA_VISIBLE_DEVICES"] == "6" and variables["PYTHONPATH"] == "/programs"
    assert variables["NVIDIA_TF32_OVERRIDE"] == "0"


# A whole comparison, with a program that computes nothing.

PROGRAM = """
import json, sys
task = json.loads(sys.stdin.readline())
def say(**fields): print(json.dumps(fields), flush=True)
if task["variant"] == "graph":
    say(kind="failed", problem="ValueError: no graph")
    sys.exit(1)
say(kind="ready", version="9.9", recipe=task["variant"], fields={})
say(kind="made", num_steps=task["num_steps"])
say(kind="scored", loss=LOSS, accuracy=None)
say(kind="timed", step_s=[0.001] * task["num_blocks"], busy_cpus=1.0)
say(kind="ended", peak_bytes=5000)
"""


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> framework_turns.Turns:
    """A measurement whose programs are replaced by PROGRAM; paddle computes something else."""
    for name, loss in (("torch", "1.0"), ("tensorflow", "1.0005"), ("paddle", "1.5")):
        program = tmp_path / f"{name}_program.py"
        program.write_text(PROGRAM.replace("LOSS", loss), encoding="utf-8")
    monkeypatch.setattr("flatout.bench.framework_programs._PROGRAMS", tmp_path)
    data = msgspec.structs.replace(DATA, weights_files=("1", "2", "3"))
    monkeypatch.setattr(framework_turns, "written_data", lambda *asked: data)
    request = FrameworksRequest(workloads=("mlp",), frameworks={}, device="cpu", is_quick=True)
    return framework_turns.Turns(sys.executable, Machine(), request, MLP)


def way(name: str, *variants: str) -> FrameworkWay:
    return FrameworkWay(name=name, program=name, python=sys.executable, variants=variants)


def test_turns_measure_what_computes_the_same(turns: framework_turns.Turns) -> None:
    ways = [way("tensorflow", "xla", "graph"), way("paddle", "to_static")]
    values = list(turns.measure(ways))
    rows = {value.id: value for value in values if isinstance(value, BenchRow)}
    assert len(rows["frameworks/mlp/tensorflow/cpu/step_s"].samples) == 9
    assert rows["frameworks/mlp/tensorflow/cpu/step_s"].conditions["recipe"] == "xla"
    unread = rows["frameworks/mlp/paddle/cpu/step_s"].unread or ""
    assert "computes something else: loss 1.5" in unread and "has 1" in unread
    # What it was compared with was not asked for.
    assert not any("/plain/" in id for id in rows)
    assert turns.versions == {"tensorflow": "9.9"}
    done = [value.done for value in values if not isinstance(value, BenchRow)]
    assert done == sorted(done) and done[-1] <= 1.0


def test_run_program_when_it_fails_or_dies(turns: framework_turns.Turns, tmp_path: Path) -> None:
    task = FrameworkTask(
        experiment="mlp", parameters={}, variant="graph", device="cpu", num_threads=1, seed=1,
        data_file="", weights_file="", layers=(), loss="mse", optimizer={}, pixels=None,
        steps_per_call=1, num_steps=1, num_blocks=1, block_s=0.1,
    )  # fmt: skip
    assert run_program(way("tensorflow", "graph"), task) == "ValueError: no graph"
    (tmp_path / "jax_program.py").write_text("import sys\nsys.exit('no module')")
    died = run_program(way("jax", "scan"), task)
    assert died == "its process ended with exit code 1: no module"
    gone = msgspec.structs.replace(way("jax", "scan"), python="/no/such/python")
    assert "No such file" in str(run_program(gone, task)) or IS_WINDOWS


# What is shown.


def test_print_frameworks_shows_ratios_results_and_what_was_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        *rows_for("plain", (1.0, 1.1, 0.9)),
        *rows_for("jax", (1.0, 1.1, 0.9), step_s=0.0005),
        *WayRows(workload=MLP, way="paddle", device="cpu", num_threads=2).unread("not installed"),
    ]
    print_frameworks(file_of(rows), out=None, html=None)
    shown = capsys.readouterr().out
    assert "128,000 samples/s" in shown and "x2" in shown
    assert "equal [+0, +0]" in shown and "loss 1" in shown
    assert "paddle: not installed" in shown and "jax.jit (1.0)" in shown


def test_speed_ratio_when_one_was_not_measured() -> None:
    plain, jax = rows_for("plain", (1.0,) * 3)[0], rows_for("jax", (1.0,) * 3, 0.0005)[0]
    ratio = speed_ratio(plain, jax, file_of([plain, jax]))
    assert ratio is not None and ratio.middle == pytest.approx(2.0)
    assert speed_ratio(None, jax, file_of([jax])) is None


# The programs' own parts.


def task_of(**more: Any) -> Task:
    fields = {
        "experiment": "mlp", "parameters": {}, "variant": "step", "device": "cpu",
        "num_threads": 1, "seed": 1, "data_file": "", "weights_file": "",
        "layers": [["conv", 1, 2, 3], ["flatten", 2, 1, 3], ["linear", 6, 4]],
        "loss": "cross-entropy", "optimizer": {}, "pixels": None, "steps_per_call": 1,
        "num_steps": 1, "num_blocks": 1, "block_s": 0.1, "has_dropout": True, "recipe": {},
    }  # fmt: skip
    return Task(**{**fields, **more})


def test_task_has_the_fields_of_the_protocol() -> None:
    assert set(Task.__dataclass_fields__) == set(FrameworkTask.__struct_fields__)


def test_with_channels_last_gives_the_same_products() -> None:
    import numpy as np

    random = np.random.default_rng(1)
    kernel, bias = random.normal(size=(2, 1, 3, 3)), random.normal(size=2)
    matrix, other = random.normal(size=(4, 6)), random.normal(size=4)
    changed = training_program.with_channels_last(task_of(), [kernel, bias, matrix, other])
    maps_chw = random.normal(size=(2, 1, 3))
    expected = matrix @ maps_chw.reshape(-1)
    assert maps_chw.transpose(1, 2, 0).reshape(-1) @ changed[2] == pytest.approx(expected)
    assert changed[0].shape == (3, 3, 1, 2) and changed[0][0, 1, 0, 1] == kernel[1, 0, 0, 1]


def test_steps_begin_again_after_the_last() -> None:
    steps = Steps(3)
    assert steps.take(2).tolist() == [0, 1]
    assert steps.take(4).tolist() == [2, 0, 1, 2]
    assert steps.take(1).tolist() == [0]


def test_score_of_classes_and_of_numbers() -> None:
    import numpy as np

    logits = np.array([[2.0, 0.0], [0.0, 1000.0]], dtype=np.float32)
    loss, accuracy = training_program.score(task_of(), logits, np.array([0, 0], dtype=np.uint8))
    assert accuracy == 0.5 and loss == pytest.approx((math.log1p(math.exp(-2)) + 1000) / 2)
    task = replace(task_of(), loss="mse")
    assert training_program.score(task, logits, logits + 1) == (1.0, None)


class OwnTime:
    """A clock that only goes on where something sleeps; a tenth of that is work."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return 0.1 * self.now_s


def test_timed_blocks_are_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_program, "time", OwnTime())

    class Sleeper:
        recipe = "sleeps"
        calls: list[int] = []

        def train(self, num_steps: int) -> None:
            self.calls.append(num_steps)
            training_program.time.sleep(0.002 * num_steps)

        def outputs(self) -> Any:
            return [0.0]

        def peak_gpu_bytes(self) -> None:
            return None

    sleeper = Sleeper()
    task = replace(task_of(), num_blocks=3, block_s=0.02, steps_per_call=4)
    step_s, busy_cpus = training_program.timed(task, sleeper)
    assert step_s == pytest.approx([0.002] * 3) and busy_cpus == pytest.approx(0.1)
    assert all(calls % 4 == 0 for calls in sleeper.calls) and sleeper.calls[-1] >= 8
