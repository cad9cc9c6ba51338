"""Alarms on a simulated clock: planted faults are found in time, healthy trainings raise none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.simulated_run import BEGAN, FAULTS, HEALTHY, Fault, Shape, Simulation

from flatout.monitor.alarms import Alarms
from flatout.monitor.run_sample import RunSample
from flatout.monitor.trend import last_points, lasting_growth, steady_growth
from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import (
    DiskSample,
    GpuProcess,
    GpuSample,
    HostSample,
    MachineSample,
)
from flatout.schema.run_lines import Failed, RecipeSet, Started, Stopped

ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"
LIMIT_S = 30.0


def raised_by(
    shape: Shape, fault: Fault | None, seconds: int, alarms: Alarms | None = None
) -> list[Alarm]:
    """All alarms of a simulated training."""
    alarms = alarms or Alarms(can_spill=True)
    samples = Simulation(shape, fault).samples(seconds)
    return [alarm for machine, runs in samples for alarm in alarms.take(machine, runs)]


@pytest.mark.parametrize(("shape", "fault"), FAULTS, ids=[fault.rule for _, fault in FAULTS])
def test_a_planted_fault_is_found_in_time_and_nothing_else(shape: Shape, fault: Fault) -> None:
    found = raised_by(shape, fault, int(fault.at_s) + 40)
    assert [alarm.finding.rule for alarm in found] == [fault.rule]
    assert found[0].state == "raised"
    assert found[0].at - BEGAN - fault.at_s <= LIMIT_S


@pytest.mark.parametrize(("shape", "fault"), FAULTS, ids=[fault.rule for _, fault in FAULTS])
def test_an_alarm_has_evidence_a_cause_a_fix_and_a_page(shape: Shape, fault: Fault) -> None:
    finding = raised_by(shape, fault, int(fault.at_s) + 40)[0].finding
    assert f"\n## {finding.rule}\n" in ERRORS.read_text(encoding="utf-8")
    # The run's own finding about its loss is handed on as it is.
    if finding.rule != "nonfinite-loss":
        assert finding.evidence
        assert finding.because
        assert finding.fixes


@pytest.mark.parametrize("shape", HEALTHY, ids=[shape.name for shape in HEALTHY])
def test_no_alarm_in_a_healthy_training(shape: Shape) -> None:
    # A whole hour of each is in campaigns/alarms.py.
    assert raised_by(shape, None, 900) == []


def hot(at: float, reasons: tuple[str, ...] = ("thermal-slowdown",)) -> MachineSample:
    """A sample of a GPU whose clocks are limited."""
    gpu = GpuSample(index=0, utilization=0.9, throttle_reasons=reasons)
    return MachineSample(at=BEGAN + at, host=HostSample(), gpus=(gpu,), source="nvml")


def cool(at: float) -> MachineSample:
    """A sample of the same GPU, with nothing wrong."""
    return hot(at, ())


def states(alarms: Alarms, samples: Iterator[MachineSample]) -> list[tuple[str, float]]:
    """When alarms were raised and cleared."""
    return [
        (alarm.state, alarm.at - BEGAN) for sample in samples for alarm in alarms.take(sample, [])
    ]


def test_an_alarm_is_raised_once_cleared_and_raised_again_after_it_was_away() -> None:
    alarms = Alarms()
    assert states(alarms, map(hot, range(100))) == [("raised", 15.0)]
    assert states(alarms, map(cool, range(100, 220))) == [("cleared", 159.0)]
    assert states(alarms, map(hot, range(220, 300))) == [("raised", 235.0)]


def test_an_alarm_that_comes_and_goes_is_one_alarm() -> None:
    alarms = Alarms()
    samples = (hot(at) if at % 60 < 30 else cool(at) for at in range(600))
    assert states(alarms, samples) == [("raised", 15.0)]


def test_no_alarm_from_what_was_seen_before_the_computer_slept() -> None:
    alarms = Alarms()
    assert states(alarms, map(hot, range(14))) == []
    assert states(alarms, map(hot, range(4000, 4014))) == []


def test_no_alarm_about_a_run_whose_computer_has_slept() -> None:
    alarms = Alarms()
    simulation = list(Simulation(HEALTHY[0]).samples(100))
    found = [alarm for machine, runs in simulation for alarm in alarms.take(machine, runs)]
    for second in range(15):
        at = BEGAN + 4000 + second
        machine = msgspec.structs.replace(simulation[-1][0], at=at)
        run = replace(simulation[-1][1][0], at=at, lines=())
        found += alarms.take(machine, [run])
    assert found == []


def test_a_second_xid_is_another_alarm() -> None:
    alarms = Alarms()

    def sample(at: float, xid: int) -> MachineSample:
        gpu = GpuSample(index=0, xid=xid)
        return MachineSample(at=BEGAN + at, host=HostSample(), gpus=(gpu,), source="nvml")

    found = [*alarms.take(sample(0, 31), []), *alarms.take(sample(1, 31), [])]
    found += alarms.take(sample(2, 79), [])
    assert [alarm.finding.problem for alarm in found] == [
        "GPU 0 reported Xid error 31.", "GPU 0 reported Xid error 79.",
    ]  # fmt: skip
    assert alarms.take(sample(3, 45), []) == []


def test_new_memory_errors_are_announced_on_a_card_with_old_ones() -> None:
    def sample(at: float, count: int) -> MachineSample:
        gpu = GpuSample(index=0, ecc_uncorrected=count)
        return MachineSample(at=BEGAN + at, host=HostSample(), gpus=(gpu,), source="nvml")

    alarms = Alarms()
    found = [alarm for at in range(5) for alarm in alarms.take(sample(at, 3), [])]
    found += [alarm for at in range(5, 9) for alarm in alarms.take(sample(at, 4), [])]
    assert [alarm.finding.severity for alarm in found] == ["warning", "error"]


def gpus_at(at: float, *gpus: GpuSample) -> MachineSample:
    return MachineSample(at=BEGAN + at, host=HostSample(), gpus=gpus, source="nvml")


def test_an_xid_is_cleared_and_the_same_one_is_raised_again() -> None:
    alarms = Alarms()
    samples = (
        gpus_at(at, GpuSample(index=0, xid=31, xid_at=BEGAN + (0 if at < 300 else 300)))
        for at in range(0, 500, 2)
    )
    assert states(alarms, samples) == [
        ("raised", 0.0), ("cleared", 120.0), ("raised", 300.0), ("cleared", 420.0)
    ]  # fmt: skip


def test_rare_samples_raise_alarms_too() -> None:
    alarms = Alarms(every_s=60.0)
    assert states(alarms, map(hot, range(0, 600, 60))) == [("raised", 120.0)]


def test_a_card_that_is_lost_does_not_give_its_history_to_the_next_one() -> None:
    slow = GpuSample(index=0, uuid="GPU-a", throttle_reasons=("thermal-slowdown",))
    old = GpuSample(index=1, uuid="GPU-b", ecc_uncorrected=0)
    new = GpuSample(
        index=0, uuid="GPU-b", ecc_uncorrected=0, throttle_reasons=("thermal-slowdown",)
    )
    alarms = Alarms()
    samples = (gpus_at(at, slow, old) if at < 10 else gpus_at(at, new) for at in range(20))
    assert states(alarms, samples) == []


def test_a_run_is_warned_only_of_the_gpus_that_it_uses() -> None:
    run = GpuProcess(pid=1, is_own=True)
    own = GpuSample(index=0, processes=(run,), throttle_reasons=("thermal-slowdown",))
    other = GpuSample(index=1, processes=(), throttle_reasons=("thermal-slowdown",))
    alarms = Alarms(is_in_run=True)
    found = [
        alarm
        for at in range(20)
        for alarm in alarms.take(gpus_at(at, own, other), [run_at(at, is_in_use=True)])
    ]
    assert [alarm.subject for alarm in found] == ["GPU 0"]


def test_a_run_on_the_cpu_is_warned_of_no_gpu() -> None:
    recipe: Any = SimpleNamespace(device=SimpleNamespace(value="cpu"))
    lines = (RecipeSet(at=BEGAN, step=0, recipe=recipe),)
    alarms = Alarms(is_in_run=True)
    machine = gpus_at(0, GpuSample(index=0, xid=79, xid_at=BEGAN))
    assert alarms.take(machine, [run_at(0, is_in_use=True, lines=lines)]) == []
    assert len(Alarms(is_in_run=True).take(machine, [run_at(0, is_in_use=True)])) == 1


def test_a_run_that_hangs_is_not_warned_of_in_the_run() -> None:
    shape, fault = next((shape, fault) for shape, fault in FAULTS if fault.rule == "run-hung")
    assert raised_by(shape, fault, 120, Alarms(is_in_run=True)) == []


def test_memory_of_a_card_that_the_run_does_not_use_is_not_its_own() -> None:
    shape, fault = next(
        (shape, fault) for shape, fault in FAULTS if fault.rule == "gpu-memory-spilled"
    )
    alarms = Alarms(can_spill=True)
    full = GpuSample(index=1, uuid="GPU-2", memory_bytes=8 * 2**30, used_bytes=8 * 2**30)
    found = []
    for machine, runs in Simulation(shape, fault).samples(120):
        own = msgspec.structs.replace(
            machine.gpus[0], used_bytes=2**30, processes=(GpuProcess(pid=9, is_own=True),)
        )
        found += alarms.take(msgspec.structs.replace(machine, gpus=(own, full)), runs)
    assert "gpu-memory-spilled" not in [alarm.finding.rule for alarm in found]


def limited(run: RunSample, left_bytes: int) -> RunSample:
    """The same in a container that may take so much more memory."""
    assert run.worker is not None
    return replace(run, worker=msgspec.structs.replace(run.worker, left_bytes=left_bytes))


@pytest.mark.parametrize(("left_bytes", "is_raised"), [(2**40, False), (20 * 2**30, True)])
def test_memory_of_a_container_runs_out_before_the_computers(
    left_bytes: int, is_raised: bool
) -> None:
    shape, fault = next((shape, fault) for shape, fault in FAULTS if fault.rule == "memory-leak")
    alarms, found = Alarms(), []
    for machine, runs in Simulation(shape, fault).samples(int(fault.at_s) + 40):
        # 20 MB a second: more than an hour's worth.
        host = HostSample(memory_bytes=2**40, available_bytes=2**39)
        machine = msgspec.structs.replace(machine, host=host)
        found += alarms.take(machine, [limited(run, left_bytes) for run in runs])
    assert [alarm.finding.rule for alarm in found] == ["memory-leak"] * is_raised


def test_an_old_reading_of_a_gpu_raises_nothing() -> None:
    alarms = Alarms()
    samples = (msgspec.structs.replace(hot(at), reason="NVML hangs") for at in range(60))
    assert states(alarms, samples) == []


def test_a_reading_of_nvidia_smi_counts_whatever_is_wrong_with_nvml() -> None:
    samples = (
        msgspec.structs.replace(hot(at), reason="NVML crashes", source="nvidia-smi")
        for at in range(60)
    )
    assert states(Alarms(), samples) == [("raised", 15.0)]


def test_a_power_cap_at_high_clocks_is_no_alarm() -> None:
    def sample(at: float, clock_hz: float) -> MachineSample:
        gpu = GpuSample(
            index=0, utilization=1.0, throttle_reasons=("power-cap",), clock_hz=clock_hz,
            highest_clock_hz=2e9,
        )  # fmt: skip
        return MachineSample(at=BEGAN + at, host=HostSample(), gpus=(gpu,), source="nvml")

    assert states(Alarms(), (sample(at, 1.3e9) for at in range(60))) == []
    assert states(Alarms(), (sample(at, 0.9e9) for at in range(60))) == [("raised", 20.0)]


def test_memory_spills_only_where_the_driver_moves_memory() -> None:
    shape, fault = next(one for one in FAULTS if one[1].rule == "gpu-memory-spilled")
    assert raised_by(shape, fault, 120, Alarms(can_spill=False)) == []


def disk(at: float, free: int) -> MachineSample:
    """A sample of a disk of 100 MB."""
    one = DiskSample(path="/data", total_bytes=10**8, free_bytes=free)
    return MachineSample(at=BEGAN + at, host=HostSample(disks=(one,)))


def test_a_disk_that_a_checkpoint_fills_a_little_is_no_alarm() -> None:
    samples = (disk(at, 30_000_000 - 8_000_000 * (at > 30)) for at in range(90))
    assert states(Alarms(), samples) == []


def test_a_disk_that_is_almost_full_is_an_alarm_at_once() -> None:
    assert states(Alarms(), iter([disk(0, 500_000)])) == [("raised", 0.0)]


def test_a_full_disk_that_nothing_can_be_written_to_is_no_alarm() -> None:
    full = disk(0, 0).host.disks[0]
    image = msgspec.structs.replace(full, is_read_only=True)
    machine = MachineSample(at=BEGAN, host=HostSample(disks=(image,)))
    assert Alarms().take(machine, []) == []


def run_at(second: float, *, is_in_use: bool, lines: tuple[object, ...] = ()) -> RunSample:
    """A run a while after its training has begun."""
    return RunSample(
        id="a", typed="a", log="worker.log", at=BEGAN + second, is_in_use=is_in_use, lines=lines
    )  # type: ignore[arg-type]


def after_training(*lines: object) -> list[str]:
    """The alarms of a training that has ended with these lines."""
    alarms = Alarms()
    found: list[Alarm] = []
    samples = list(Simulation(HEALTHY[0]).samples(60))
    for machine, runs in samples:
        found += alarms.take(machine, [replace(run, id="a") for run in runs])
    for second in range(60, 80):
        machine = msgspec.structs.replace(samples[-1][0], at=BEGAN + second)
        new = lines if second == 60 else ()
        found += alarms.take(machine, [run_at(second, is_in_use=False, lines=new)])
    return [alarm.finding.rule for alarm in found]


def test_a_run_that_was_stopped_is_no_alarm() -> None:
    assert after_training(Stopped(at=BEGAN + 60, step=9, reason="asked to")) == []


def test_a_run_that_has_failed_hands_on_its_finding() -> None:
    finding = Finding(rule="out-of-memory", severity="error", problem="no memory.")
    assert after_training(Failed(at=BEGAN + 60, step=9, finding=finding)) == ["out-of-memory"]


def test_a_run_that_ended_without_a_word_has_died() -> None:
    assert after_training() == ["worker-died"]


def test_a_run_that_died_is_resumed_as_it_was_started() -> None:
    started = Started(
        at=BEGAN, step=0, pid=1, num_steps=9, num_epochs=1, steps_per_epoch=9, num_parameters=5,
        num_samples=9, on="local:2", leave_free_bytes=2**30,
    )  # fmt: skip
    machine, _ = next(iter(Simulation(HEALTHY[0]).samples(1)))
    alarms = Alarms()
    found = alarms.take(machine, [run_at(0, is_in_use=True, lines=(started,))])
    for second in range(1, 10):
        machine = msgspec.structs.replace(machine, at=BEGAN + second)
        found += alarms.take(machine, [run_at(second, is_in_use=False)])
    resume = "flatout train --resume a --leave-free 1GiB --on local:2"
    assert [alarm.finding.rule for alarm in found] == ["worker-died"]
    assert found[0].finding.fixes[-1].text.endswith(resume)


def test_alarms_in_a_run_leave_out_what_it_has_logged() -> None:
    shape, fault = next(one for one in FAULTS if one[1].rule == "nonfinite-loss")
    assert raised_by(shape, fault, 120, Alarms(is_in_run=True)) == []


def test_steady_growth_is_told_from_steps_and_noise() -> None:
    even = [(float(at), 5.0 * at) for at in range(20)]
    assert steady_growth(even) == pytest.approx(5.0)
    assert steady_growth([(at, 5.0 * (at > 9)) for at, _ in even]) is None
    assert steady_growth([(at, at % 3) for at, _ in even]) is None
    assert steady_growth(even[:4]) is None
    assert steady_growth([(at, 1.0) for at, _ in even]) is None


def test_lasting_growth_needs_every_quarter() -> None:
    stairs = [(float(at), float(at // 4)) for at in range(21)]
    assert lasting_growth(stairs) == pytest.approx(0.25)
    assert lasting_growth([(at, min(value, 2.0)) for at, value in stairs]) is None


def test_last_points_cover_the_window_or_are_none() -> None:
    points = [(float(at), 0.0) for at in range(100)]
    assert last_points(points, 20.0)[0] == (79.0, 0.0)
    assert last_points(points[:10], 20.0) == []
