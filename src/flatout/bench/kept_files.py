"""Result files in the state folder: of this machine, and those copied there to be compared."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.bench.read_files import read_files
from flatout.errors import FlatoutError, UsageError
from flatout.schema.bench import BenchFile
from flatout.schema.bench_comparison import LoadedBench
from flatout.system.store import bench_runs

_LIMITS = "limits/"
_MOST_FILES = 100


class KeptBench(msgspec.Struct, frozen=True, kw_only=True):
    """A result that was read. id: `bench/run-mlp`; it is looked up, and never becomes a path.

    bench: its name is for people, and unique among those read together.
    """

    id: str
    bench: LoadedBench

    @property
    def is_own_limits(self) -> bool:
        """Whether it is what `flatout bench limits` has stored of this machine."""
        return self.id.startswith(_LIMITS)


class KeptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The results, and what is wrong with those that cannot be read."""

    files: tuple[KeptBench, ...]
    problems: tuple[FlatoutError, ...] = ()
    num_left_out: int = 0


def read_kept(ids: Sequence[str] | None = None) -> KeptFiles:
    """Reads the results of these ids, or the newest ones, each measurement once.

    Raises:
        UsageError, RunFailed: as the operating system says it of the folders.
    """
    paths = bench_runs.kept_results()
    wanted = list(dict.fromkeys(paths if ids is None else ids))
    found: list[KeptBench] = []
    problems: list[FlatoutError] = []
    for id in wanted[:_MOST_FILES]:
        try:
            if id not in paths:
                raise UsageError(
                    "bench-file-not-found",
                    f"there is no result `{id}`.",
                    fix="choose results in the list: /bench",
                )
            (loaded,) = read_files([paths[id]])
        except FlatoutError as error:
            problems.append(error)
            continue
        # A run of several workloads is kept for each of them.
        if ids is not None or not any(_is_same(loaded.file, one.bench.file) for one in found):
            found.append(KeptBench(id=id, bench=loaded))
    return KeptFiles(
        files=tuple(_named(found)),
        problems=tuple(problems),
        num_left_out=max(0, len(wanted) - _MOST_FILES),
    )


def _is_same(first: BenchFile, second: BenchFile) -> bool:
    return first.began == second.began and first.ended == second.ended and first == second


def _named(files: Sequence[KeptBench]) -> list[KeptBench]:
    """With names for people: limits are in files that are named by a key."""
    named: list[KeptBench] = []
    seen: dict[str, int] = {}
    for one in files:
        bench = one.bench
        name = bench.name
        if one.is_own_limits:
            name = f"limits {bench.file.settings.get('device', '')}".strip()
        seen[name] = seen.get(name, 0) + 1
        unique = name if seen[name] == 1 else f"{name} ({seen[name]})"
        bench = msgspec.structs.replace(bench, name=unique)
        named.append(KeptBench(id=one.id, bench=bench))
    return named
