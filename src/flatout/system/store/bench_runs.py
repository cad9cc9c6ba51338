"""Results of `flatout bench` in the state folder: the last one of each workload, and others."""

from __future__ import annotations

import contextlib
from pathlib import Path

from flatout.schema.bench import BenchFile
from flatout.system import atomic_files
from flatout.system.paths import state_path
from flatout.system.store.limits_store import limits_folder


def run_path(workload: str) -> Path:
    """The file of a workload's last result; it need not exist."""
    return bench_folder() / f"run-{workload}.json"


def bench_folder() -> Path:
    """Folder of results of workloads, and of files that were copied there to be compared."""
    return state_path("bench")


def kept_results() -> dict[str, Path]:
    """All result files by an id such as `bench/run-mlp`, the newest first.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    dated = []
    for folder in (limits_folder(), bench_folder()):
        with atomic_files.mapped_os_errors(folder):
            for path in folder.glob("*.json"):
                # It may be removed while we look.
                with contextlib.suppress(FileNotFoundError):
                    dated.append((path.stat().st_mtime_ns, f"{folder.name}/{path.stem}", path))
    return {id: path for _, id, path in sorted(dated, reverse=True)}


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
