"""Records what the machine does while a run trains: `flatout.monitor.recorder RUN_DIR`.

Started by the run's worker, and ends with it: when its stdin is closed. Samples go to the run's
`samples.jsonl`, findings to its stdout, from where the worker takes them into the run's events.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import MachineSample
from flatout.system.clock import elapsed_s
from flatout.system.json_process import JsonLines
from flatout.system.machine_sampler import MachineSampler
from flatout.system.own_processes import OwnProcesses
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.sample_file import SampleFile

# How often the machine is looked at.
_EVERY_S = 2.0
# Until so many seconds after the start, a line every so many seconds: a day fills about 3 MB.
_PACE = ((600.0, 2.0), (6 * 3600.0, 10.0), (float("inf"), 60.0))


def findings(folder: RunFolder, samples: Iterable[MachineSample]) -> Iterator[Finding]:
    """What is wrong with the run or its machine, as the samples come."""
    for _ in samples:
        yield from ()


def is_due(since_start_s: float, since_line_s: float) -> bool:
    """Whether a sample is written: seldomer as a run grows."""
    every_s = next(every_s for until_s, every_s in _PACE if since_start_s < until_s)
    # The clock of the samples is not exact.
    return since_line_s >= every_s - 0.5


def recorded(folder: RunFolder, is_over: threading.Event) -> Iterator[MachineSample]:
    """Samples of the machine until it is over, of which some are written into the folder."""
    own = OwnProcesses(str(folder.path), os.getppid())
    paths = (str(folder.path),)
    with (
        MachineSampler(every_s=_EVERY_S, paths=paths) as sampler,
        SampleFile(folder.samples) as file,
    ):
        sampler.take()
        start_s, line_s = elapsed_s(), -float("inf")
        while not is_over.wait(_EVERY_S):
            sample = own.marked(sampler.take())
            now_s = elapsed_s()
            if is_due(now_s - start_s, now_s - line_s):
                file.append(sample)
                line_s = now_s
            yield sample


def _watch_parent(is_over: threading.Event) -> None:
    """Sets the event once the worker has closed our stdin, or is gone."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    is_over.set()


def main(path: Path) -> None:
    """Records until the worker is over."""
    is_over = threading.Event()
    threading.Thread(target=_watch_parent, args=(is_over,), daemon=True).start()
    folder, output = RunFolder(path), JsonLines(sys.stdout.buffer)
    # A full disk, or a folder that was removed: the run itself reports it.
    with contextlib.suppress(FlatoutError, BrokenPipeError):
        for finding in findings(folder, recorded(folder, is_over)):
            output.write(finding)
    # Not by way of threads that still wait for a driver that hangs.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
