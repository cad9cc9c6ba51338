"""Every candidate there is, in one list, and which of them can gain anything here.

The order is that of what usually gains most, so that a short budget is spent where it pays; it is
changed by where the plain step's time goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from flatout.schema.recipe import CpuAffinity
from flatout.schema.tuning import Candidate, Numerics, Profile, Setting, Skip
from flatout.schema.units import counted_text, percent_text, seconds_text
from flatout.tune import captures
from flatout.tune.compiling import compiled_candidates
from flatout.tune.data_paths import AXES, LEAST_SHARE, data_paths
from flatout.tune.memory import larger_parts

# About what a new page costs, from few and noisy measurements (LOG.md, 2026-11-21).
_PAGE_FAULT_S = 2e-6

# Threads that meet at the end of an operation wait some microseconds for each other.
_LONG_OPERATION_S = 100e-6

# A micro-batch below this is mostly overhead on any device.
_LEAST_MICRO_BATCH = 4


def plain_changes(setting: Setting) -> dict[str, Any]:
    """The recipe fields of a plain loop: everything as torch does it by default."""
    return {
        "precision": "fp32",
        "memory_format": "contiguous",
        "optimizer_implementation": "own",
        "loader_workers": 0,
        "loader_persistent": False,
        "loader_pin_memory": False,
        "micro_batch_size": setting.batch_size,
        "num_threads": setting.num_threads,
        "cpu_affinity": "all",
        "allocator": "system",
        "capture": "off",
        "steps_per_launch": 1,
        "compiled": "off",
        "compile_mode": "default",
        "benchmark": False,
        **setting.baseline,
    }


def base_candidate(setting: Setting) -> Candidate:
    """flatout's own loop at its defaults: what all others are built on and compared with."""
    return Candidate(
        name="flatout's defaults",
        axis="loop",
        changes=setting.defaults | setting.fixed | setting.baseline,
        why="what a run without tuning uses",
    )


def candidates(
    setting: Setting, profile: Profile, numerics: Numerics
) -> tuple[tuple[Candidate, ...], tuple[Skip, ...]]:
    """The candidates worth trying here, in order, and the others, each with its reason.

    Args:
        setting: what experiment and device allow.
        profile: of a plain step.
        numerics: how far results may differ by rounding.
    """
    tried, skipped = [], []
    for candidate, reason in _all(setting, profile, numerics):
        fixed = [name for name in candidate.changes if name in setting.fixed]
        if fixed:
            reason = f"you have set {', '.join(fixed)}"
        if candidate.changes.get("loader_pin_memory"):
            reason = reason or setting.pinning_problem
        if reason is None:
            tried.append(candidate)
        else:
            skipped.append(Skip(name=candidate.name, axis=candidate.axis, reason=reason))
    data = profile.shares.get("data", 0.0)
    # Where reading takes longer than everything else, no other gain shows before that is fixed.
    first: tuple[str, ...] = AXES if data > 0.5 else ()
    if profile.is_busy:
        # Nothing costs as much there as threads that wait for one that has lost its CPU.
        first = (*first, "threads")
    if (profile.host_share or 0.0) >= captures.LAUNCH_BOUND:
        first = (*first, captures.AXIS)
    ordered = sorted(tried, key=lambda candidate: candidate.axis not in first)
    return tuple(ordered), tuple(skipped)


def jump(tried: Iterable[Candidate]) -> Candidate | None:
    """All settings that usually help, combined: for steps so slow that one comparison must do.

    Args:
        tried: what applies here.

    Returns:
        None where nothing of it is usual.
    """
    usual = [candidate for candidate in tried if candidate.is_usual]
    changes = {name: value for candidate in usual for name, value in candidate.changes.items()}
    if not usual:
        return None
    # Name parts shared by several candidates are listed once.
    names = dict.fromkeys(part for candidate in usual for part in candidate.name.split(" + "))
    return Candidate(
        name=" + ".join(names), axis="together", changes=changes, why="settings that usually help"
    )


def _all(
    setting: Setting, profile: Profile, numerics: Numerics
) -> Iterator[tuple[Candidate, str | None]]:
    yield from _precisions(setting, profile, numerics)
    yield from _memory_formats(setting, profile)
    yield _benchmark(setting, profile)
    yield _allocator(setting, profile)
    yield from _attentions(setting, profile)
    yield from data_paths(setting, profile)
    yield from _optimizers(setting, profile)
    yield from captures.captures(setting, profile)
    yield from _affinities(setting)
    yield from _threads(setting, profile)
    yield from _micro_batches(setting)
    yield from ((candidate, None) for candidate in larger_parts(setting))
    yield from compiled_candidates(setting, profile)


