"""Facts and verdicts about the card itself, the bus it is on, and the processor."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.fact_check import Facts, fact, seen_xids, version
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.finding import Evidence
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

_BLACKWELL = ("RTX 50", "RTX PRO", "B100", "B200", "B300", "GB200")
_HEAT_OR_POWER = {
    "hardware-slowdown",
    "thermal-slowdown",
    "hardware-thermal-slowdown",
    "power-brake",
}


def processor_lacks_avx(machine: Machine) -> Facts:
    """The processor has no AVX, although an installed framework needs it."""
    features = machine.cpu.features
    needing = [one for one in machine.frameworks if one.name in ("tensorflow", "jax")]
    if "sse4_2" not in features or "avx" in features or not needing:
        return ()
    return (
        *fact("the processor has no AVX", "/proc/cpuinfo"),
        *fact(f"{needing[0].name} {needing[0].version} is built for it", "metadata"),
    )


def gpu_fell_off_bus(machine: Machine) -> Facts:
    """Xid 79 since the last boot."""
    return seen_xids(machine, (79,))


def gsp_timed_out(machine: Machine) -> Facts:
    """Xid 119 or 120, of the GSP, since the last boot."""
    return seen_xids(machine, (119, 120))


def memory_failed(machine: Machine) -> Facts:
    """Xid 48, 64, 94 or 95, of the GPU's memory, since the last boot."""
    return seen_xids(machine, (48, 64, 94, 95))


def nvlink_failed(machine: Machine) -> Facts:
    """Xid 74, of an NVLink, since the last boot."""
    return seen_xids(machine, (74,))


def heat_or_power_limits_clocks(machine: Machine) -> Facts:
    """NVML names heat or the power supply as what limits the clocks."""
    return tuple(
        Evidence(text=f"GPU {gpu.index}: {reason}", where="NVML")
        for gpu in machine.gpus
        for reason in gpu.throttle_reasons or ()
        if reason in _HEAT_OR_POWER
    )


def clocks_limited(case: Case) -> RuleVerdict | None:
    """Heat or the power supply for certain; the power limit alone may be normal."""
    if case.sees(
        "throttled-by-hardware", "throttled-by-heat", "throttle-bits-hard", "throttle-reported"
    ):
        return RuleVerdict(certainty="decided")
    if not case.sees("throttled-by-power-cap", "throttle-bits-soft"):
        return None
    return RuleVerdict(
        certainty="likely",
        because="this is normal at full load, but not far below the limit",
    )


def needs_open_module(machine: Machine) -> Facts:
    """A Blackwell card with the proprietary module."""
    return _with_module(machine, "proprietary", lambda id: 0x2900 <= id < 0x3000)


def needs_proprietary_module(machine: Machine) -> Facts:
    """A card older than Turing with the open module."""
    return _with_module(machine, "open", lambda id: 0x1340 <= id < 0x1E00)


def _with_module(machine: Machine, flavour: str, is_refused: Callable[[int], bool]) -> Facts:
    module = machine.module
    if module is None or module.flavour != flavour or machine.gpus:
        return ()
    found = [one for one in module.pci_devices or () if is_refused(int(one, 16))]
    if not found:
        return ()
    return (
        *fact(f"NVIDIA device {found[0]}", "/sys/bus/pci"),
        *fact(f"the {flavour} module is installed", "modinfo"),
    )


def needs_other_module(case: Case) -> RuleVerdict | None:
    """The module reports it, or a Blackwell card does not start with the proprietary one."""
    if case.sees("open-module-required", "open-module-refuses"):
        return RuleVerdict(certainty="decided")
    is_named = any(mark in (gpu.name or "") for gpu in case.machine.gpus for mark in _BLACKWELL)
    is_blackwell = is_named or case.sees("blackwell-named")
    if is_blackwell and case.sees("adapter-not-initialized"):
        return RuleVerdict(certainty="likely")
    return None


def gpu_stopped_by_windows(case: Case) -> RuleVerdict | None:
    """Decided if the device is a GPU, as this machine's or the text shows."""
    if not case.sees("device-manager-code"):
        return None
    is_gpu = bool(case.machine.gpus) or case.sees("nvidia-device-problem")
    return RuleVerdict(certainty="decided" if is_gpu else "likely")


def driver_dropped_card(machine: Machine) -> Facts:
    """A Maxwell, Pascal or Volta card with a driver after R580, their last branch."""
    module = machine.module
    installed = (module.loaded or module.installed) if module else None
    if module is None or machine.gpus or version(installed)[:1] <= (580,):
        return ()
    # PCI ids from GM107 up to, but not including, TU102.
    old = [one for one in module.pci_devices or () if 0x1340 <= int(one, 16) < 0x1E00]
    if not old:
        return ()
    return (
        *fact(f"driver {installed}", "modinfo"),
        *fact(f"NVIDIA device {old[0]}, whose last driver branch is R580", "/sys/bus/pci"),
    )


def card_unsupported(case: Case) -> RuleVerdict | None:
    """The module reports it, often with the branch that the card needs."""
    if not case.sees("card-unsupported"):
        return None
    legacy = case.value("card-unsupported", "legacy")
    because = f"the card needs driver branch {legacy}" if legacy else None
    return RuleVerdict(certainty="decided", because=because)


# Below these, published examples do not run as they are.
_LEAST_MEMORY_BYTES = 7.5 * 2**30
_LEAST_GPU_BYTES = 3.5 * 2**30


def machine_is_small(machine: Machine) -> Facts:
    """Memory below 8 GB, or a GPU with less than 4 GB."""
    memory = machine.memory.total_bytes
    small = [
        gpu
        for gpu in machine.gpus
        if gpu.memory_bytes is not None and gpu.memory_bytes < _LEAST_GPU_BYTES
    ]
    return (
        *(
            fact(f"{bytes_text(memory)} of memory", "the system")
            if memory is not None and memory < _LEAST_MEMORY_BYTES
            else ()
        ),
        *(
            part
            for gpu in small
            for part in fact(f"GPU {gpu.index} has {bytes_text(gpu.memory_bytes or 0)}", "NVML")
        ),
    )


def driver_counts_no_gpu(machine: Machine) -> Facts:
    """The driver's library answers, and counts no GPU."""
    if machine.driver is None or machine.gpus or "gpus" in machine.unread:
        return ()
    return fact(f"driver {machine.driver} counts 0 GPUs", "NVML")
