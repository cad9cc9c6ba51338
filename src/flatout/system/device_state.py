"""Clocks, temperature, power and throttling of a GPU, by NVML: `python -P -m
flatout.system.device_state UUID`, and of this computer.

NVML is asked in a process of its own, because it can crash or hang under WSL.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from flatout.schema.bench import DeviceState
from flatout.system.clock import now_text
from flatout.system.command import run

_TIMEOUT_S = 5.0
# Throttle reasons that every healthy card reports.
_HARMLESS = {"idle"}


def device_state(uuid: str | None, other_cpus: float | None) -> DeviceState:
    """The state now.

    Args:
        uuid: of a GPU; None for the CPU.
        other_cpus: CPUs that other programs keep busy.
    """
    state = DeviceState(at=now_text(), other_cpus=other_cpus, is_on_battery=_is_on_battery())
    if uuid is None:
        return msgspec.structs.replace(state, clock_hz=_cpu_clock_hz())
    done = run([sys.executable, "-P", "-m", "flatout.system.device_state", uuid], _TIMEOUT_S)
    return msgspec.structs.replace(state, **parse_state(done.stdout))


def parse_state(text: str) -> dict[str, Any]:
    """The fields of a DeviceState from what the child printed; none from anything else."""
    try:
        read = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    throttles = tuple(one for one in read.pop("throttles", None) or () if one not in _HARMLESS)
    return {**read, "throttles": throttles}


def read_state(nvml: Any, uuid: str) -> dict[str, Any]:
    """The fields of a GPU; None for what it does not report."""
    from flatout.system.nvml_child import throttle_reasons

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def query(call: Callable[[], float], factor: float) -> float | None:
        try:
            return call() * factor
        except nvml.NVMLError:
            return None

    bits = query(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 1)
    return {
        "clock_hz": query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM), 1e6),
        "memory_clock_hz": query(
            lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM), 1e6
        ),
        "temperature_c": query(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU), 1.0
        ),
        "power_w": query(lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1e-3),
        "power_limit_w": query(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle), 1e-3),
        "throttles": [] if bits is None else throttle_reasons(int(bits)),
    }


def _cpu_clock_hz() -> float | None:
    import psutil

    try:
        frequency = psutil.cpu_freq()
    # Containers and some machines have no such file.
    except (OSError, NotImplementedError, AttributeError):
        return None
    return frequency.current * 1e6 if frequency and frequency.current else None


def _is_on_battery() -> bool | None:
    import psutil

    try:
        battery = psutil.sensors_battery()
    except (OSError, NotImplementedError, AttributeError):
        return None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


if __name__ == "__main__":
    import pynvml  # type: ignore[import-untyped]

    try:
        sys.stdout.write(json.dumps(read_state(pynvml, sys.argv[1])))
    except pynvml.NVMLError as problem:
        sys.exit(f"NVML: {problem}")
