"""Candidates for how data is read: which can gain anything here, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.schema.tuning import Candidate, Profile, Setting
from flatout.schema.units import bytes_text, counted_text, percent_text
from flatout.tune.memory import too_large

# What takes less of the step than this cannot win the 3 % that a recipe needs to win.
LEAST_SHARE = 0.02

# Axes that make reading faster, in the order in which they are tried: a cache is compared with the
# loader at its best.
AXES = ("data", "prefetch", "pinning", "cache")

# Where reading takes more than this, workers that read in parallel with the step are sure to help.
_LARGE_SHARE = 0.3

_PREFETCH = 4


def data_paths(setting: Setting, profile: Profile) -> Iterator[tuple[Candidate, str | None]]:
    """All of them, each with the reason why it is not tried.

    Args:
        setting: what experiment and device allow.
        profile: of a plain step.
    """
    if setting.data_kind == "tensors":
        resident = Candidate(
            name="data held on the GPU",
            axis="data",
            changes={"data_path": "resident"},
            why="batches need no copy to the GPU",
            is_usual=True,
        )
        if setting.device != "cuda":
            reason: str | None = "the data is already on the step's device"
        elif setting.defaults.get("data_path") == "resident":
            reason = "the defaults already do this"
        else:
            reason = too_large(setting, setting.data_bytes)
        yield resident, reason
        return
    share = profile.shares.get("data", 0.0)
    is_little = share < LEAST_SHARE and not profile.is_busy
    little = f"reading takes {percent_text(share)} of the step" if is_little else None
    is_cached = setting.fixed.get("data_path") == "cached"
    reason = "no sample is read once the cache is full" if is_cached else little
    if setting.data_kind == "iterable":
        reason = reason or "each worker would read the whole iterable"
    yield from _workers(setting, reason, is_large=share > _LARGE_SHARE)
    yield _prefetch(), reason
    yield _pinning(setting, profile)
    yield _cache(setting, little)


def _workers(
    setting: Setting, reason: str | None, *, is_large: bool
) -> Iterator[tuple[Candidate, str | None]]:
    current = setting.defaults.get("loader_workers", 0)
    counts = {1, 2, max(1, setting.num_cores // 2), setting.num_cores} | ({0} if current else set())
    for workers in sorted(counts - {current}):
        candidate = Candidate(
            name=counted_text(workers, "loader worker") if workers else "no loader workers",
            axis="data",
            changes={"loader_workers": workers, "loader_persistent": workers > 0},
            why="samples are read while the step runs"
            if workers
            else "workers use CPUs that the step could use",
            is_usual=is_large and workers == setting.num_cores,
        )
        # Where reading takes little, it is the workers that may be too much.
        yield candidate, reason if workers > current else None


def _prefetch() -> Candidate:
    return Candidate(
        name=f"{_PREFETCH} batches ahead per worker",
        axis="prefetch",
        changes={"loader_prefetch": _PREFETCH},
        why="slow batches cause fewer waits",
        needs="loader_workers",
    )


def _pinning(setting: Setting, profile: Profile) -> tuple[Candidate, str | None]:
    if setting.defaults.get("loader_pin_memory", False):
        name, is_pinned = "batches not pinned", False
        why = "saves copying every batch once more in main memory"
    else:
        name, is_pinned = "pinned batches", True
        why = "copies to the GPU are faster, and overlap with the step"
    candidate = Candidate(
        name=name, axis="pinning", changes={"loader_pin_memory": is_pinned}, why=why
    )
    if setting.device != "cuda":
        return candidate, "there is no GPU to copy to"
    share = profile.shares.get("copy", 0.0) + profile.shares.get("data", 0.0)
    little = f"reading and copying take {percent_text(share)} of the step"
    return candidate, setting.pinning_problem or (little if share < LEAST_SHARE else None)


def _cache(setting: Setting, little: str | None) -> tuple[Candidate, str | None]:
    cache = setting.cache
    why = "each sample is read and decoded only once"
    if cache is not None and cache.problem is None:
        why += (
            f": {bytes_text(cache.num_bytes)}; measured with {cache.num_measured:,} of "
            f"{counted_text(cache.num_samples, 'sample')} cached. The first epoch is not faster"
        )
    candidate = Candidate(
        name="decoded cache", axis="cache", changes={"data_path": "cached"}, why=why
    )
    if setting.data_kind == "iterable":
        return candidate, "samples of an iterable have no index"
    unknown = "its samples were not examined"
    return candidate, little or (cache.problem if cache is not None else unknown)
