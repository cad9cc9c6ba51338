"""A trial in a process of its own: `python -m flatout.engine.trial RUN_DIR`.

Reads a Request as JSON from stdin and writes a Result as JSON to stdout; nothing else goes there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.finding import finding_from
from flatout.nouns.run import RunHeader
from flatout.nouns.tuning import Result, Trial
from flatout.system import store
from flatout.system.clock import elapsed_s
from flatout.system.runs import RunFolder
from flatout.tune.statistics import speedup_over_processes

# What a process may take beyond its measurement: imports, building, a slow disk.
_GRACE_S = 120.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to measure, and for how long at most."""

    trial: Trial
    limit_s: float
    device_name: str | None
    fixed: dict[str, Any]


def measured_apart(folder: Path, request: Request) -> Result:
    """Carries out a trial in as many fresh processes as it asks for, one after another."""
    begin_s = elapsed_s()
    results = [_from_process(folder, request) for _ in range(request.trial.num_processes)]
    cost_s = elapsed_s() - begin_s
    failed = next((result for result in results if result.speedup is None), None)
    if failed is not None:
        return msgspec.structs.replace(failed, cost_s=cost_s)
    return msgspec.structs.replace(
        results[0],
        cost_s=cost_s,
        speedup=speedup_over_processes([one.speedup for one in results if one.speedup]),
        samples_per_s=_middle(results, lambda result: result.samples_per_s),
        incumbent_samples_per_s=_middle(results, lambda result: result.incumbent_samples_per_s),
    )


def _middle(results: list[Result], read: Callable[[Result], float | None]) -> float:
    values = sorted(value for result in results if (value := read(result)) is not None)
    return values[len(values) // 2]


def _from_process(folder: Path, request: Request) -> Result:
    command = [sys.executable, "-P", "-m", "flatout.engine.trial", str(folder)]
    begin_s = elapsed_s()
    try:
        ended = subprocess.run(
            command,
            input=msgspec.json.encode(request),
            stdout=subprocess.PIPE,
            timeout=request.limit_s + _GRACE_S,
            check=True,
        )
        return msgspec.json.decode(ended.stdout, type=Result)
    except (subprocess.SubprocessError, msgspec.DecodeError) as error:
        # A candidate that takes its process along is a candidate that lost.
        died = RunFailed(
            "trial-died",
            f"the process that measured `{request.trial.candidate.name}` broke off.",
            because=str(error).splitlines()[0],
            fix="see what it printed: worker.log",
        )
        return Result(
            trial=request.trial,
            cost_s=elapsed_s() - begin_s,
            problem=finding_from(died, "note"),
        )


def main(argv: list[str]) -> int:
    """Measures what stdin asks for."""
    # What the experiment prints must not get into the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from flatout.engine.contest import Contest
    from flatout.engine.contestants import Subject
    from flatout.engine.loading import load_experiment

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    spec = store.read_json(RunFolder(Path(argv[0])).header, RunHeader).spec
    subject = Subject(
        experiment=load_experiment(spec),
        seed=spec.seed,
        device_name=request.device_name,
        fixed=request.fixed,
    )
    result = Contest(subject).measured(request.trial, request.limit_s)
    with answer:
        answer.write(msgspec.json.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
