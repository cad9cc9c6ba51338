"""What `flatout top` shows at one moment: the machine, the running runs, and processes."""

from __future__ import annotations

import msgspec

from flatout.schema.machine_sample import MachineSample


class RunningRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that is being trained.

    share: of the limit of matrix products of its machine (MFU). left_s: to its end, by its pace.
    memory_bytes: that it holds, on a GPU. unread: field -> why it is None.
    """

    id: str
    folder: str
    pid: int | None = None
    device: str | None = None
    step: int = 0
    num_steps: int | None = None
    samples_per_s: float | None = None
    unit: str = "samples"
    loss: float | None = None
    share: float | None = None
    left_s: float | None = None
    memory_bytes: int | None = None
    unread: dict[str, str] = {}


class TopProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process with memory on a GPU, or of a running run.

    utilization: CPUs that it kept busy since the frame before. memory_bytes: main memory.
    gpus: indices. gpu_bytes: memory on them. run: its id. is_mine: of the user who looks.
    created_at: seconds since the epoch; a number may be another process's later.
    unread: field -> why it is None.
    """

    pid: int
    name: str | None = None
    user: str | None = None
    is_mine: bool = False
    created_at: float | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_bytes: int | None = None
    run: str | None = None
    unread: dict[str, str] = {}


class TopFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The machine at one moment, with what runs on it."""

    machine: MachineSample
    runs: tuple[RunningRun, ...] = ()
    processes: tuple[TopProcess, ...] = ()