def _precisions(
    setting: Setting, profile: Profile, numerics: Numerics
) -> Iterator[tuple[Candidate, str | None]]:
    nothing = None
    if numerics == "strict":
        nothing = "--numerics strict allows no other rounding"
    elif not (profile.has_products or profile.has_convolutions):
        nothing = "the step has neither matrix products nor convolutions"
    tf32 = _precision("tf32", "tf32 products", "tensor cores round inputs to 10 bits of mantissa")
    yield tf32, nothing or (None if setting.has_tf32 else "this device does not support tf32")
    why = "uses the device's matrix units, with half the memory"
    bf16 = _precision("bf16", "bf16 autocast", why, is_usual=True)
    slow = None if setting.has_bf16 else "this device multiplies bf16 no faster than fp32"
    yield bf16, nothing or slow
    # Some settings gain only together: bf16 kernels want channels_last, and on a CPU the fused
    # attention is so slow in bf16 that it hides what bf16 gains elsewhere (LOG.md, 2026-11-21).
    with_layout = _together(bf16, "channels_last", {"memory_format": "channels_last"})
    yield with_layout, nothing or slow or _no_layout(setting, profile)
    with_math = _together(bf16, "math attention", {"attention": "math"})
    yield with_math, nothing or slow or _no_slow_attention(setting, profile)
    fp16 = _precision("fp16", "fp16 autocast, scaled", "as bf16, with 3 more bits of mantissa")
    is_fast = numerics == "fast"
    rare = None if is_fast else "only with --numerics fast: a smaller range than bf16"
    yield fp16, nothing or (rare if setting.device == "cuda" else "slower than fp32 on a CPU")


def _no_layout(setting: Setting, profile: Profile) -> str | None:
    if setting.has_volumes:
        return "torch supports it for 4-d weights only, and some are 5-d"
    return None if profile.has_convolutions else "the step has no convolution"


def _no_slow_attention(setting: Setting, profile: Profile) -> str | None:
    if not profile.has_attention:
        return "the step does not call torch's attention"
    return None if setting.device == "cpu" else "on a GPU the fused attention is faster"


def _together(alone: Candidate, name: str, changes: dict[str, Any]) -> Candidate:
    return msgspec.structs.replace(
        alone, name=f"{alone.name} + {name}", changes={**alone.changes, **changes}
    )


def _precision(value: str, name: str, why: str, *, is_usual: bool = False) -> Candidate:
    return Candidate(
        name=name,
        axis="precision",
        changes={"precision": value},
        why=why,
        is_usual=is_usual,
    )


def _memory_formats(setting: Setting, profile: Profile) -> Iterator[tuple[Candidate, str | None]]:
    candidate = Candidate(
        name="channels_last",
        axis="memory format",
        changes={"memory_format": "channels_last"},
        why="the layout that convolutions read fastest",
    )
    yield candidate, _no_layout(setting, profile)


def _benchmark(setting: Setting, profile: Profile) -> tuple[Candidate, str | None]:
    if setting.defaults.get("benchmark", False):
        name, value = "no cuDNN benchmark", False
        why = "cuDNN chooses algorithms without timing them: changing shapes cost less"
    else:
        name, value = "cuDNN's benchmark", True
        why = "cuDNN times its algorithms instead of guessing the fastest"
    candidate = Candidate(
        name=name, axis="convolution algorithms", changes={"benchmark": value}, why=why
    )
    reason = None if profile.has_convolutions else "the step has no convolution"
    if setting.device != "cuda":
        reason = "cuDNN only, on a GPU"
    elif setting.is_deterministic:
        reason = "with `deterministic` the choice must not depend on a measurement"
    return candidate, reason


def _allocator(setting: Setting, profile: Profile) -> tuple[Candidate, str | None]:
    faults = profile.num_page_faults or 0
    candidate = Candidate(
        name="freed memory kept",
        axis="allocator",
        changes={"allocator": "retain"},
        why=f"a plain step waits for {faults:,} new pages of memory",
        is_process_wide=True,
    )
    reason = setting.not_retained
    if setting.device != "cpu":
        reason = "the step's memory is on the GPU"
    elif reason is None and faults * _PAGE_FAULT_S < LEAST_SHARE * profile.step_s:
        reason = f"a step waits for only {faults:,} new pages of memory"
    elif reason is None and not setting.has_processes:
        reason = "needs a separate process: `flatout tune FILE` tries it if time allows"
    return candidate, reason


