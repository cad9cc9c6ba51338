"""Files of Windows, WSL2 and Linux of the same PC, joined."""

from __future__ import annotations

import math
import random
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.bench import platforms
from flatout.cli.main import main
from flatout.cli.render.show_platforms import print_plan, print_report
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import LoadedBench
from flatout.schema.bench_platforms import PlatformsReport
from flatout.schema.machine import Cpu, Gpu, Host, Machine, Memory

LAUNCH, MNT, DATA = "limits/launch/operator", "limits/disk/mnt-c/read", "limits/disk/data/read"
STEP = "run/mlp/plain/cuda/step_s"
HOSTS = {
    "Linux": Host(os="linux", release="6.8"), "WSL2": Host(os="linux", wsl=2),
    "Windows": Host(os="windows", release="26100"),
}  # fmt: skip


def row(id: str, middle: float, unit: Any = "s", seed: int = 1) -> BenchRow:
    generator = random.Random(f"{id} {seed}")
    samples = tuple(middle * math.exp(generator.gauss(0, 0.01)) for _ in range(15))
    return BenchRow(
        id=id, label=id.partition("/")[2], unit=unit, samples=samples, is_higher_better=unit != "s"
    )


def bench(platform: str, *rows: BenchRow, kind: Any = "limits", **machine: Any) -> BenchFile:
    facts = {
        "host": HOSTS[platform], "cpu": Cpu(name="i9-10920X", num_threads=24),
        "gpus": (Gpu(index=0, name="RTX 2080 Ti", uuid="GPU-1"),),
        "memory": Memory(total_bytes=32 * 2**30), **machine,
    }  # fmt: skip
    state = DeviceState(at="2026-11-24T16:00:00Z", other_cpus=0.0)
    return BenchFile(
        kind=kind, flatout="1", machine=Machine(**facts), versions={"torch": "2.13.0"},
        settings={"device": "cuda:0", "effort": kind, "num_processes": "3"}, began=state,
        ended=state, rows=rows,
    )  # fmt: skip


def joined(folder: Path, *files: BenchFile, html: Path | None = None) -> PlatformsReport:
    paths = [folder / f"{number}.json" for number in range(len(files))]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(msgspec.json.encode(file))
    return platforms.joined(paths, html)


LINUX = bench("Linux", row(LAUNCH, 5e-6), row(DATA, 3e9, "B/s"))
WSL2 = bench("WSL2", row(LAUNCH, 1e-5, seed=2), row(DATA, 3e9, "B/s", 3), row(MNT, 1e8, "B/s"))
WINDOWS = bench("Windows", row(LAUNCH, 7e-6, seed=4), row(DATA, 2e9, "B/s", 5))


def ratio(found: PlatformsReport, platform: str, what: str) -> float:
    [one] = [part for part in found.parts if (part.platform, part.what) == (platform, what)]
    return one.ratio.middle


def test_platforms_are_compared_with_linux_in_any_order(tmp_path: Path) -> None:
    found = joined(tmp_path, WINDOWS, WSL2, LINUX)
    assert found.platforms == ("Linux", "WSL2", "Windows") and found.missing == ()
    assert found.doubts == ()
    assert ratio(found, "WSL2", "launch latency") == pytest.approx(0.5, rel=0.05)
    assert ratio(found, "Windows", "launch latency") == pytest.approx(5 / 7, rel=0.05)
    assert ratio(found, "Windows", "disk") == pytest.approx(2 / 3, rel=0.05)


def test_windows_drive_is_compared_with_the_own_disk(tmp_path: Path) -> None:
    found = joined(tmp_path, WSL2, LINUX)
    assert ratio(found, "WSL2", "disk/mnt-c/read") == pytest.approx(1 / 30, rel=0.05)
    assert found.missing == ("Windows",)


def test_files_of_a_platform_are_merged(tmp_path: Path) -> None:
    runs = [
        bench(name, row(STEP, middle, seed=seed), kind="run")
        for seed, (name, middle) in enumerate((("Linux", 1.0), ("WSL2", 1.18)))
    ]
    found = joined(tmp_path, LINUX, runs[0], WSL2, runs[1])
    assert found.platforms == ("Linux", "WSL2")
    assert ratio(found, "WSL2", "training") == pytest.approx(1 / 1.18, rel=0.03)
    assert {one.id for one in found.comparison.rows} == {LAUNCH, DATA, STEP}


def test_row_in_two_files_of_a_platform_counts_once() -> None:
    files = [
        LoadedBench(name=name, path=name, file=bench("Linux", row(LAUNCH, middle)))
        for name, middle in (("a", 1.0), ("b", 2.0))
    ]
    found = platforms.merged("Linux", files)
    assert found.problems == (f"b: also in an earlier file, and left out: {LAUNCH}",)
    assert found.file.rows == files[0].file.rows


@pytest.mark.parametrize(
    ("machine", "doubt"),
    [
        ({"cpu": Cpu(name="Ryzen")}, "different CPUs: i9-10920X and Ryzen"),
        ({"gpus": (Gpu(index=0, name="RTX 2080 Ti", uuid="GPU-2"),)}, "different GPUs"),
        ({"gpus": ()}, "different GPUs: RTX 2080 Ti and no GPU"),
        ({"memory": Memory(total_bytes=16 * 2**30)}, "different memory: 32.0 GiB and 16.0 GiB"),
    ],
)
def test_doubt_when_it_is_another_pc(tmp_path: Path, machine: Any, doubt: str) -> None:
    found = joined(tmp_path, LINUX, bench("Windows", row(LAUNCH, 7e-6), **machine))
    assert len(found.doubts) == 1 and doubt in found.doubts[0]


def test_gpu_whose_id_is_unreadable_is_no_doubt(tmp_path: Path) -> None:
    gpus = (Gpu(index=0, name="RTX 2080 Ti", uuid=None),)
    assert joined(tmp_path, LINUX, bench("Windows", row(LAUNCH, 7e-6), gpus=gpus)).doubts == ()


def test_less_memory_under_wsl_is_no_doubt(tmp_path: Path) -> None:
    half = bench("WSL2", row(LAUNCH, 1e-5), memory=Memory(total_bytes=16 * 2**30))
    assert joined(tmp_path, LINUX, half).doubts == ()


def test_one_platform_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        joined(tmp_path, LINUX, LINUX)
    assert caught.value.rule == "bench-one-platform"


def test_report_is_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    found = joined(tmp_path, LINUX, WSL2, WINDOWS, html=path)
    print_report(found, None)
    assert f"flatout bench platforms {tmp_path}/0.json {tmp_path}/1.json" in (
        shown := capsys.readouterr().out
    )
    assert "launch latency" in shown and "disk/mnt-c/read" in shown
    assert "WSL2" in path.read_text(encoding="utf-8")


def test_plan_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    plan = platforms.plan()
    files = [file for one in plan.platforms for file in one.files]
    assert len(set(files)) == 6 and all(file in plan.join for file in files)
    lines = [line for one in plan.platforms for line in one.commands] + [plan.join]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("flatout ")]
    assert len(commands) == 7
    print_plan(plan)
    shown = capsys.readouterr().out.splitlines()
    assert all(f"    {line}" in shown for line in lines)


@pytest.mark.parametrize("line", [
    line for one in platforms.plan().platforms for line in one.commands if "flatout" in line
])  # fmt: skip
def test_commands_of_the_plan_have_only_known_options(line: str) -> None:
    # `--help` last: the options in front of it are parsed, nothing is measured.
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(line)[1:], "--help"])
    assert ended.value.code == 0
