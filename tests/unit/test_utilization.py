"""What share of a machine's limits a run uses, and how that is said."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout.bench import api as bench_api
from flatout.bench.utilization import utilization
from flatout.cli.render import show, wording
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.class_report import Results
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.framework import Framework
from flatout.schema.machine import Cpu, Gpu, Machine
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run import Run, RunHeader
from flatout.schema.run_lines import FlopsCounted, Started
from flatout.system.store import limits_store

MACHINE = Machine(
    cpu=Cpu(name="A CPU", num_threads=2), gpus=(Gpu(index=0, name="A card", uuid="GPU-1"),),
    frameworks=(Framework(name="torch", version="2.13.0", build="cu130"),),
)  # fmt: skip
FLOPS = FlopsCounted(at=0.0, step=9, flops_per_sample=2e9)


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))


def chosen(**fields: Any) -> Recipe:
    values = dict.fromkeys(Recipe.__struct_fields__) | fields
    return Recipe(**{name: Choice(value=value, why="test") for name, value in values.items()})


def run(device: str = "cuda:0", precision: str = "bf16", ranks: int = 1, **facts: Any) -> Run:
    header = RunHeader(
        id="a-0001", created_at=0.0, flatout_version="1", python="", machine=MACHINE,
        spec=ExperimentSpec(name="a"),
    )  # fmt: skip
    started = Started(
        at=0.0, step=0, pid=1, num_steps=9, num_epochs=1, steps_per_epoch=9, num_parameters=5,
        num_samples=9, unit="images", num_ranks=ranks,
    )  # fmt: skip
    values = {"flops": FLOPS, "recipe": chosen(device=device, precision=precision)} | facts
    return Run(
        folder="/r", header=header, status="finished", step=9, started=started, finished=None,
        validations=(), findings=(), checkpoint_step=None, **values,
    )  # fmt: skip


def keep_limits(device: str = "cuda:0", other_cpus: float = 0.0) -> None:
    state = DeviceState(at="2026-11-24T16:00:00Z", other_cpus=other_cpus)
    row = BenchRow(id="limits/matmul/bf16", label="", unit="flop/s", samples=(0.9e13, 1e13, 1.1e13))
    file = BenchFile(
        kind="limits", flatout="1", machine=MACHINE, began=state, ended=state, rows=(row,)
    )
    limits_store.keep_limits(bench_api._key(MACHINE, device), file)


def test_share_is_of_the_stored_limit_of_the_precision() -> None:
    keep_limits()
    used = utilization(run(), 2000.0)
    assert used is not None and used.flops_per_s == 4e12
    assert used.share == pytest.approx(0.4) and not used.is_limit_doubtful
    assert utilization(run(device="cuda"), 2000.0) == used


@pytest.mark.parametrize(
    "other", [{"precision": "fp32"}, {"device": "cuda:1"}, {"device": "cpu", "ranks": 2}]
)
def test_share_is_unknown_without_that_limit(other: dict[str, Any]) -> None:
    keep_limits()
    keep_limits("cpu")
    used = utilization(run(**other), 2000.0)
    assert used is not None and used.share is None and used.flops_per_s == 4e12


def test_ranks_share_the_limits_of_their_devices() -> None:
    keep_limits()
    used = utilization(run(ranks=4), 2000.0)
    assert used is not None and used.share == pytest.approx(0.1)


def test_nothing_is_known_without_rate_or_count() -> None:
    not_counted = FlopsCounted(at=0.0, step=9, reason="ValueError: a")
    assert utilization(run(), None) is None
    assert utilization(run(flops=None), 1.0) is None
    assert utilization(run(flops=not_counted), 1.0) is None
    assert utilization(run(recipe=None), 1.0) is None


def test_limits_of_a_busy_machine_are_doubtful() -> None:
    keep_limits(other_cpus=2.0)
    used = utilization(run(), 2000.0)
    assert used is not None and used.is_limit_doubtful
    assert "measured while other programs ran" in wording.utilization_text(used)


def shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    file = io.StringIO()
    monkeypatch.setattr(show, "make_console", lambda **_: Console(file=file, width=120))
    show.print_run(run, [], Results(confusions=(), samples=None), [], {})
    return file.getvalue()


def test_show_prints_the_share_or_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(run(recipe=None, utilization=utilization(run(), 2000.0)), monkeypatch)
    assert "speed       2,000 images/s · 4 TFLOP/s\n" in text and "flatout bench limits" in text
    keep_limits()
    text = shown(run(recipe=None, utilization=utilization(run(), 2000.0)), monkeypatch)
    assert "4 TFLOP/s · 40 % of this machine's bf16 limit (MFU)" in text
    assert "flatout bench limits" not in text
    assert "speed" not in shown(run(recipe=None), monkeypatch)
    # Where limits would not give a share either, they are not asked for.
    ranks = utilization(run(device="cpu", ranks=2), 2000.0)
    assert ranks is not None and ranks.share is None
    assert "flatout bench limits" not in shown(run(recipe=None, utilization=ranks), monkeypatch)
