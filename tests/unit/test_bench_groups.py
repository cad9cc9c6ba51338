"""What limits a row, the parts of a step, and how compared bench files are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from flatout.bench import compare as bench_compare
from flatout.bench.groups import group_of
from flatout.cli.render import show_bench_comparison
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import BenchComparison, LoadedBench
from flatout.schema.machine import Machine

STATE = DeviceState(at="2026-11-24T16:00:00Z", other_cpus=0.0)
MATMUL = "limits/matmul/fp32"


def row(id: str, samples: Sequence[float], **fields: Any) -> BenchRow:
    fields = {"label": id, "unit": "s"} | fields
    return BenchRow(id=id, samples=tuple(samples), **fields)


def bench(*rows: BenchRow, kind: str = "limits") -> BenchFile:
    return BenchFile(rows=rows, kind=kind, flatout="1", machine=Machine(), began=STATE, ended=STATE)  # type: ignore[arg-type]


def compared(*files: BenchFile) -> BenchComparison:
    return bench_compare.compare(
        [
            LoadedBench(name=name, path=name, file=file)
            for name, file in zip("ABC", files, strict=False)
        ]
    )


def around(middle: float) -> list[float]:
    return [middle * (1 + 0.001 * number) for number in range(15)]


@pytest.mark.parametrize(
    ("id", "group"),
    [
        ("limits/matmul/bf16", "compute"), ("limits/memory/copy", "memory"),
        ("limits/to-device/pinned", "copies"), ("limits/pinned", "copies"),
        ("limits/launch/graph", "launch latency"), ("limits/loader/start", "data path"),
        ("limits/disk/home/small-files", "disk"), ("limits/process/python", "process start"),
        ("limits/all-reduce/gloo/1MiB", "communication"), ("run/mlp/plain/matmul", "training"),
        ("frameworks/mlp/jax/cuda/step_s", "training"),
        ("", "other"), ("what", "other"),
    ],
)  # fmt: skip
def test_group_of(id: str, group: str) -> None:
    assert group_of(id) == group


def test_groups_decompose_the_difference() -> None:
    first = [
        row(MATMUL, around(100)),
        row("limits/matmul/bf16", around(100)),
        row("limits/disk/a", around(100)),
    ]
    second = [
        row(MATMUL, around(200)), row("limits/matmul/bf16", around(50)),
        row("limits/disk/a", around(100)),
    ]  # fmt: skip
    compute, disk = compared(bench(*first), bench(*second)).groups
    assert (compute.group, compute.num_rows) == ("compute", 2)
    assert (compute.lowest, compute.highest) == ("limits/matmul/bf16", MATMUL)
    assert abs(compute.ratio.middle - 1) < 0.05 and disk.group == "disk"


def test_step_parts_say_where_a_step_became_slower() -> None:
    def step(seconds: float, wait: float) -> BenchFile:
        return bench(
            row("run/mlp/flatout/step_s", [seconds] * 5, unit="s", is_higher_better=False),
            row("run/mlp/flatout/data_wait", [wait] * 5, unit="share", is_higher_better=False),
            kind="run",
        )

    data, rest = compared(step(0.1, 0.1), step(0.2, 0.5)).step_parts
    assert data.part == "data path" and data.seconds == (0.1 * 0.1, 0.2 * 0.5)
    shares = (data.shares[1], rest.shares[1])
    assert [round(share or 0, 9) for share in shares] == [0.9, 0.1]


def test_step_parts_count_waiting_for_data_once() -> None:
    def step(seconds: float, **shares: float) -> BenchFile:
        parts = [
            row(f"run/mlp/flatout/{end}", [share] * 5, unit="share", is_higher_better=False)
            for end, share in shares.items()
        ]
        whole = row("run/mlp/flatout/step_s", [seconds] * 5, unit="s", is_higher_better=False)
        return bench(whole, *parts, kind="run")

    shares = {"data_wait_share": 0.6, "host_share": 0.9}
    parts = compared(step(1.0, **shares), step(2.0, **shares)).step_parts
    assert [part.seconds[0] for part in parts] == pytest.approx([0.6, 0.3, 0.1])
    without = compared(step(1.0), step(2.0, **shares))
    assert not without.step_parts
    assert any(text.startswith("steps not divided into parts: mlp") for text in without.warnings)


def test_measured_conditions_are_no_difference() -> None:
    rows = [
        row("run/mlp/plain/cpu/step_s", around(n), unit="s",
            conditions={"memory_bytes": f"{n}", "batch_size": "64"})
        for n in (1, 2)
    ]  # fmt: skip
    found = compared(*map(bench, rows))
    assert found.rows[0].note is None and not any("same way" in one for one in found.warnings)


@pytest.mark.parametrize("width", [80, 200])
def test_comparison_is_shown_within_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
) -> None:
    speed = "mnist-large, flatout on cpu: speed"
    files = [
        bench(
            row("run/mnist-large/flatout/cpu/samples_per_s", around(n * 1e6), unit="samples/s",
                label=speed),
            row("run/mnist-large/flatout/cpu/energy", (), unit="J/sample", label="energy",
                unread="no counter"),
        )
        for n in (1, 2)
    ]  # fmt: skip
    comparison = compared(*files)
    monkeypatch.setattr(
        show_bench_comparison.show, "make_console", lambda: Console(width=width, soft_wrap=True)
    )
    show_bench_comparison.print_comparison(comparison, "report.html")
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if "samples/s" in line]
    assert max(map(len, lines)) <= width
    assert (speed in lines[0]) == (width == 200) and speed in shown
    # What no file has measured is in the report.
    assert "energy" not in shown and "marked *" not in shown
