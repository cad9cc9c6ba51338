"""What `flatout watch` makes of samples and command lines: pure functions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.cli.render.show_watch import live_text
from flatout.monitor.time_outside import Totals, cpus_between, interval_s, program_stem
from flatout.monitor.watch import WatchTick, _SampleLog
from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.watched import ProcessTreeSample, WatchSample
from flatout.system.disk_wait import parse_pressure
from flatout.system.host_system import Unread
from flatout.system.program_python import installed_in, python_of


def sample(at: float, *, cpu_s: float = 0.0, host: float | None = None, **gpu: Any) -> WatchSample:
    """A moment with one GPU, if something is said of it."""
    return WatchSample(
        at=at,
        host=HostSample(utilization=host, num_cpus=4, memory_bytes=100),
        gpus=(GpuSample(index=0, **gpu),) if gpu else (),
        program=ProcessTreeSample(num_processes=1, cpu_s=cpu_s, rss_bytes=int(at) + 1),
    )


def outside(totals: Totals, **known: Any) -> Any:
    """The sums, with nothing from the operating system but what is given."""
    given = {"cpu_s": None, "rss_bytes": None, "disk_wait": None, "unread": {}}
    return totals.outside(10.0, **{**given, **known})


def test_means_are_weighted_by_time() -> None:
    totals = Totals()
    totals.take(sample(0.0, utilization=1.0, used_bytes=5))
    totals.take(sample(1.0, host=0.5, utilization=0.0, used_bytes=9))
    totals.take(sample(10.0, host=0.1, utilization=1.0, used_bytes=7))
    time = outside(totals)
    assert time.gpus[0].utilization == pytest.approx(0.9)
    assert time.gpus[0].used_bytes == 9
    assert time.host_utilization == pytest.approx((0.5 * 1 + 0.1 * 9) / 10)
    assert time.rss_bytes == 11


def test_the_larger_count_of_processor_time_wins() -> None:
    totals = Totals()
    totals.take(sample(0.0, cpu_s=3.0))
    assert outside(totals, cpu_s=2.0).cpu_s == 3.0
    assert outside(totals, cpu_s=5.0).cpus == 0.5


def test_what_is_unknown_has_a_reason() -> None:
    time = outside(Totals(), unread={"disk_wait": "not counted"})
    assert (time.cpu_s, time.cpus, time.rss_bytes, time.disk_read_bytes) == (None, None, None, None)
    assert {"disk_read_bytes", "host_utilization", "gpus", "disk_wait"} <= set(time.unread)


def test_samples_become_fewer() -> None:
    assert [interval_s(at) for at in (0.0, 0.7, 5.0, 900.0)] == [0.5, 0.7, 2.0, 2.0]
    assert interval_s(9000.0) == 10.0


def test_cpus_between_samples() -> None:
    assert cpus_between(sample(0.0, cpu_s=1.0), sample(2.0, cpu_s=4.0)) == 1.5
    assert cpus_between(sample(1.0), sample(1.0)) is None


def sampler_of_a_hot_gpu(at: float) -> Any:
    """Gives one sample."""
    gpu = GpuSample(index=0, utilization=0.9, throttle_reasons=("thermal-slowdown",))
    sample = MachineSample(at=at, host=HostSample(), gpus=(gpu,), source="nvml")
    return SimpleNamespace(take=lambda: sample)


def test_an_alarm_is_kept_once_although_samples_are_rare(tmp_path: Path) -> None:
    unread: dict[str, str] = {}
    log = _SampleLog(tmp_path / "samples.jsonl", unread)
    for at in (0.0, 10.0, 20.0, 30.0):
        log.taken(sampler_of_a_hot_gpu(at), None)
    raised = [(alarm.at, alarm.subject, alarm.finding.rule) for alarm in log.raised]
    assert raised == [(20.0, "GPU 0", "gpu-thermal-throttle")]
    assert unread == {}


def test_alarms_beyond_the_first_are_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding(rule="gpu-xid", severity="error", problem="Xid 13.")
    alarm = Alarm(at=0.0, state="raised", subject="GPU 0", finding=finding)
    monkeypatch.setattr("flatout.monitor.alarms.Alarms.take", lambda *_: [alarm] * 8)
    unread: dict[str, str] = {}
    log = _SampleLog(tmp_path / "samples.jsonl", unread)
    for at in (0.0, 10.0):
        log.taken(sampler_of_a_hot_gpu(at), None)
    assert (len(log.raised), unread) == (16, {})
    for at in (20.0, 30.0):
        log.taken(sampler_of_a_hot_gpu(at), None)
    assert len(log.raised) == 20
    assert unread == {"alarms": "only the first 20 are kept"}


def test_live_line_names_what_there_is() -> None:
    now = sample(1.0, utilization=0.342, used_bytes=2**30, memory_bytes=2**33)
    text = live_text(WatchTick(elapsed_s=3661.0, sample=now, cpus=1.23))
    assert text == "1:01:01 · CPU 1.2 of 4 · memory 2 B · GPU 0 34 % 1.0 GiB of 8.0 GiB"
    unknown = live_text(WatchTick(elapsed_s=5.0, sample=sample(1.0, name="x")))
    assert unknown == "0:05 · memory 2 B · GPU 0 -"


@pytest.mark.parametrize(
    ("program", "stem"),
    [
        (["python", "train.py", "--model", "other.py"], "train"),
        (["python", "-m", "package.train"], "train"),
        (["torchrun", "--nproc-per-node", "2", "folder/run.py"], "run"),
        (["./train"], "train"),
        (["C:\\programs\\train.exe"], "train"),
        (["bash", "run.sh"], "run"),
    ],
)
def test_records_are_named_after_the_script(program: list[str], stem: str) -> None:
    assert program_stem(program) == stem


def test_pressure_is_read_in_seconds() -> None:
    text = "some avg10=0.04 avg60=0.16 avg300=0.68 total=33008218\nfull avg10=0 total=2\n"
    assert parse_pressure(text) == pytest.approx(33.008218)
    assert isinstance(parse_pressure("nothing"), Unread)


@pytest.mark.skipif(sys.platform == "win32", reason="scripts have no first line there")
def test_the_interpreter_is_found_by_name_and_by_first_line(tmp_path: Path) -> None:
    script = tmp_path / "run"
    script.write_text(f"#!{sys.executable} -u\nprint(1)\n")
    script.chmod(0o755)
    assert python_of([sys.executable, "x.py"]) == sys.executable
    assert python_of([str(script)]) == sys.executable
    script.write_text("#!/usr/bin/env -S python3 -u\n")
    assert str(python_of([str(script)])).endswith("python3")
    assert isinstance(python_of(["sh", "x.sh"]), Unread)


def test_versions_are_read_without_an_import() -> None:
    found = installed_in(sys.executable)
    assert not isinstance(found, Unread)
    assert found.versions["python"].startswith("3.")
    assert "numpy" in found.versions
