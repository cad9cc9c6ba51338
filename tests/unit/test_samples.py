"""Samples of the machine: parsed, written, read, summed up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.busy_machine import wait_until

from flatout.monitor.machine_use import machine_use
from flatout.monitor.recorder import is_due
from flatout.monitor.tensorboard import sample_scalars
from flatout.schema.machine_sample import GpuProcess, GpuSample, HostSample, MachineSample
from flatout.system.clock import elapsed_s
from flatout.system.demo_samples import demo_sample
from flatout.system.gpu_sampler import GpuSampler, _SmiReader
from flatout.system.host_sampler import HostSampler
from flatout.system.host_system import (
    Calls,
    Completed,
    LocalSystem,
    RecordedSystem,
    SystemRecording,
)
from flatout.system.machine_sampler import MachineSampler
from flatout.system.own_processes import OwnProcesses
from flatout.system.smi_samples import FIELDS, parse_smi_samples, query_smi
from flatout.system.store.sample_file import SampleFile, SampleTail, read_samples

GIB = 2**30
ROW = (
    "NVIDIA GeForce RTX 3070, GPU-1, 00000000:01:00.0, 97, 60, 8192, 2048, 81, 211.50, 220.00, "
    "1890, 2100, 7001, 45, [N/A], [Unknown Error], 0x0000000000000020"
)


def test_smi_row_is_read_in_base_units_with_reasons() -> None:
    gpus = parse_smi_samples(Completed(stdout=ROW + "\n", exit_code=0), FIELDS)
    assert not isinstance(gpus, str)
    (gpu,) = gpus
    assert (gpu.utilization, gpu.memory_utilization, gpu.fan) == (0.97, 0.6, 0.45)
    assert (gpu.memory_bytes, gpu.used_bytes) == (8 * GIB, 2 * GIB)
    assert (gpu.power_w, gpu.power_limit_w, gpu.clock_hz) == (211.5, 220, 1.89e9)
    assert gpu.throttle_reasons == ("thermal-slowdown",)
    assert gpu.ecc_corrected is None and gpu.unread["ecc_corrected"] == "nvidia-smi: [N/A]"
    assert gpu.unread["ecc_uncorrected"] == "nvidia-smi: [Unknown Error]"
    assert gpu.processes is None and gpu.unread["processes"].startswith("nvidia-smi: ")


def test_smi_rows_are_in_the_order_of_the_bus_and_without_sentences() -> None:
    later = ROW.replace(":01:00.0", ":41:00.0").replace("GPU-1", "GPU-2")
    text = f"{later}\n{ROW}\nUnable to determine the device handle for GPU2: GPU is lost.\n"
    gpus = parse_smi_samples(Completed(stdout=text, exit_code=0), FIELDS)
    assert not isinstance(gpus, str)
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(0, "GPU-1"), (1, "GPU-2")]


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        (Completed(reason="no answer within 5 s"), "nvidia-smi: no answer within 5 s"),
        (Completed(stdout="No devices were found\n", exit_code=6), "nvidia-smi: No devices"),
        (Completed(stdout="", exit_code=0), "nvidia-smi: cannot read its answer ''"),
    ],
)
def test_smi_that_fails_is_a_reason(done: Completed, reason: str) -> None:
    found = parse_smi_samples(done, FIELDS)
    assert isinstance(found, str) and found.startswith(reason)


def test_smi_is_asked_again_without_a_field_that_it_does_not_know() -> None:
    known = tuple(name for name in FIELDS if name != "enforced.power.limit")
    cells = ROW.split(", ")
    row = ", ".join(cells[:9] + cells[10:])

    def argv(fields: tuple[str, ...]) -> tuple[str, ...]:
        return ("smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")

    refusal = 'Field "enforced.power.limit" is not a valid field to query.'
    commands = (
        (argv(FIELDS), Completed(stdout=refusal, exit_code=2)),
        (argv(known), Completed(stdout=row, exit_code=0)),
    )
    recording = SystemRecording(platform="linux", calls=_calls(), commands=commands)
    gpus, fields = query_smi(RecordedSystem(recording), "smi", FIELDS)
    assert fields == known and not isinstance(gpus, str)
    assert gpus[0].power_limit_w is None and gpus[0].power_w == 211.5


def _calls() -> Calls:
    return Calls(python_version="3.12.0", num_threads=8)


def test_machine_without_library_and_program_starts_no_child() -> None:
    system = RecordedSystem(SystemRecording(platform="linux", calls=_calls()))
    sampler = GpuSampler(system, 1.0)
    reading = sampler.take()
    assert reading.source == "none" and "no NVIDIA driver is installed" in (reading.reason or "")
    assert sampler.is_settled and sampler._child is None


def test_host_counts_from_the_second_sample_on(tmp_path: Path) -> None:
    sampler = HostSampler([str(tmp_path)])
    first, second = sampler.take(), None
    for _ in range(200_000):
        pass
    while second is None or second.utilization is None:
        second = sampler.take()
    assert first.utilization is None and "second sample" in first.unread["utilization"]
    assert 0 <= second.utilization <= 1 and len(second.utilizations) == second.num_cpus
    assert first.memory_bytes and first.available_bytes
    assert first.disks[0].total_bytes >= first.disks[0].free_bytes > 0


def test_demo_is_the_same_at_the_same_time_and_says_what_it_is() -> None:
    assert demo_sample(1000.0) == demo_sample(1000.0)
    with MachineSampler("demo") as sampler:
        sampler.wait(120)
        sample = sampler.take()
    assert sample.source == "demo" and len(sample.gpus) == 2
    # The first card reports all that there is.
    names = {
        name for name in GpuSample.__struct_fields__ if name not in ("xid", "xid_at", "unread")
    }
    assert all(getattr(sample.gpus[0], name) is not None for name in names)


def sample(at: float, *gpus: GpuSample) -> MachineSample:
    host = HostSample(utilization=at / 10, memory_bytes=8 * GIB, available_bytes=6 * GIB)
    return MachineSample(at=at, host=host, gpus=gpus, source="nvml")


def test_samples_survive_a_torn_last_line_and_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SampleFile(path) as file:
        file.append(sample(1.0))
        file.append(sample(2.0, GpuSample(index=0, utilization=0.0, processes=())))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"at": "no"}\n' + whole[:20])
    read = list(read_samples(path))
    assert [one.at for one in read] == [1.0, 2.0]
    # Zero and none at all are not unknown.
    assert read[1].gpus[0].utilization == 0.0 and read[1].gpus[0].processes == ()
    with SampleFile(path) as file:
        file.append(sample(3.0))
    assert [one.at for one in read_samples(path)] == [1.0, 2.0, 3.0]
    assert list(read_samples(tmp_path / "none.jsonl")) == []


def test_tail_of_samples_gives_each_once_and_only_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    tail = SampleTail(path)
    assert tail.new_samples() == []
    line = msgspec.json.encode(sample(1.0)) + b"\n"
    path.write_bytes(line + line[:10])
    assert [one.at for one in tail.new_samples()] == [1.0]
    path.write_bytes(line + line)
    assert [one.at for one in tail.new_samples()] == [1.0]
    assert tail.new_samples() == []


def test_recorder_writes_seldomer_as_a_run_grows() -> None:
    def times(start_s: float) -> int:
        written, last_s = 0, start_s - 1000
        for number in range(100):
            now_s = start_s + 2 * number
            if is_due(now_s, now_s - last_s):
                written, last_s = written + 1, now_s
        return written

    assert (times(0), times(3600), times(30_000)) == (100, 20, 4)


def test_processes_of_a_run_are_marked_by_its_worker_and_its_folder() -> None:
    processes = (GpuProcess(pid=11, used_bytes=5), GpuProcess(pid=4_190_007, used_bytes=7))
    marked = OwnProcesses("/runs/a", 11).marked(
        sample(1.0, GpuSample(index=0, processes=processes))
    )
    assert [one.is_own for one in marked.gpus[0].processes or ()] == [True, False]


def _used(utilization: float, reason: str | None, others: int) -> GpuSample:
    return GpuSample(
        index=0, utilization=utilization, memory_bytes=8 * GIB, used_bytes=4 * GIB + others,
        temperature_c=60 + 10 * utilization, power_w=100.0,
        throttle_reasons=("idle", reason) if reason else ("idle",),
        processes=(
            GpuProcess(pid=1, used_bytes=4 * GIB, is_own=True),
            GpuProcess(pid=2, used_bytes=others),
        ),
    )  # fmt: skip


def test_use_of_a_machine_is_medians_and_highest_values() -> None:
    gpus = [_used(0.9, None, 0), _used(1.0, "power-cap", GIB), _used(0.1, None, 2 * GIB)]
    use = machine_use(sample(float(at), gpu) for at, gpu in enumerate(gpus))
    assert use is not None
    (gpu,) = use.gpus
    assert (gpu.utilization, gpu.temperature_c, gpu.power_w) == (0.9, 70, 100)
    assert (gpu.used_bytes, gpu.others_bytes, gpu.is_used) == (6 * GIB, 2 * GIB, True)
    assert gpu.throttle_reasons == ("power-cap",)
    assert (use.num_samples, use.span_s, use.utilization, use.used_bytes) == (3, 2, 0.1, 2 * GIB)
    assert machine_use([]) is None


def test_samples_of_a_long_run_count_by_their_time() -> None:
    busy = [sample(2.0 * second, _used(0.9, None, 0)) for second in range(10)]
    idle = [sample(20.0 + 60.0 * minute, _used(0.1, None, 0)) for minute in range(5)]
    use = machine_use([*busy, *idle])
    assert use is not None and use.gpus[0].utilization == 0.1
    # Eight hours between a stop and a resume are none of the run's.
    late = [sample(30_000.0 + second, _used(0.9, None, 0)) for second in range(300)]
    use = machine_use([*busy, idle[0], *late])
    assert use is not None and use.gpus[0].utilization == 0.9


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_reading_of_nvidia_smi_is_not_the_present_one_for_long(tmp_path: Path) -> None:
    program, row = tmp_path / "nvidia-smi", ", ".join(["1"] * len(FIELDS))
    program.write_text(f"#!/bin/sh\necho '{row}'\n")
    program.chmod(0o755)
    reader = _SmiReader(LocalSystem(), str(program), 5.0)
    began_s = elapsed_s()
    assert reader.take(began_s, "no NVML").gpus == ()
    wait_until(lambda: not reader.is_busy)
    assert len(reader.take(began_s + 1.0, "no NVML").gpus) == 1
    late = reader.take(began_s + 3600.0, "no NVML")
    assert late.gpus == () and "last read 3600 s ago" in (late.reason or "")
    wait_until(lambda: not reader.is_busy)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_nvidia_smi_that_does_not_end_is_started_only_once(tmp_path: Path) -> None:
    program, started = tmp_path / "nvidia-smi", tmp_path / "started"
    program.write_text(f"#!/bin/sh\necho x >> {started}\nread line\n")
    program.chmod(0o755)
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE) as stuck:
        wait_until(started.exists)
        reader = _SmiReader(LocalSystem(), str(program), 5.0)
        assert "has not responded" in (reader.take(elapsed_s(), "no NVML").reason or "")
        wait_until(lambda: not reader.is_busy)
        stuck.kill()
    assert started.read_text() == "x\n"


def test_no_second_child_while_one_is_stuck_in_the_driver() -> None:
    class Stuck:
        code: int | None = None

        def exit_code(self) -> int | None:
            return self.code

        def end(self) -> None:
            pass

    sampler, stuck = GpuSampler(LocalSystem(), 1.0), Stuck()
    sampler._child = stuck  # type: ignore[assignment]
    sampler._fail("NVML: no answer", elapsed_s())
    sampler._tend_child(elapsed_s() + 1000.0)
    assert sampler._child is None
    stuck.code = -9
    sampler._tend_child(elapsed_s() + 1000.0)
    assert sampler._child is not None
    sampler.close()


def test_memory_of_others_is_unknown_where_processes_are_not_listed() -> None:
    use = machine_use([sample(1.0, GpuSample(index=0, used_bytes=GIB))])
    assert use is not None
    assert use.gpus[0].others_bytes is None and use.gpus[0].is_used is None
    scalars = dict(sample_scalars(sample(1.0, GpuSample(index=0, used_bytes=GIB))))
    assert scalars == {
        "machine/cpu_utilization": 0.1,
        "machine/memory_used_bytes": 2 * GIB,
        "machine/gpu0_used_bytes": GIB,
    }