def _attentions(setting: Setting, profile: Profile) -> Iterator[tuple[Candidate, str | None]]:
    candidate = Candidate(
        name="math attention",
        axis="attention",
        changes={"attention": "math"},
        why="matrix products instead of the fused kernel: faster for short sequences on a CPU",
    )
    yield candidate, _no_slow_attention(setting, profile)


def _optimizers(setting: Setting, profile: Profile) -> Iterator[tuple[Candidate, str | None]]:
    share = profile.shares.get("optimizer", 0.0)
    is_little = share < LEAST_SHARE and not profile.is_busy
    little = f"the optimizer takes {percent_text(share)} of the step" if is_little else None
    current = setting.defaults.get("optimizer_implementation", "own")
    for value, why, is_here in (
        ("fused", "one kernel for all parameters", setting.can_be_fused),
        ("foreach", "one call per operation, not per parameter", setting.has_foreach),
        ("own", "as it was built", True),
    ):
        if value == current:
            continue
        candidate = Candidate(
            name=f"{value} optimizer",
            axis="optimizer",
            changes={"optimizer_implementation": value},
            why=why,
            is_usual=value == "fused",
        )
        yield (
            candidate,
            (None if is_here else f"torch has no {value} version of this optimizer here") or little,
        )


def _threads(setting: Setting, profile: Profile) -> Iterator[tuple[Candidate, str | None]]:
    on_gpu = "the step runs on the GPU" if setting.device != "cpu" else None
    operation_s = profile.step_s / max(1, profile.num_operations)
    # Next to other programs, an operation takes long because its threads wait for each other.
    is_long = operation_s > _LONG_OPERATION_S and not profile.is_busy
    shared = (
        f"operations take {seconds_text(operation_s)} on average, long enough to split among "
        "threads"
    )
    current = setting.defaults.get("num_threads", setting.num_threads)
    counts = {1, max(1, setting.num_cores // 2), setting.num_cores, setting.num_threads}
    if profile.load is not None and profile.is_busy:
        counts.add(max(1, setting.num_cores - round(profile.load.other_cpus)))
    for count in sorted(counts - {current}):
        candidate = Candidate(
            name=counted_text(count, "CPU thread"),
            axis="threads",
            changes={"num_threads": count},
            why="small operations take longer to split among threads than to compute",
            is_process_wide=True,
        )
        # What more threads gain on a quiet machine they lose many times over on a busy one.
        risky = f"with more than {current}, threads wait for each other while other programs run"
        reason = risky if count > current else shared if count == 1 and is_long else None
        yield candidate, on_gpu or reason


def _affinities(setting: Setting) -> Iterator[tuple[Candidate, str | None]]:
    on_gpu = "the step runs on the GPU" if setting.device != "cpu" else None
    values: tuple[tuple[CpuAffinity, str, str], ...] = (
        (
            "one-per-core",
            "one thread per core",
            "two threads on one core share its execution units",
        ),
        ("performance-cores", "performance cores alone", "fast cores need not wait for slow ones"),
    )
    for value, name, why in values:
        count = len(setting.topology.chosen(value))
        changes: dict[str, Any] = {"cpu_affinity": value, "num_threads": count}
        reason = on_gpu or setting.topology.why_not(value)
        fixed = setting.fixed.get("num_threads")
        if fixed is None and count > setting.defaults.get("num_threads", setting.num_threads):
            reason = reason or "the defaults use fewer threads: too little work to split among more"
        if fixed is not None:
            del changes["num_threads"]
            if reason is None and fixed > count:
                cpus = counted_text(count, "CPU")
                reason = f"you have set num_threads={fixed}, and it would leave {cpus}"
        candidate = Candidate(
            name=name, axis="affinity", changes=changes, why=why, is_process_wide=True
        )
        yield candidate, reason


def _micro_batches(setting: Setting) -> Iterator[tuple[Candidate, str | None]]:
    reason = None
    if setting.has_batch_norm:
        reason = "BatchNorm would compute its statistics over micro-batches"
    for parts in (2, 4):
        size = setting.batch_size // parts
        candidate = Candidate(
            name=f"{parts} micro-batches of {size}",
            axis="micro-batch",
            changes={"micro_batch_size": size},
            why="activations of a smaller batch stay in the cache",
        )
        small = f"micro-batches of {size} are too small" if size < _LEAST_MICRO_BATCH else None
        if size * parts != setting.batch_size:
            small = f"a batch of {setting.batch_size} does not split into {parts} equal parts"
        if size >= setting.baseline.get("micro_batch_size", size + 1):
            small = "the plain loop already needs micro-batches this small to fit into memory"
        yield candidate, reason or small
