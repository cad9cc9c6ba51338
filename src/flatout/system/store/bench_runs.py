"""The last result of `flatout bench run` for each workload, for `flatout bench cards`."""

from __future__ import annotations

from pathlib import Path

from flatout.schema.bench import BenchFile
from flatout.system import atomic_files
from flatout.system.paths import state_folder


def run_path(workload: str) -> Path:
    """The file of a workload's last result; it need not exist."""
    return state_folder() / "bench" / f"run-{workload}.json"


def keep_run(file: BenchFile) -> None:
    """Keeps a result for each of its workloads that were measured.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    ids = [row.id for row in file.rows if row.samples]
    for workload in dict.fromkeys(id.split("/")[1] for id in ids if id.startswith("run/")):
        path = run_path(workload)
        with atomic_files.mapped_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(path, file)
