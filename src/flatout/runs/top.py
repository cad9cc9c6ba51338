"""What `flatout top` shows: the machine, the running runs and their processes, again and again."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.runs.running import RunningRuns
from flatout.schema.machine_sample import GpuSample
from flatout.schema.top_frame import RunningRun, TopFrame, TopProcess
from flatout.system import demo_frame, paths, process_reader
from flatout.system.clock import sleep_s
from flatout.system.machine_sampler import MachineSampler

# Long enough that shares of the CPUs' time say something.
_FIRST_PAUSE_S = 0.5
_GPU_LIMIT_S = 5.0


class TopFeed:
    """Frames of `flatout top`, while the context is open.

    Args:
        source: "demo" invents a machine and its runs.
        every_s: how often a frame will be taken.
    """

    def __init__(self, source: Literal["auto", "demo"], every_s: float) -> None:
        self._is_demo = source == "demo"
        folders = (str(paths.state_folder()), *map(str, paths.data_folders()))
        self._sampler = MachineSampler(source, every_s=every_s, paths=folders)
        self._runs = RunningRuns()
        self._processes = process_reader.ProcessReader()

    def __enter__(self) -> TopFeed:
        self._sampler.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._sampler.__exit__(*exception)

    def take(self) -> TopFrame:
        """The present frame; never waits longer than a moment."""
        sample = self._sampler.take()
        if self._is_demo:
            return demo_frame.demo_frame(sample)
        runs = self._runs.take()
        pids = {process.pid for gpu in sample.gpus for process in gpu.processes or ()}
        pids |= {run.pid for run in runs if run.pid is not None}
        processes = tuple(
            _with_gpus(process, sample.gpus, runs) for process in self._processes.take(pids)
        )
        return TopFrame(machine=sample, runs=runs, processes=processes)

    def wait(self, seconds: float) -> None:
        """Waits between two frames."""
        sleep_s(seconds)

    def take_settled(self) -> TopFrame:
        """A frame for a single look: it waits until the GPUs and the CPUs' time are known."""
        if self._is_demo:
            return self.take()
        self._sampler.wait(_GPU_LIMIT_S)
        self.take()
        sleep_s(_FIRST_PAUSE_S)
        return self.take()


def _with_gpus(
    process: TopProcess, gpus: tuple[GpuSample, ...], runs: tuple[RunningRun, ...]
) -> TopProcess:
    """A process with what the GPUs and the runs report about it."""
    used = [
        (gpu.index, one) for gpu in gpus for one in gpu.processes or () if one.pid == process.pid
    ]
    known = [one.used_bytes for _, one in used if one.used_bytes is not None]
    run = next((run for run in runs if run.pid == process.pid), None)
    unread = dict(process.unread)
    gpu_bytes: int | None = None
    if used and len(known) == len(used):
        gpu_bytes = sum(known)
    elif run is not None and run.memory_bytes is not None and run.device != "cpu":
        gpu_bytes = run.memory_bytes
    else:
        reasons = [
            gpu.unread.get("processes.used_bytes", gpu.unread.get("processes")) for gpu in gpus
        ]
        unread["gpu_bytes"] = next(filter(None, reasons), "it has no memory on a GPU")
    return msgspec.structs.replace(
        process,
        name=process.name or next((one.name for _, one in used if one.name), None),
        gpus=tuple(index for index, _ in used),
        gpu_bytes=gpu_bytes,
        run=run.id if run else None,
        unread=unread,
    )


def end_process(process: TopProcess) -> str | None:
    """Asks a process to end; gives why it was not possible."""
    if process.created_at is None:
        return "it has ended"
    return process_reader.terminate(process.pid, process.created_at)
