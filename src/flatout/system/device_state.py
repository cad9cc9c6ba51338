"""Clocks, temperature, power and throttling of a GPU, by NVML: `python -P -m
flatout.system.device_state UUID`, and of this computer. With `--watch`, once a second.

NVML is asked in a process of its own, because it can crash or hang under WSL.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from flatout.schema.bench import DeviceState
from flatout.system.clock import elapsed_s, now_text, sleep_s
from flatout.system.command import run
from flatout.system.json_process import JsonProcess, ProcessEnded

_TIMEOUT_S = 5.0
_EVERY_S = 1.0
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


class DeviceWatch:
    """The state of a device while something is measured: a GPU is read once a second.

    uuid: of a GPU; None for the CPU.
    """

    def __init__(self, uuid: str | None) -> None:
        self._samples: list[dict[str, Any]] = []
        self._process = None
        if uuid is not None:
            module = "flatout.system.device_state"
            self._process = JsonProcess(sys.executable, module, uuid, "--watch")

    def __enter__(self) -> DeviceWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.__exit__(*exception)

    def state(self, other_cpus: float | None) -> DeviceState:
        """The state under load so far. other_cpus: CPUs that other programs keep busy."""
        if self._process is None:
            return device_state(None, other_cpus)
        # It ends by itself if NVML does not answer.
        with contextlib.suppress(TimeoutError, ProcessEnded):
            while True:
                sample = self._process.receive(dict[str, Any], until_s=elapsed_s())
                self._samples.append(sample)
        state = DeviceState(at=now_text(), other_cpus=other_cpus, is_on_battery=_is_on_battery())
        return msgspec.structs.replace(state, **loaded_state(self._samples))


def loaded_state(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a DeviceState from what was read while the GPU computed; none without that.

    Medians; of the temperature the highest, and of throttle reasons all.
    """
    busy = [one for one in samples if one.get("used_share")]
    found: dict[str, Any] = {}
    for name in ("clock_hz", "memory_clock_hz", "temperature_c", "power_w", "power_limit_w"):
        values = [one[name] for one in busy if one.get(name) is not None]
        if values:
            found[name] = max(values) if name == "temperature_c" else median(values)
    throttles = dict.fromkeys(reason for one in busy for reason in one.get("throttles") or ())
    return {**found, "throttles": tuple(one for one in throttles if one not in _HARMLESS)}


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


def _used_share(nvml: Any, uuid: str) -> float | None:
    """The share of the last second or less in which the GPU computed."""
    try:
        rates = nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
    return float(rates.gpu) / 100


def _watch(nvml: Any, uuid: str) -> None:
    """Prints a state a second, until the reader closes the pipe."""
    while True:
        state = {**read_state(nvml, uuid), "used_share": _used_share(nvml, uuid)}
        sys.stdout.write(json.dumps(state) + "\n")
        sys.stdout.flush()
        sleep_s(_EVERY_S)


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
        if "--watch" in sys.argv[2:]:
            _watch(pynvml, sys.argv[1])
        sys.stdout.write(json.dumps(read_state(pynvml, sys.argv[1])))
    except pynvml.NVMLError as problem:
        sys.exit(f"NVML: {problem}")
    except BrokenPipeError:
        sys.exit(1)
