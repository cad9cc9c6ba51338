"""The process that trains more slowly on request: `python -m flatout.engine.bench.slow_host`.

A plain loop, with a delay before each operator that launches work, or before each batch. The delay
is a loop that reads the clock: a sleep would be longer than it is asked to be.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.engine.bench.limits_worker import failed
from flatout.engine.bench.waiting import wait_for
from flatout.engine.bench.workloads import workload_experiment
from flatout.engine.runtime.device import chosen_device, use_device
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.tuner.ab_timing import TimedLoop
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.schema.slow_host import SlowBlock, SlowBlockTimed, SlowHostReady, SlowHostRequest
from flatout.system.clock import elapsed_s, thread_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

_NUM_WARM_UPS = 3
# These give memory or another view of it, and start nothing on the device.
_ALLOCATIONS = ("empty", "new_empty", "lift_fresh", "_local_scalar_dense")


class SlowOperators(TorchDispatchMode):
    """Waits before each operator that launches work, and counts them.

    Also in the backward pass, whose threads take over the modes of the one that calls it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock
        self.delay_s = 0.0
        self.num_launches = 0
        self._known: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch instead of each operator."""
        does_launch = self._known.get(func)
        if does_launch is None:
            does_launch = self._known[func] = launches(func)
        if does_launch:
            self.num_launches += 1
            wait_busily(self.delay_s, self._clock)
        return func(*args, **(kwargs or {}))


class SlowLoader(StepTimer):
    """Waits whenever the plain loop has got a batch: as if it had come later."""

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        super().__init__(device)
        self._clock = clock
        self.delay_s = 0.0

    def mark(self, part: str) -> None:
        """Called by the loop at the end of each part of a step."""
        if part == "data":
            wait_busily(self.delay_s, self._clock)


def launches(operator: Any) -> bool:
    """Whether an operator starts work on the device."""
    if getattr(operator, "is_view", False):
        return False
    name = operator.name().partition("::")[2].partition(".")[0]
    return not name.startswith(_ALLOCATIONS)


def wait_busily(seconds: float, clock: Callable[[], float]) -> None:
    """Takes so long by this clock, and the CPU meanwhile."""
    if seconds > 0:
        until_s = clock() + seconds
        while clock() < until_s:
            pass


class SlowLoop:
    """A plain loop over a workload, some steps at a time."""

    def __init__(self, request: SlowHostRequest) -> None:
        use_device(chosen_device(request.device))
        workload = workload_experiment(request.size)
        task = TuningTask(
            experiment=workload.experiment, device_name=request.device, fixed=request.fixed
        )
        builder = CandidateBuilder(task)
        self.device = builder.device
        self.data = workload.data
        # On a CPU, the time of this thread is measured, so delays are of the same kind.
        clock = thread_s if self.device.type == "cpu" else elapsed_s
        self._loader = SlowLoader(self.device, clock)
        self._operators = SlowOperators(clock)
        self._loop: TimedLoop = builder.plain(timer=self._loader)

    def ready(self) -> SlowHostReady:
        """Warms up, counts the launches of a step, and describes itself."""
        for _ in range(_NUM_WARM_UPS):
            timed = self.block(SlowBlock(num_steps=1))
        self._operators.num_launches = 0
        self.block(SlowBlock(num_steps=1, delay_s=0.0))
        is_gpu = self.device.type == "cuda"
        return SlowHostReady(
            pid=os.getpid(),
            torch=str(torch.__version__),
            num_threads=torch.get_num_threads(),
            num_launches=self._operators.num_launches,
            step_s=timed.step_s,
            data=self.data,
            name=torch.cuda.get_device_name(self.device) if is_gpu else None,
        )

    def block(self, request: SlowBlock) -> SlowBlockTimed:
        """Makes some steps as slowly as requested."""
        self._loader.delay_s = request.loader_s
        with self._loop.settings():
            wait_for(self.device)
            began_s, worked_s = elapsed_s(), thread_s()
            if request.delay_s is None:
                self._loop.runner.run(request.num_steps)
            else:
                self._operators.delay_s = request.delay_s
                with self._operators:
                    self._loop.runner.run(request.num_steps)
            host_s = elapsed_s() - began_s
            wait_for(self.device)
            step_s, worked_s = elapsed_s() - began_s, thread_s() - worked_s
        return SlowBlockTimed(
            step_s=step_s / request.num_steps,
            host_s=host_s / request.num_steps,
            thread_s=worked_s / request.num_steps,
        )

    def close(self) -> None:
        """Ends the loop."""
        self._loop.runner.close()


def main() -> int:
    """Handles requests until the parent has no more; gives the exit code."""
    stdio = JsonStdio()
    try:
        loop = SlowLoop(stdio.read(SlowHostRequest))
        stdio.answers.write(loop.ready())
        for request in stdio.requests(SlowBlock):
            stdio.answers.write(loop.block(request))
        loop.close()
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = failed(to_flatout_error(error) or error)
        stdio.answers.write(failure)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    end(main())
