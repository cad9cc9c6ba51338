"""Which of a GPU's processes belong to a run: its worker and its other ranks."""

from __future__ import annotations

import contextlib

import msgspec
import psutil

from flatout.schema.machine_sample import GpuSample, MachineSample


class OwnProcesses:
    """Marks the processes of a run in samples of the machine that it trains on.

    Args:
        folder: of the run, which the command line of each rank names.
        worker: number of the process that writes the run.
    """

    def __init__(self, folder: str, worker: int) -> None:
        self._folder = folder
        self._known = {worker: True}

    def marked(self, sample: MachineSample) -> MachineSample:
        """The sample, with the run's own processes marked."""
        gpus = tuple(self._marked(gpu) for gpu in sample.gpus)
        return msgspec.structs.replace(sample, gpus=gpus)

    def _marked(self, gpu: GpuSample) -> GpuSample:
        if not gpu.processes:
            return gpu
        processes = tuple(
            msgspec.structs.replace(process, is_own=self._is_own(process.pid))
            for process in gpu.processes
        )
        return msgspec.structs.replace(gpu, processes=processes)

    def _is_own(self, pid: int) -> bool:
        if pid not in self._known:
            self._known[pid] = False
            with contextlib.suppress(psutil.Error, OSError):
                self._known[pid] = self._folder in psutil.Process(pid).cmdline()
        return self._known[pid]
