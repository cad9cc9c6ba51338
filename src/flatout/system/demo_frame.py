"""An invented moment of `flatout top`, on the machine of `demo_samples`."""

from __future__ import annotations

import math

from flatout.schema.machine_sample import MachineSample
from flatout.schema.top_frame import RunningRun, TopFrame, TopProcess

_GIB = 2**30
_STEPS = 36_000
_STEPS_PER_S = 30.0


def demo_frame(machine: MachineSample) -> TopFrame:
    """The frame at the time of a sample of the invented machine."""
    gpu = machine.gpus[0]
    step = int(machine.at * _STEPS_PER_S) % _STEPS
    busy = gpu.utilization or 0.0
    training, screen = gpu.processes or ()
    runs = (
        RunningRun(
            id="resnet50-0007",
            folder="~/.local/state/flatout/runs/resnet50-0007",
            pid=training.pid,
            device="cuda:0",
            step=step,
            num_steps=_STEPS,
            samples_per_s=round(980 * busy, 1),
            unit="images",
            loss=round(0.4 + 6 * math.exp(-step / 6000), 4),
            share=round(0.52 * busy, 3),
            left_s=(_STEPS - step) / _STEPS_PER_S,
            memory_bytes=int(4.2 * _GIB),
        ),
        RunningRun(
            id="charlm-0002",
            folder="~/.local/state/flatout/runs/charlm-0002",
            pid=4_190_003,
            device="cpu",
            step=step // 10,
            num_steps=None,
            samples_per_s=41.5,
            loss=1.82,
            unread={
                "share": "the machine's limit is not known (flatout bench limits)",
                "left_s": "its length is not known",
            },
        ),
    )
    processes = (
        TopProcess(
            pid=training.pid, name="python", user="demo", is_mine=True, utilization=1.04,
            memory_bytes=3 * _GIB, gpus=(0,), gpu_bytes=training.used_bytes, run=runs[0].id,
        ),
        TopProcess(
            pid=screen.pid, name="Xorg", user="root", utilization=0.03,
            memory_bytes=_GIB // 8, gpus=(0,), gpu_bytes=screen.used_bytes,
        ),
        TopProcess(
            pid=4_190_003, name="python", user="demo", is_mine=True, utilization=3.6,
            memory_bytes=2 * _GIB,
            run=runs[1].id, unread={"gpu_bytes": "it has no memory on a GPU"},
        ),
    )  # fmt: skip
    return TopFrame(machine=machine, runs=runs, processes=processes)
