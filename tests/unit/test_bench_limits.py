"""The limits of a machine: what is decided without torch, and children that misbehave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flatout.bench import api
from flatout.bench.compare import compare
from flatout.bench.disk_rows import MeasuredFolder, _each_once, rows_from
from flatout.bench.effort import FULL, QUICK
from flatout.bench.limits import (
    Doing,
    error_from,
    is_busy,
    measure_limits,
    uuid_of,
    warnings_of,
)
from flatout.bench.peaks import shipped_peaks, with_peak
from flatout.bench.read_files import loaded
from flatout.cli.render.show_bench import interval_text, print_limits
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.finding import finding_from
from flatout.schema.framework import Framework
from flatout.schema.limits_protocol import PINNED, AllReduceRequest, Measured, Measuring, Ready
from flatout.schema.machine import Cpu, Gpu, Machine
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.tuning import Interval
from flatout.system import device_state, disk_speed
from flatout.system.command import Completed
from flatout.system.probes.disks import parse_mountinfo
from flatout.system.process_env import plain_environment
from flatout.system.store import limits_store

AT = "2026-11-24T16:00:00Z"
CPU = Machine(cpu=Cpu(name="AMD EPYC", num_threads=2))
H100 = "NVIDIA H100 80GB HBM3"
GPU = Machine(
    cpu=Cpu(name="AMD EPYC", num_threads=16),
    gpus=(Gpu(index=0, name=H100, uuid="GPU-1"), Gpu(index=1, name=H100, uuid="GPU-2")),
    frameworks=(Framework(name="torch", version="2.13.0", build="cu130"),),
)


def row(id: str, *samples: float, **more: Any) -> BenchRow:
    return BenchRow(**{"id": id, "label": id, "unit": "flop/s", "samples": samples} | more)


def limits_file(*rows: BenchRow, other_cpus: float = 0.0, effort: str = "full") -> BenchFile:
    state = DeviceState(at=AT, other_cpus=other_cpus)
    return BenchFile(
        kind="limits", flatout="1", machine=CPU, settings={"effort": effort, "device": "cpu"},
        began=state, ended=state, rows=rows,
    )  # fmt: skip


# Peaks.


def test_peaks_are_for_exact_names_only() -> None:
    bf16 = row("limits/matmul/bf16", 7e14)
    assert with_peak(bf16, H100).vendor == 989.5e12
    for name in ("NVIDIA H100", "H100 80GB HBM3", "NVIDIA GeForce RTX 4090 Laptop GPU", "", None):
        assert with_peak(bf16, name) == bf16


def test_peak_is_of_the_same_quantity() -> None:
    peak = with_peak(row("limits/memory/triad", 3e12, unit="B/s"), H100)
    assert peak.vendor == 3.35e12 and "hpctech" in (peak.vendor_source or "")
    for id in ("limits/launch/operator", "limits/pinned", "x"):
        assert with_peak(row(id, 1.0), H100).vendor is None


def test_every_peak_has_a_source() -> None:
    for peak in shipped_peaks().values():
        assert peak.source.startswith("https://") and peak.quotes
        values = [peak.memory, peak.fp64, peak.fp32, peak.tf32, peak.bf16, peak.float8, peak.int8]
        assert [value for value in values if value is not None]
        assert all(value is None or 1e10 < value < 1e17 for value in values)


# What is decided.


@pytest.mark.parametrize(
    ("machine", "text", "device"),
    [
        (CPU, "auto", "cpu"), (GPU, "auto", "cuda:0"), (GPU, "cuda", "cuda:0"),
        (GPU, "cuda:1", "cuda:1"), (GPU, "cpu", "cpu"),
        (msgspec.structs.replace(GPU, frameworks=()), "auto", "cpu"),
    ],
)  # fmt: skip
def test_device_is_resolved(machine: Machine, text: str, device: str) -> None:
    assert api.resolved_device(machine, text) == device


def test_interval_spans_all_samples_when_busy() -> None:
    one = row("a", 10.0, 10.1, 9.9, 10.0, 10.0, 10.1, 9.9, 10.0, 10.0, 2.0)
    calm, busy = (
        api.interval_of(one, is_busy=is_busy, num_processes=0) for is_busy in (False, True)
    )
    assert calm is not None and busy is not None
    assert calm.low > 9 and (busy.low, busy.middle) == (2.0, calm.middle)
    assert busy.high >= 10.1


def test_interval_is_none_when_measured_once() -> None:
    for one in (row("a", 1.0), row("a", 0.0, 1.0)):
        assert api.interval_of(one, is_busy=False, num_processes=1) is None


def test_interval_is_wider_when_processes_differ() -> None:
    one = row("a", *[10.0, 10.1, 10.0, 10.1] * 2, *[12.0, 12.1, 12.0, 12.1] * 2)
    alone, four = (api.interval_of(one, is_busy=False, num_processes=number) for number in (1, 4))
    assert alone is not None and four is not None
    assert four.high - four.low > alone.high - alone.low


def test_stored_limits_stay_when_the_new_ones_are_worse_evidence() -> None:
    calm, busy = limits_file(), limits_file(other_cpus=1.5)
    assert is_busy(busy) and not is_busy(calm)
    assert api.why_kept(None, busy) is None
    assert "other programs" in (api.why_kept(calm, busy) or "")
    assert api.why_kept(busy, busy) is not None
    assert api.why_kept(busy, calm) is None and api.why_kept(calm, calm) is None
    quick = limits_file(effort="quick")
    assert "--quick" in (api.why_kept(calm, quick) or "")
    assert api.why_kept(busy, quick) is None and api.why_kept(quick, calm) is None


def test_warnings_name_load_throttling_battery_and_users() -> None:
    state = DeviceState(at=AT, other_cpus=9.0, throttles=("power-cap",), is_on_battery=True)
    gpu = Gpu(index=0, num_processes=2)
    machine = msgspec.structs.replace(GPU, gpus=(gpu,))
    warnings = list(warnings_of(DeviceState(at=AT, other_cpus=0.0), state, machine, "cuda:0"))
    words = ("9.0 of 16 CPUs", "power-cap", "battery", "using the GPU")
    assert len(warnings) == 4
    assert all(word in text for word, text in zip(words, warnings, strict=True))
    calm = DeviceState(at=AT)
    assert list(warnings_of(calm, calm, machine, "cpu")) == []


def test_known_limits_when_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    assert api.known_limits(GPU, "auto") is None
    key = api._key(GPU, "cuda:0")
    limits_store.keep_limits(key, limits_file(row("limits/matmul/bf16", 1.0, 3.0, 2.0)))
    known = api.known_limits(GPU, "auto")
    assert known is not None
    assert api.known_limit(known, "limits/matmul/bf16") == 2.0
    assert api.known_limit(known, "limits/matmul/fp32") is None
    # Another device, driver or torch has other limits.
    assert api.known_limits(GPU, "cuda:1") is None and api.known_limits(GPU, "cpu") is None
    newer = msgspec.structs.replace(GPU, driver="999")
    assert api.known_limits(newer, "auto") is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"bench_version": 1}', b"\xff\xfe"])
def test_damaged_limits_are_measured_again(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    path = limits_store.limits_path("a")
    path.parent.mkdir()
    path.write_bytes(content)
    assert limits_store.recall_limits("a") is None


def test_limits_of_another_version_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    limits_store.keep_limits("a", msgspec.structs.replace(limits_file(), bench_version=99))
    assert limits_store.recall_limits("a") is None


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:1x", "", "cuda:-1", "cuda:99999"])
def test_limits_when_the_device_is_no_device(cli: Any, device: str) -> None:
    done = cli.run("bench", "limits", "--device", device, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["rule"] == "bad-device"


def test_limits_when_the_file_cannot_be_written(cli: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "missing" / "x.json")
    done = cli.run("bench", "limits", "--device", "cpu", "--out", out, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["rule"] == "bench-report-not-writable"


def test_slow_host_takes_one_device(cli: Any) -> None:
    done = cli.run("bench", "slow-host", "mlp", "--device", "cpu,cuda", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["rule"] == "bad-device"


def test_plain_loop_counts_gpus_as_flatout_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert plain_environment()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert plain_environment()["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_load_widens_rows_of_the_cpu_only() -> None:
    devices = ("cpu", "cuda:0")
    base, busy = (
        limits_file(
            *(row(one, *[rate] * 4, conditions={"device": one}) for one in devices),
            other_cpus=other_cpus,
        )
        for rate, other_cpus in ((100.0, 0.0), (60.0, 1.0))
    )
    found = compare([loaded(base, "a", "a.json"), loaded(busy, "b", "b.json")])
    changes = [one.values[1].change for one in found.rows if one.values[1] is not None]
    cpu, gpu = (one.ratio.high for one in changes if one is not None)
    assert cpu > 1.1 and gpu < 0.8


# Disks.


def test_disk_that_folders_share_is_measured_once(tmp_path: Path) -> None:
    places = [("data", tmp_path), ("home", tmp_path), ("mnt-c", tmp_path / "gone")]
    first, second, third = _each_once(places)
    assert first.unread is None
    assert second.unread == "on the disk of the data folder"
    assert third.unread == "No such file or directory"


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (Completed(reason="no answer within 60 s"), "no answer within 60 s"),
        (Completed(exit_code=1, stderr="Permission denied\n"), "Permission denied"),
        (Completed(exit_code=-7), "exit code -7"),
        (Completed(exit_code=0, stdout="{"), "cannot read the answer '{'"),
    ],
)
def test_disk_rows_when_the_child_fails(done: Completed, reason: str) -> None:
    rows = rows_from(MeasuredFolder(name="data", path=Path()), done)
    assert len(rows) == 4 and {one.unread for one in rows} == {reason}


def test_disk_rows_when_files_stay_in_the_cache() -> None:
    text = '{"write": [1e9, 2e9], "small_write": [100.0]}'
    rows = rows_from(MeasuredFolder(name="home", path=Path()), Completed(exit_code=0, stdout=text))
    assert [one.id for one in rows if one.samples] == [
        "limits/disk/home/write", "limits/disk/home/small-write",
    ]  # fmt: skip
    assert all("cache" in one.unread for one in rows if one.unread)


def test_disk_speed_leaves_nothing_behind(tmp_path: Path) -> None:
    samples = disk_speed.measure(str(tmp_path), 2**20, 4, 2)
    is_read = disk_speed.why_kept_in_cache(str(tmp_path)) is None
    expected = {"write", "small_write"} | ({"read", "small_read"} if is_read else set())
    assert samples.keys() == expected
    assert all(len(values) == 2 and min(values) > 0 for values in samples.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's mountinfo")
def test_reads_from_a_cache_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, is_kept in (("9p", True), ("zfs", True), ("nfs4", True), ("ext4", False)):
        mount = parse_mountinfo(f"1 1 0:1 / {tmp_path} rw - {kind} C: rw")
        monkeypatch.setattr(disk_speed, "parse_mountinfo", lambda _, found=mount: found)
        samples = disk_speed.measure(str(tmp_path), 2**20, 2, 1)
        assert ("read" not in samples and "small_read" not in samples) == is_kept
        assert (disk_speed.why_kept_in_cache(str(tmp_path)) is not None) == is_kept


def test_disk_speed_when_there_is_no_room(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="MiB are free"):
        disk_speed.measure(str(tmp_path), 2**60, 1, 1)


# The state of a GPU.


class NvmlError(Exception):
    pass


def refused(*_: Any) -> Any:
    raise NvmlError("Not Supported")


def test_device_state_when_some_fields_are_not_reported() -> None:
    nvml = SimpleNamespace(
        NVMLError=NvmlError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda _, which: 1980 if which == 1 else refused(),
        nvmlDeviceGetTemperature=lambda *_: 41,
        nvmlDeviceGetPowerUsage=lambda _: 120500,
        nvmlDeviceGetEnforcedPowerLimit=refused,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0b101,
    )  # fmt: skip
    state = device_state.parse_state(json.dumps(device_state.read_state(nvml, "GPU-1")))
    assert state == {
        "clock_hz": 1980e6, "memory_clock_hz": None, "temperature_c": 41.0, "power_w": 120.5,
        "power_limit_w": None, "throttles": ("power-cap",),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "NVML: driver not loaded"])
def test_device_state_when_nvml_fails(text: str) -> None:
    assert device_state.parse_state(text).get("clock_hz") is None
    assert device_state.device_state(None, 0.5).other_cpus == 0.5


def test_state_under_load_is_of_samples_in_which_the_gpu_computed() -> None:
    idle = {"clock_hz": 3e8, "temperature_c": 30.0, "throttles": ["idle"], "used_share": 0.0}
    busy = [
        {"clock_hz": clock_hz, "temperature_c": 60.0, "throttles": throttles, "used_share": 0.9}
        for clock_hz, throttles in ((2e9, []), (1.5e9, ["power-cap"]), (1.9e9, []))
    ]
    state = device_state.loaded_state([idle, *busy, idle, idle, idle])
    assert state == {"clock_hz": 1.9e9, "temperature_c": 60.0, "throttles": ("power-cap",)}
    assert device_state.loaded_state([idle]) == {"throttles": ()}


def test_gpu_is_the_one_that_cuda_is_let_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen, uuids in (
        (None, ["GPU-1", "GPU-2"]), ("1", ["GPU-2", None]), ("1,0", ["GPU-2", "GPU-1"]),
        ("GPU-2", ["GPU-2", None]), ("-1", [None, None]), ("", [None, None]),
    ):  # fmt: skip
        if chosen is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert [uuid_of(GPU, device) for device in ("cuda:0", "cuda:1")] == uuids
        assert uuid_of(GPU, "cpu") is None


# Children.

pytest_posix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs a shell script as an interpreter"
)


def fake_python(folder: Path, *replies: msgspec.Struct, code: int = 0) -> str:
    """An interpreter that reads a request, gives these replies, and ends."""
    lines = "".join(f"{msgspec.json.encode(reply).decode()}\n" for reply in replies)
    (folder / "replies").write_text(lines)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nread request\ncat "{folder}/replies"\nexit {code}\n')
    path.chmod(0o755)
    return str(path)


def measured(python: str, machine: Machine, device: str) -> BenchFile:
    effort = msgspec.structs.replace(
        QUICK, num_processes=2, stream_bytes=2**20, num_small_files=2, num_disk=1
    )
    values = list(measure_limits(python, machine, device, effort))
    assert all(isinstance(value, Doing) for value in values[:-1])
    shares = [value.done for value in values if isinstance(value, Doing)]
    assert shares == sorted(shares) and shares[-1] < 1
    assert isinstance(values[-1], BenchFile)
    return values[-1]


@pytest_posix
def test_limits_of_two_processes_are_joined(tmp_path: Path) -> None:
    ready = Ready(torch="2.13.0", num_threads=4, num_gpus=1, name=H100, uuid="GPU-1")
    bf16 = row("limits/matmul/bf16", 7e14, 7.1e14, conditions={"size": "8192"})
    unread = row("limits/pinned", unread="not tried")
    python = fake_python(tmp_path, ready, *(Measured(row=one) for one in (bf16, unread)))
    file = measured(python, GPU, "cuda:0")
    rows = {one.id: one for one in file.rows}
    assert rows["limits/matmul/bf16"].samples == (7e14, 7.1e14, 7e14, 7.1e14)
    assert rows["limits/matmul/bf16"].vendor == 989.5e12
    assert rows["limits/matmul/bf16"].conditions == {"device": "cuda:0", "size": "8192"}
    assert rows["limits/pinned"].unread == "not tried"
    assert rows["limits/all-reduce/nccl/latency"].unread == "there is one GPU"
    # It has replied with something else.
    assert rows["limits/all-reduce/gloo/latency"].unread == "exit code 0"
    assert file.settings["name"] == H100 and file.machine.python is None
    assert msgspec.json.decode(msgspec.json.encode(file), type=BenchFile) == file


@pytest_posix
def test_other_rows_stay_when_pinning_ends_the_process(tmp_path: Path) -> None:
    ready = Ready(torch="2.13.0", num_threads=4, num_gpus=1, name=H100, uuid="GPU-1")
    bf16 = Measured(row=row("limits/matmul/bf16", 7e14))
    python = fake_python(tmp_path, ready, bf16, Measuring(what=PINNED), code=137)
    rows = {one.id: one for one in measured(python, GPU, "cuda:0").rows}
    assert rows["limits/matmul/bf16"].samples == (7e14, 7e14)
    assert "while it pinned" in (rows["limits/pinned"].unread or "")


@pytest_posix
def test_limits_when_the_process_dies(tmp_path: Path) -> None:
    python = fake_python(tmp_path, code=9)
    with pytest.raises(RunFailed) as caught:
        measured(python, CPU, "cpu")
    assert caught.value.rule == "bench-worker-died"


@pytest_posix
def test_limits_when_the_device_is_not_here(tmp_path: Path) -> None:
    problem = UsageError("device-not-here", "no such device.", fix="use cpu", because="no GPU")
    failure = ProcessFailed(finding=finding_from(problem), exit_code=2)
    with pytest.raises(UsageError) as caught:
        measured(fake_python(tmp_path, failure), GPU, "cuda:1")
    assert (caught.value.rule, caught.value.fix) == ("device-not-here", "use cpu")


def test_error_from_when_it_is_our_own_fault() -> None:
    finding = finding_from(FlatoutError("internal-error", "KeyError", fix="x"))
    error = error_from(finding, 3, "Traceback")
    assert isinstance(error, RunFailed) and error.printed == "Traceback"


def test_requests_survive_the_pipe() -> None:
    request = AllReduceRequest(
        backend="gloo", rank=1, world_size=2, path="x", num_blocks=1, block_s=0.1
    )
    assert msgspec.json.decode(msgspec.json.encode(request), type=AllReduceRequest) == request
    assert FULL.settings["effort"] == "full" and QUICK.settings["block_s"] == "0.03"


# What is shown.


@pytest.mark.parametrize(
    ("interval", "unit", "text"),
    [
        (Interval(middle=8.2e-6, low=8.1e-6, high=1.2e-5), "s", "[8.1, 12]"),
        (Interval(middle=9e-4, low=9e-4, high=1.5e-3), "s", "[900 us, 1.5 ms]"),
        (Interval(middle=9.9e11, low=9.8e11, high=1.1e12), "flop/s", "[980 G, 1.1 T]"),
        (Interval(middle=4512.0, low=4100.0, high=4700.0), "file/s", "[4,100, 4,700]"),
    ],
)
def test_interval_text(interval: Interval, unit: str, text: str) -> None:
    assert interval_text(interval, unit) == text


def test_limits_are_shown_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (
        with_peak(row("limits/matmul/bf16", 7e14, 7.1e14, 7.05e14, label="product bf16"), H100),
        row("limits/disk/data/small-read", 987654.0, 1034567.0, 1000000.0, unit="file/s",
            label="disk data, small files read"),
        row("limits/process/python", 0.03, unit="s", label="Python start"),
        row("limits/all-reduce/nccl/latency", unread="there is one GPU", label="all-reduce nccl"),
    )  # fmt: skip
    file = msgspec.structs.replace(limits_file(*rows), warnings=("busy",))
    print_limits(api.Limits(file=file, is_new=True, path="/x", kept="the stored limits stay"))
    shown = capsys.readouterr().out
    table = shown[shown.index("median") - 60 : shown.index("unread")].splitlines()
    assert max(map(len, table)) <= 80
    assert "71 % of 990 T" in shown and "measured once" in shown
    assert "all-reduce nccl: there is one GPU" in shown
    assert "hpctech" in shown and "the stored limits stay" in shown
