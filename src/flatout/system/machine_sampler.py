"""What the machine does now, for `top`, `monitor` and the recorders of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from flatout.schema.machine_sample import GpuProcess, GpuSample, MachineSample
from flatout.system.clock import elapsed_s, now_s, sleep_s
from flatout.system.demo_samples import demo_sample
from flatout.system.gpu_sampler import GpuReading, GpuSampler
from flatout.system.host_sampler import HostSampler
from flatout.system.host_system import LocalSystem

_POLL_S = 0.05


class MachineSampler:
    """The state of the GPUs, CPUs, memory and disks, whenever it is asked for.

    Args:
        source: "demo" invents a machine; "none" leaves out the GPUs.
        every_s: how often the GPUs are read.
        paths: files or folders, of whose file systems the free space is shown.
    """

    def __init__(
        self,
        source: Literal["auto", "demo", "none"] = "auto",
        *,
        every_s: float = 1.0,
        paths: Sequence[str] = (),
    ) -> None:
        self._is_demo = source == "demo"
        self._host = None if self._is_demo else HostSampler(paths)
        self._gpus = GpuSampler(LocalSystem(), every_s) if source == "auto" else None
        self._names: dict[int, str | None] = {}

    def __enter__(self) -> MachineSampler:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._gpus is not None:
            self._gpus.close()

    def take(self) -> MachineSample:
        """The present state; never waits longer than a moment."""
        at = now_s()
        if self._host is None:
            return demo_sample(at)
        reading = self._gpus.take() if self._gpus is not None else GpuReading()
        return MachineSample(
            at=at,
            host=self._host.take(),
            gpus=self._with_names(reading.gpus),
            source=reading.source,
            reason=reading.reason,
        )

    def wait(self, limit_s: float) -> None:
        """Waits for the first reading of the GPUs, or for the reason why there is none."""
        until_s = elapsed_s() + limit_s
        while self._gpus is not None and not self._gpus.is_settled and elapsed_s() < until_s:
            sleep_s(_POLL_S)

    def _with_names(self, gpus: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
        """The GPUs with the names of their processes, each of which is looked up once."""
        pids = {process.pid for gpu in gpus for process in gpu.processes or ()}
        self._names = {
            pid: self._names[pid] if pid in self._names else _process_name(pid) for pid in pids
        }

        def named(process: GpuProcess) -> GpuProcess:
            name = process.name or self._names[process.pid]
            return msgspec.structs.replace(process, name=name)

        return tuple(
            msgspec.structs.replace(gpu, processes=tuple(map(named, gpu.processes)))
            if gpu.processes
            else gpu
            for gpu in gpus
        )


def _process_name(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).name()
    except (psutil.Error, OSError):
        # Of another user, of another container, or just gone.
        return None
