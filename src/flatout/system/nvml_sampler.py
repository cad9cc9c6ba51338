"""Prints what the GPUs do, a JSON line per interval: `python -P -m flatout.system.nvml_sampler
--every S`.

In a process of its own, because NVML can crash or hang under WSL. A field that a card does not
report is left out, with its reason under `unread`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from flatout.system.clock import elapsed_s, now_s, sleep_s
from flatout.system.nvml_child import WSL_LIBRARY, throttle_reasons

# Where the driver of Windows keeps the numbers of processes, or their memory, to itself.
_NOT_BY_PROCESS = "NVML: the driver does not report it by process (WDDM)"
# Source: https://docs.nvidia.com/deploy/xid-errors
_XID_CLEANUP = 45


class NvmlGpu:
    """A GPU as NVML reports it.

    Args:
        nvml: the module `pynvml`.
        handle: NVML's own of this GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._unread: dict[str, str] = {}
        # What this card or library will never report is not asked for again.
        self._unsupported: dict[str, str] = {}
        self._tensor_cores = TensorCores(nvml, handle)
        self.xid: int | None = None
        self.xid_at: float | None = None
        self.address = ctypes.cast(handle, ctypes.c_void_p).value
        self.fixed = self._read(
            {
                "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
                "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(handle)),
                "pci_bus_id": lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
                "highest_clock_hz": lambda: (
                    1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
                ),
            }
        )
        self._fixed_unread = self._unread

    def sample(self) -> dict[str, Any]:
        """The fields of a GpuSample, without its index."""
        self._unread = dict(self._fixed_unread)
        read = self._read(self._rates() | self._levels() | self._counts())
        for name in ("utilization", "memory"):
            reason = self._unread.pop(name, None)
            if reason is not None:
                self._unread |= dict.fromkeys(_PARTS[name], reason)
        rates, memory = read.pop("utilization", None), read.pop("memory", None)
        if rates is not None:
            read |= {
                "utilization": rates.gpu / 100,
                "memory_utilization": rates.memory / 100,
            }
        if memory is not None:
            read |= {"memory_bytes": int(memory.total), "used_bytes": int(memory.used)}
        if self.xid is not None:
            read |= {"xid": self.xid, "xid_at": self.xid_at}
        return {**self.fixed, **read, "unread": self._unread}

    def _rates(self) -> dict[str, Callable[[], Any]]:
        nvml, handle = self._nvml, self._handle

        def pcie(counter: int) -> float:
            return float(nvml.nvmlDeviceGetPcieThroughput(handle, counter)) * 1024

        return {
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle),
            "tensor_utilization": self._tensor_cores.share,
            "pcie_sent_bytes_per_s": lambda: pcie(nvml.NVML_PCIE_UTIL_TX_BYTES),
            "pcie_received_bytes_per_s": lambda: pcie(nvml.NVML_PCIE_UTIL_RX_BYTES),
        }

    def _levels(self) -> dict[str, Callable[[], Any]]:
        nvml, handle = self._nvml, self._handle
        return {
            "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            "temperature_c": lambda: float(
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "clock_hz": lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_hz": lambda: (
                1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
            ),
            "fan": lambda: nvml.nvmlDeviceGetFanSpeed(handle) / 100,
            "throttle_reasons": lambda: throttle_reasons(
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            ),
        }

    def _counts(self) -> dict[str, Callable[[], Any]]:
        nvml, handle = self._nvml, self._handle

        def errors(kind: int) -> int:
            return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

        return {
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "ecc_corrected": lambda: errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": lambda: errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "processes": self._processes,
        }

    def _processes(self) -> list[dict[str, Any]]:
        nvml = self._nvml
        found: dict[int, dict[str, Any]] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._listed(kind):
                used = process.usedGpuMemory
                found[int(process.pid)] = {"pid": int(process.pid)} | (
                    {} if used is None else {"used_bytes": int(used)}
                )
        if any("used_bytes" not in process for process in found.values()):
            self._unread["processes.used_bytes"] = _NOT_BY_PROCESS
        if not found and os.path.exists(WSL_LIBRARY):
            # Under WSL the list is empty, whatever runs.
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        return list(found.values())

    def _listed(self, kind: str) -> list[Any]:
        nvml = self._nvml
        # Drivers before 510 know only the second version.
        for version in ("_v3", "_v2"):
            try:
                ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")
                return list(ask(self._handle))
            except nvml.NVMLError_FunctionNotFound:
                continue
        raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _read(self, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """What the calls return; the reason of one that fails goes to `_unread`."""
        nvml = self._nvml
        never = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
        read = {}
        for name, call in calls.items():
            if name in self._unsupported:
                self._unread[name] = self._unsupported[name]
                continue
            try:
                read[name] = call()
            except Exception as error:  # noqa: BLE001 - an old library fails in its own ways
                self._unread[name] = f"NVML: {error}"
                if isinstance(error, never) and name != "processes":
                    self._unsupported[name] = self._unread[name]
        return read


_PARTS = {
    "utilization": ("utilization", "memory_utilization"),
    "memory": ("memory_bytes", "used_bytes"),
}


class TensorCores:
    """The work of a card's tensor cores, by NVML's counters of its units (GPM; Hopper and later).

    Args:
        nvml: the module `pynvml`.
        handle: NVML's own of this GPU.

    Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlGpmFunctions.html
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        # Two readings, used in turn: what is asked for is what has happened between them.
        self._readings: list[Any] = []

    def share(self) -> float:
        """The share of the time since the last call in which they worked.

        Raises:
            NVMLError: the card does not report it.
            ValueError: it is the first call.
        """
        nvml, handle = self._nvml, self._handle
        if not self._readings:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            self._readings = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(handle, self._readings[1])
            raise ValueError("it is counted from the second sample on")
        self._readings.reverse()
        before, after = self._readings
        nvml.nvmlGpmSampleGet(handle, after)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        request.sample1, request.sample2 = before, after
        request.metrics[0].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        nvml.nvmlGpmMetricsGet(request)
        return float(request.metrics[0].value) / 100


class XidWatch:
    """Notes Xid errors as NVML reports them; nothing where it does not.

    Args:
        nvml: the module `pynvml`.
        gpus: whose `xid` is set.
    """

    def __init__(self, nvml: Any, gpus: list[NvmlGpu], handles: list[Any]) -> None:
        self._nvml = nvml
        self._gpus = {gpu.address: gpu for gpu in gpus}
        self._events = None
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for handle in handles:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                self._events = events
            except nvml.NVMLError:
                continue

    def take(self) -> None:
        """Notes what has come since the last call, without waiting."""
        if self._events is None:
            return
        nvml = self._nvml
        # A storm of errors must not hold up the sampling.
        for _ in range(100):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError_Timeout:
                return
            except nvml.NVMLError:
                self._events = None
                return
            gpu = self._gpus.get(ctypes.cast(event.device, ctypes.c_void_p).value)
            # The clean-up after a program that was ended, often by the error before it.
            is_cleanup = int(event.eventData) == _XID_CLEANUP
            if gpu is not None and not (is_cleanup and gpu.xid is not None):
                gpu.xid, gpu.xid_at = int(event.eventData), now_s()


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _start() -> tuple[list[NvmlGpu], XidWatch]:
    """All GPUs in PCI bus order.

    Raises:
        RuntimeError: NVML does not start, or lists none.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise RuntimeError(f"nvidia-ml-py is not installed: {error}") from error
    if os.path.exists(WSL_LIBRARY):
        # Loaded first, it is the one that is found by its name afterwards.
        ctypes.CDLL(WSL_LIBRARY)
    handles = []
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError:
                # One that has fallen off the bus before the start: the others are there.
                continue
    except (pynvml.NVMLError, AttributeError, OSError) as error:
        raise RuntimeError(f"NVML: {error}") from error
    if not handles:
        raise RuntimeError("NVML: it lists no GPU")
    gpus = [NvmlGpu(pynvml, handle) for handle in handles]
    watch = XidWatch(pynvml, gpus, handles)
    return sorted(gpus, key=lambda gpu: str(gpu.fixed.get("pci_bus_id", "~"))), watch


def _exit_with_parent() -> None:
    """Ends this process once the parent has closed its stdin, even if NVML hangs."""
    while os.read(0, 1024):
        pass
    os._exit(0)


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(every_s: float) -> None:
    """Prints a line per interval, until the parent ends."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        gpus, xids = _start()
    except RuntimeError as error:
        _print({"error": str(error)})
        return
    next_s = elapsed_s()
    while True:
        xids.take()
        _print({"gpus": [{"index": i, **gpu.sample()} for i, gpu in enumerate(gpus)]})
        # A call that took long is not made up for.
        next_s = max(next_s + every_s, elapsed_s())
        sleep_s(max(0.0, next_s - elapsed_s()))


if __name__ == "__main__":
    try:
        main(float(sys.argv[sys.argv.index("--every") + 1]))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
