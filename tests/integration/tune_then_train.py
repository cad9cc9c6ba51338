"""Run by test_tune.py in a process of its own: `flatout tune`, then `flatout train`, then `show`.

All is real but the stop-watch: each candidate is half as fast again as what it is compared with.
Workers run in this process, so that they have it, too.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from flatout.cli.main import run
from flatout.engine.training import worker
from flatout.engine.tuner import driver
from flatout.engine.tuner.trials import Trials
from flatout.schema.change import Change
from flatout.schema.tuning import Interval, Load, Result, Trial
from flatout.system import worker_process
from flatout.system.store.run_folder import RunFolder

FASTER = Interval(middle=1.5, low=1.45, high=1.55)
SLOWER = Interval(middle=0.8, low=0.75, high=0.85)
# Without other programs.
QUIET = Load(other_cpus=0.0, num_cpus=2)


def pinned(trial: Trial, *_: Any) -> Result:
    """A measurement that is the same on every machine."""
    # Compiling would take longer than all the rest.
    gain = SLOWER if trial.candidate.is_compiled else FASTER
    return Result(
        trial=trial, cost_s=0.01, speedup=gain, samples_per_s=100.0 * gain.middle,
        incumbent_samples_per_s=100.0, by_process=(gain,) * trial.num_processes, load=QUIET,
        load_by_process=(QUIET,) * trial.num_processes,
    )  # fmt: skip


class Ended:
    """A worker that has done its work here."""

    def __init__(self, code: int) -> None:
        self._code = code

    def is_running(self) -> bool:
        return False

    def exit_code(self) -> int:
        return self._code

    def kill(self) -> None:
        pass


def work_here(python: str, folder: RunFolder, change: Change, **_: Any) -> Ended:
    """In place of a process that is started."""
    words = [str(folder.path), "--change", msgspec.json.encode(change).decode()]
    return Ended(worker.main(words))


def main() -> int:
    Trials.measured = lambda self, trial, *others: pinned(trial)  # type: ignore[method-assign]
    driver.measured_in_fresh_processes = driver.measured_in_child = pinned  # type: ignore[assignment]
    worker_process.start_worker = work_here  # type: ignore[assignment]
    tune = ["tune", "mlp", "--numerics", "fast", "--epochs", "1", "--budget", "30", "--json"]
    train = ["train", "mlp", "--numerics", "fast", "--epochs", "1", "--name", "after", "--json"]
    for command in (tune, train, ["show", "after", "--recipe"]):
        code = run(command)
        print("\0", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
