"""Alarms about GPUs and disks, from samples of the machine alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from flatout.monitor.trend import last_points, lasting_growth
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine_sample import DiskSample, GpuSample, MachineSample
from flatout.schema.units import bytes_text, percent_text, seconds_text

# Names of NVML's reasons: see `nvml_child.py`.
_HEAT = frozenset({"thermal-slowdown", "hardware-thermal-slowdown"})
_SUPPLY = frozenset({"power-brake", "hardware-slowdown"})
_POWER_CAP = "power-cap"

# 45: the driver cleans up after a program that was ended.
# Source: https://docs.nvidia.com/deploy/xid-errors
_HARMLESS_XIDS = frozenset({45})

KEPT_S = 120.0
# Of something that happens at a moment: so long it is news.
EVENT_S = 60.0
_FEWEST_SAMPLES = 3
_THROTTLED_S = 15.0
_CLOCKS_S = 20.0
# A card at its power limit is normal at full load; below half of its clocks it is not.
_CAPPED_CLOCKS = 0.5
_LOW_CLOCKS = 0.4
_LOADED = 0.9
_BUSY = 0.3

_DISK_WINDOW_S = 20.0
# With more room, only shortly before it is full: a download or a checkpoint ends, too.
_DISK_LIMIT_S = 120.0
_SMALL_DISK_LIMIT_S = 600.0
_DISK_ROOM = 0.1
_DISK_FULL = 0.01
_DISK_FULL_BYTES = 2**30


class MachineHistory:
    """The newest samples.

    kept_s: so many seconds of them.
    """

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self.samples: deque[MachineSample] = deque()
        # What a GPU had of uncorrected errors when it was seen first.
        self.first_ecc: dict[str, int] = {}

    def add(self, sample: MachineSample) -> None:
        """Takes a sample; an older reading of the GPUs, given again, counts for nothing."""
        self.samples.append(sample)
        while self.samples and sample.at - self.samples[0].at > self._kept_s:
            self.samples.popleft()
        for gpu in sample.gpus:
            if gpu.ecc_uncorrected is not None:
                self.first_ecc.setdefault(gpu_key(gpu), gpu.ecc_uncorrected)

    def forget(self) -> None:
        """Begins again, as after the computer has slept."""
        self.samples.clear()

    def gpu(self, gpu: GpuSample, seconds: float) -> list[GpuSample]:
        """The readings of a GPU over the last seconds, newest first, and at least three; none
        where they do not cover them.
        """
        newest = self.samples[-1]
        taken: list[GpuSample] = []
        for sample in reversed(self.samples):
            found = None if is_old(sample) else _gpu_of(sample, gpu)
            if found is None:
                return []
            taken.append(found)
            if newest.at - sample.at >= seconds and len(taken) >= _FEWEST_SAMPLES:
                return taken
        return []

    def is_for(self, gpu: GpuSample, seconds: float, has: Callable[[GpuSample], bool]) -> bool:
        """Whether something has been true of a GPU in each reading of the last seconds."""
        readings = self.gpu(gpu, seconds)
        return bool(readings) and all(has(reading) for reading in readings)


def is_old(sample: MachineSample) -> bool:
    """Whether its GPUs are a former reading, because NVML does not answer."""
    return sample.reason is not None and sample.source != "nvidia-smi"


def gpu_key(gpu: GpuSample) -> str:
    """What stays the same of a card: its index is another one once a card before it is lost."""
    return gpu.uuid or str(gpu.index)


def _gpu_of(sample: MachineSample, gpu: GpuSample) -> GpuSample | None:
    return next((one for one in sample.gpus if gpu_key(one) == gpu_key(gpu)), None)


def machine_findings(
    history: MachineHistory, gpus: Sequence[GpuSample]
) -> Iterator[tuple[str, Finding]]:
    """What is wrong with the machine now, each with its subject.

    gpus: of the newest sample, those to look at.
    """
    sample = history.samples[-1]
    if not is_old(sample):
        for gpu in gpus:
            for finding in _gpu_findings(history, gpu):
                yield f"GPU {gpu.index}", finding
    for disk in sample.host.disks:
        found = _disk_filling(history, disk)
        if found is not None:
            yield f"disk {disk.path}", found


def _gpu_findings(history: MachineHistory, gpu: GpuSample) -> Iterator[Finding]:
    found = (
        _xid(gpu, history.samples[-1].at),
        _ecc(gpu, history.first_ecc.get(gpu_key(gpu), 0)),
        _heat(history, gpu),
        _power(history, gpu),
        _clocks(history, gpu),
    )
    yield from (finding for finding in found if finding is not None)


def _name(gpu: GpuSample) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")


def _xid(gpu: GpuSample, at: float) -> Finding | None:
    if gpu.xid is None or gpu.xid in _HARMLESS_XIDS:
        return None
    if gpu.xid_at is not None and at - gpu.xid_at > EVENT_S:
        return None
    line = f"NVRM: Xid (PCI:{gpu.pci_bus_id or 'unknown'}): {gpu.xid}"
    return Finding(
        rule="gpu-xid",
        severity="error",
        problem=f"{_name(gpu)} reported Xid error {gpu.xid}.",
        because="the driver reports an Xid where a program, the card or its connection has failed",
        evidence=(line,),
        fixes=(
            Fix(text=f"see what it means: echo '{line}' | flatout explain"),
            Fix(text="look at the kernel's log: sudo dmesg | grep -i xid"),
        ),
    )


def _ecc(gpu: GpuSample, first: int) -> Finding | None:
    count = gpu.ecc_uncorrected
    if not count:
        return None
    more = f", {count - first} of them since monitoring began" if count > first else ""
    return Finding(
        rule="gpu-ecc-errors",
        severity="error" if count > first else "warning",
        problem=f"the memory of {_name(gpu)} has uncorrected errors: {count}{more}.",
        because="bits in the card's memory have changed, and ECC could not correct them: results "
        "computed since then may be wrong",
        evidence=(f"uncorrected ECC errors since the driver was loaded: {count}",),
        fixes=(
            Fix(text="resume the run from a checkpoint that is older than the error, and restart "
                     "the computer, so that the driver retires these memory rows"),
            Fix(text="if errors come back, have the card replaced: nvidia-smi -q -d ECC"),
        ),
    )  # fmt: skip


def _is_busy(gpu: GpuSample) -> bool:
    return gpu.utilization is None or gpu.utilization >= _BUSY


def _heat(history: MachineHistory, gpu: GpuSample) -> Finding | None:
    def is_hot(reading: GpuSample) -> bool:
        return bool(_HEAT & {*(reading.throttle_reasons or ())}) and _is_busy(reading)

    if not history.is_for(gpu, _THROTTLED_S, is_hot):
        return None
    return Finding(
        rule="gpu-thermal-throttle",
        severity="warning",
        problem=f"{_name(gpu)} is too hot and runs at lower clocks.",
        because="the driver lowers the clocks to cool the card; training takes longer meanwhile",
        evidence=(*_readings(gpu),),
        fixes=(Fix(text="clean fans and filters, and let more air through the case"),
               Fix(text="or lower the power limit, which often costs little speed: "
                        f"sudo nvidia-smi -i {gpu.index} -pl WATTS")),
    )  # fmt: skip


def _power(history: MachineHistory, gpu: GpuSample) -> Finding | None:
    def is_braked(reading: GpuSample) -> bool:
        reasons = {*(reading.throttle_reasons or ())}
        return bool(_SUPPLY & reasons) and not _HEAT & reasons and _is_busy(reading)

    def is_capped(reading: GpuSample) -> bool:
        clocks = _clock_share(reading)
        return (
            _POWER_CAP in (reading.throttle_reasons or ())
            and clocks is not None
            and clocks < _CAPPED_CLOCKS
            and (reading.utilization or 0.0) >= _LOADED
        )

    braked = history.is_for(gpu, _THROTTLED_S, is_braked)
    if not braked and not history.is_for(gpu, _CLOCKS_S, is_capped):
        return None
    return Finding(
        rule="gpu-power-throttle",
        severity="warning",
        problem=f"power limits {_name(gpu)} to lower clocks.",
        because="the power supply or a cable does not deliver what the card needs"
        if braked
        else "its power limit is so low that it runs below half of its highest clock",
        evidence=(*_readings(gpu),),
        fixes=(Fix(text="check the power cables of the card; a laptop needs its own charger"),
               Fix(text="show the limits: nvidia-smi -q -d POWER,PERFORMANCE")),
    )  # fmt: skip


def _clocks(history: MachineHistory, gpu: GpuSample) -> Finding | None:
    def is_slow(reading: GpuSample) -> bool:
        clocks = _clock_share(reading)
        explained = {*(reading.throttle_reasons or ())} & (_HEAT | _SUPPLY | {_POWER_CAP})
        return (
            clocks is not None
            and clocks < _LOW_CLOCKS
            and (reading.utilization or 0.0) >= _LOADED
            and not explained
        )

    if not history.is_for(gpu, _CLOCKS_S, is_slow):
        return None
    return Finding(
        rule="gpu-clocks-low",
        severity="warning",
        problem=f"{_name(gpu)} works at low clocks, although neither heat nor power limits it.",
        because="its clocks are locked or application clocks are set, or it is stuck in a "
        "low-power state",
        evidence=(*_readings(gpu),),
        certainty="likely",
        fixes=(Fix(text=f"reset them: sudo nvidia-smi -i {gpu.index} -rgc, then -rac"),
               Fix(text="if that does not help, restart the computer")),
    )  # fmt: skip


def _clock_share(gpu: GpuSample) -> float | None:
    if gpu.clock_hz is None or not gpu.highest_clock_hz:
        return None
    return gpu.clock_hz / gpu.highest_clock_hz


def _readings(gpu: GpuSample) -> Iterator[str]:
    if gpu.throttle_reasons:
        yield f"clocks are limited by: {', '.join(gpu.throttle_reasons)}"
    if gpu.clock_hz is not None and gpu.highest_clock_hz is not None:
        yield f"clock {gpu.clock_hz / 1e6:.0f} of {gpu.highest_clock_hz / 1e6:.0f} MHz"
    if gpu.temperature_c is not None:
        yield f"temperature {gpu.temperature_c:.0f} °C"
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        yield f"power {gpu.power_w:.0f}{limit} W"
    if gpu.utilization is not None:
        yield f"utilization {percent_text(gpu.utilization, 0)}"


def _disk_filling(history: MachineHistory, disk: DiskSample) -> Finding | None:
    if disk.total_bytes <= 0 or disk.is_read_only:
        return None
    share = disk.free_bytes / disk.total_bytes
    points = [
        (sample.at, -float(one.free_bytes))
        for sample in history.samples
        for one in sample.host.disks
        if one.path == disk.path
    ]
    growth = lasting_growth(last_points(points, _DISK_WINDOW_S))
    left_s = disk.free_bytes / growth if growth else None
    limit_s = _SMALL_DISK_LIMIT_S if share < _DISK_ROOM else _DISK_LIMIT_S
    is_full = share < _DISK_FULL and disk.free_bytes < _DISK_FULL_BYTES
    if not is_full and (left_s is None or left_s > limit_s):
        return None
    when = f", and will be full in {seconds_text(left_s)}" if left_s is not None else ""
    evidence = [f"{bytes_text(disk.free_bytes)} free of {bytes_text(disk.total_bytes)}"]
    if growth:
        evidence.append(f"{bytes_text(growth)} more are used every second")
    return Finding(
        rule="disk-filling",
        severity="warning",
        problem=f"the disk of {disk.path} has {bytes_text(disk.free_bytes)} left{when}.",
        because="something writes to it all the time" if growth else "it is almost full",
        evidence=tuple(evidence),
        fixes=(Fix(text="show what flatout keeps, and delete some of it: flatout disk"),
               Fix(text="find what is written: du -xh PATH | sort -h | tail")),
    )  # fmt: skip
