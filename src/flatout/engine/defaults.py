"""The recipe before anything was measured: each field with its reason."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.engine.allocator import freed_memory, why_not_retained
from flatout.engine.compiling_findings import compiling_findings
from flatout.engine.facts import Facts
from flatout.errors import UsageError
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.recipe import FLOAT8_MULTIPLE, Choice, Recipe, check_field
from flatout.nouns.units import bytes_text, counted_text
from flatout.tune.captures import why_not_captured

# Of the GPU's free memory, for data that stays there; the rest is for the model and its batches.
_RESIDENT_SHARE = 0.25

# Below this many multiplications in a forward pass, threads that wait for each other cost more
# than they do: nothing on an idle machine, several times the step on a busy one (LOG.md).
_SHARED_PRODUCTS = 4_000_000

# A worker reads what its core can: 390 photos/s at 2.6 ms each. A step on a GPU leaves all cores to
# them, a light one on the CPU most; a heavy one loses about what it gains (LOG.md). Each of them is
# a process with Python and torch, so that there is an end to it.
_MOST_WORKERS = 8


def chosen_recipe(facts: Facts, fixed: dict[str, Any]) -> Recipe:
    """The recipe for these facts: what the person fixed, and for the rest the defaults.

    Args:
        facts: of the experiment and the device.
        fixed: recipe fields by name, with the values the person wants.
    """
    recipe = Recipe(
        **_of_the_step(facts),
        **_of_the_data(facts),
        clip_norm=Choice(value=facts.clip_norm, why="as the experiment says", origin="yours")
        if facts.clip_norm
        else Choice(value=None, why="the experiment asks for none"),
        nonfinite_loss=Choice(value="stop", why="a NaN spreads to every weight in one update"),
        out_of_memory=Choice(value="auto", why="goes on with less, where the same is computed"),
        checkpoint_every=Choice(
            value=None, why="by measured cost: standing still and slowdown together under 2 %"
        ),
    )
    recipe = changed_recipe(recipe, fixed)
    num_cpus = _num_cpus(recipe, facts)
    if num_cpus is not None and recipe.num_threads.value > num_cpus and "num_threads" not in fixed:
        one_each: Choice[int] = Choice(value=num_cpus, why="one for each CPU of cpu_affinity")
        recipe = msgspec.structs.replace(recipe, num_threads=one_each)
    return recipe


def _num_cpus(recipe: Recipe, facts: Facts) -> int | None:
    """How many CPUs the recipe keeps the step's threads on; None where it leaves them all."""
    value = recipe.cpu_affinity.value
    is_kept = value != "all" and facts.topology.problem is None
    return len(facts.topology.chosen(value)) if is_kept else None


def changed_recipe(recipe: Recipe, fixed: dict[str, Any]) -> Recipe:
    """The recipe with some fields set by the person."""
    changes = {
        name: Choice(value=check_field(name, value), why="set by you", origin="yours")
        for name, value in fixed.items()
    }
    recipe = msgspec.structs.replace(recipe, **changes)
    if recipe.deterministic.value and recipe.benchmark.value and "benchmark" not in fixed:
        why = "the choice would depend on a measurement, and `deterministic` is on"
        return msgspec.structs.replace(recipe, benchmark=Choice(value=False, why=why))
    return recipe


def _of_the_step(facts: Facts) -> dict[str, Choice[Any]]:
    is_cpu = facts.device.type == "cpu"
    if facts.can_be_fused:
        optimizer = Choice(value="fused", why="one kernel call instead of several per parameter")
    else:
        optimizer = Choice(value="own", why="torch has no fused kernel for it; left as it is")
    return {
        "device": Choice(
            value=str(facts.device),
            why="no GPU that torch can use" if is_cpu else "the GPU that torch offers first",
        ),
        "precision": Choice(value="fp32", why="exact; fewer bits only if you say so"),
        "optimizer_implementation": optimizer,
        "memory_format": Choice(value="contiguous", why="as the model was built"),
        "attention": Choice(value="auto", why="torch chooses by shape and device"),
        "micro_batch_size": Choice(value=facts.batch_size, why="the whole batch at once"),
        "activation_checkpointing": Choice(
            value=False, why="computing them again takes time; for where memory is short"
        ),
        "capture": Choice(
            value="off", why="only a step that waits for its launches gains; a search measures it"
        ),
        "steps_per_launch": Choice(value=1, why="each step is launched by itself"),
        "compiled": Choice(value="off", why="compiling takes time that only long runs gain back"),
        "compile_mode": Choice(value="default", why="as torch.compile does it by itself"),
        "sharding": facts.sharding,
        "batch_norm": Choice(value="per-rank", why="as in a micro-batch; nothing waits for it"),
        "exchange": Choice(
            value="agreed", why="a rank that fails is noticed and named, and memory is relieved"
        ),
        "num_threads": threads(facts),
        "cpu_affinity": Choice(value="all", why="the system schedules threads as it likes"),
        "allocator": freed_memory(is_cpu=is_cpu, num_ranks=facts.num_ranks),
        "deterministic": Choice(
            value=is_cpu,
            why="on a CPU, repeating bit for bit costs nothing measurable"
            if is_cpu
            else "on a GPU it is slower, and some operations have no such kernel",
        ),
        "benchmark": Choice(
            value=not is_cpu,
            why="only cuDNN, on a GPU, has it"
            if is_cpu
            else "the first step of each shape is slower, the others may be faster",
        ),
    }


def threads(facts: Facts) -> Choice[int]:
    """How many threads compute an operation together, where nobody says."""
    products = facts.num_parameters * facts.batch_size
    if facts.device.type == "cpu" and not facts.has_convolutions and products < _SHARED_PRODUCTS:
        return Choice(
            value=1,
            why="too little work per operation to share out",
            origin="estimated",
            evidence=f"about {products:,} multiplications per forward pass",
        )
    return Choice(
        value=facts.num_threads, why=f"torch's choice for {facts.num_cores} physical cores"
    )


def _of_the_data(facts: Facts) -> dict[str, Choice[Any]]:
    is_tensors = facts.data_kind == "tensors"
    no_loader = "no DataLoader is used"
    num_workers = 0 if is_tensors else _num_workers(facts)
    if facts.data_kind == "iterable":
        # Several workers each read the whole iterable, unless it divides itself among them.
        num_workers = 0
    has_workers = num_workers > 0
    is_pinned = facts.device.type == "cuda" and not is_tensors
    return {
        "data_path": _data_path(facts),
        "loader_workers": Choice(
            value=num_workers,
            why=no_loader
            if is_tensors
            else "an iterable would be read by each worker in full"
            if facts.data_kind == "iterable"
            else _why_so_many(facts),
        ),
        "loader_prefetch": Choice(value=2, why="two batches ahead per worker, as torch does"),
        "loader_pin_memory": Choice(
            value=is_pinned,
            why="copies to the GPU run beside the step"
            if is_pinned
            else no_loader
            if is_tensors
            else "no GPU to copy to",
        ),
        "loader_persistent": Choice(
            value=has_workers,
            why="workers need not start anew each epoch" if has_workers else "no workers",
        ),
    }


def shared_workers(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with as many loader workers as this many ranks leave; not where a person says."""
    workers = recipe.loader_workers
    if workers.origin == "yours" or workers.value <= _num_workers(facts):
        return recipe
    fewer: Choice[int] = Choice(value=_num_workers(facts), why=_why_so_many(facts))
    return msgspec.structs.replace(recipe, loader_workers=fewer)


def _num_workers(facts: Facts) -> int:
    return max(1, min(_MOST_WORKERS, facts.num_cores // facts.num_ranks_here))


def _why_so_many(facts: Facts) -> str:
    shared = f" shared by {facts.num_ranks_here} ranks" if facts.num_ranks_here > 1 else ""
    return f"one for each of {facts.num_cores} cores{shared}, {_MOST_WORKERS} at most"


def _data_path(facts: Facts) -> Choice[str]:
    if facts.data_kind != "tensors":
        return Choice(value="loader", why="the data is read sample by sample")
    assert facts.data_bytes is not None
    size = bytes_text(facts.data_bytes)
    if facts.free_device_bytes is None:
        return Choice(value="sliced", why=f"tensors of {size}, already in memory")
    if facts.data_bytes <= _RESIDENT_SHARE * facts.free_device_bytes:
        free = bytes_text(facts.free_device_bytes)
        return Choice(value="resident", why=f"{size} of data, {free} free on the GPU")
    return Choice(value="sliced", why=f"{size} of data would fill too much of the GPU")


def check_recipe(recipe: Recipe, facts: Facts) -> list[Finding]:
    """Refuses a recipe that cannot run here; warns of settings that have no effect or a price.

    Raises:
        UsageError: recipe-does-not-fit.
    """
    path = recipe.data_path.value
    _check_data_path(path, facts)
    if recipe.micro_batch_size.value < facts.batch_size and facts.has_own_step:
        raise UsageError(
            "recipe-does-not-fit",
            f"`micro_batch_size={recipe.micro_batch_size.value}` cannot be combined with `step`.",
            because="the experiment's own step makes its updates itself, from the whole batch",
            fix=f"leave it out, or use a smaller batch_size than {facts.batch_size}",
        )
    if recipe.memory_format.value == "channels_last" and facts.has_volumes:
        raise UsageError(
            "recipe-does-not-fit",
            "`memory_format=channels_last` does not work with this model.",
            because="the format is for weights of four dimensions, and it has some of five",
            fix="leave it out",
        )
    if recipe.precision.value == "float8" and not facts.num_float8_layers:
        raise UsageError(
            "recipe-does-not-fit",
            "`precision=float8` does not work with this model.",
            because="only linear layers with sizes that are multiples of "
            f"{FLOAT8_MULTIPLE} can multiply in 8 bits, and it has none",
            fix="use bf16, or leave it out",
        )
    _check_benchmark(recipe)
    findings = [*_process_findings(recipe, facts), *compiling_findings(recipe, facts)]
    findings += _checkpointing_findings(recipe, facts)
    findings += _capture_findings(recipe, facts)
    findings += _loader_findings(recipe, facts)
    if recipe.benchmark.value and facts.device.type == "cpu":
        findings.append(_without_effect("benchmark", "only cuDNN, on a GPU, has it"))
    if path == "resident" and facts.device.type == "cpu":
        findings.append(_without_effect("data_path", "on a CPU, sliced and resident are the same"))
    if recipe.micro_batch_size.value > facts.batch_size:
        reason = f"the batch has only {counted_text(facts.batch_size, 'sample')}"
        findings.append(_without_effect("micro_batch_size", reason))
    if recipe.memory_format.value == "channels_last" and not facts.has_convolutions:
        findings.append(_without_effect("memory_format", "the model has no 2-d convolution"))
    if recipe.micro_batch_size.value < facts.batch_size and facts.has_batch_norm:
        findings.append(
            Finding(
                rule="batch-norm-sees-micro-batches",
                severity="warning",
                problem="BatchNorm computes its statistics over micro-batches, not whole batches.",
                because=f"micro-batches of {recipe.micro_batch_size.value} are accumulated to "
                f"batches of {facts.batch_size}",
                fixes=(Fix(text="leave micro_batch_size out if the batch fits into memory"),),
            )
        )
    return findings


def _check_benchmark(recipe: Recipe) -> None:
    """Refuses what contradicts itself.

    Raises:
        UsageError: recipe-does-not-fit.
    """
    if recipe.benchmark.value and recipe.deterministic.value:
        raise UsageError(
            "recipe-does-not-fit",
            "`benchmark=true` cannot be combined with `deterministic=true`.",
            because="cuDNN takes the algorithm that was fastest when it was timed, which may be "
            "another one in the next run",
            fix="leave one of them out",
        )


def _process_findings(recipe: Recipe, facts: Facts) -> list[Finding]:
    """Settings of the process that do nothing for this step, or harm it.

    Raises:
        UsageError: recipe-does-not-fit, where they cannot be made.
    """
    return [*_affinity_findings(recipe, facts), *_allocator_findings(recipe, facts)]


def _affinity_findings(recipe: Recipe, facts: Facts) -> list[Finding]:
    value, num_cpus = recipe.cpu_affinity.value, _num_cpus(recipe, facts)
    reason = facts.topology.why_not(value) if value != "all" else None
    if facts.topology.problem is not None and reason is not None:
        raise UsageError(
            "recipe-does-not-fit",
            f"`cpu_affinity={value}` is not supported on this system.",
            because=reason,
            fix="leave it out, or use all",
        )
    if reason is not None:
        return [_without_effect("cpu_affinity", reason)]
    if num_cpus is None or recipe.num_threads.value <= num_cpus:
        return []
    return [
        Finding(
            rule="more-threads-than-cpus",
            severity="warning",
            problem=f"{recipe.num_threads.value} threads take turns on "
            f"{counted_text(num_cpus, 'CPU')}.",
            because=f"`cpu_affinity={value}` leaves so many here, and threads that work together "
            "wait for those that wait for a CPU",
            fixes=(Fix(text=f"set num_threads={num_cpus}"),),
        )
    ]


def _allocator_findings(recipe: Recipe, facts: Facts) -> list[Finding]:
    if recipe.allocator.value == "system":
        return []
    reason = why_not_retained()
    if reason is not None:
        raise UsageError(
            "recipe-does-not-fit",
            "`allocator=retain` is not supported on this system.",
            because=reason,
            fix="leave it out, or use system",
        )
    if facts.device.type == "cpu":
        return []
    return [_without_effect("allocator", "the step's memory is on the GPU")]


def _check_data_path(path: str, facts: Facts) -> None:
    """Refuses a path that this kind of data cannot take.

    Raises:
        UsageError: recipe-does-not-fit.
    """
    paths, because = {
        "tensors": (("sliced", "resident"), "they are tensors, and sliced in memory"),
        "map-style": (("loader", "cached"), "its samples are read one by one, by a loader"),
        "iterable": (("loader",), "an iterable's samples have no index: only a loader can read it"),
    }[facts.data_kind]
    if path not in paths:
        raise UsageError(
            "recipe-does-not-fit",
            f"`data_path={path}` does not work with this data.",
            because=because,
            fix=f"use {' or '.join(paths)}, or leave it out",
        )


def _checkpointing_findings(recipe: Recipe, facts: Facts) -> list[Finding]:
    """What activation checkpointing leaves out.

    Raises:
        UsageError: recipe-does-not-fit, where nothing is left for it.
    """
    if not recipe.activation_checkpointing.value:
        return []
    moving = "norms with running statistics, which a second forward pass would move again"
    if facts.num_blocks == 0:
        raise UsageError(
            "recipe-does-not-fit",
            "`activation_checkpointing=true` finds nothing to compute again in this model.",
            because=f"its {facts.num_moving_blocks} repeated blocks hold {moving}"
            if facts.num_moving_blocks
            else "it has no repeated blocks: modules of one class in a Sequential or ModuleList",
            fix="leave it out; a smaller micro_batch_size saves memory too",
        )
    if facts.num_moving_blocks == 0:
        return []
    num_all = facts.num_blocks + facts.num_moving_blocks
    return [
        Finding(
            rule="blocks-left-out",
            severity="note",
            problem=f"{facts.num_moving_blocks} of {num_all} repeated blocks keep all of their "
            "activations.",
            because=f"they hold {moving}",
            fixes=(Fix(text="use norms without them, such as GroupNorm, to save more memory"),),
        )
    ]


def _capture_findings(recipe: Recipe, facts: Facts) -> list[Finding]:
    """What is set for a captured step where none is.

    Raises:
        UsageError: recipe-does-not-fit, where it cannot be.
    """
    if recipe.capture.value == "off":
        steps = recipe.steps_per_launch
        if steps.value == 1 or steps.origin != "yours":
            return []
        return [_without_effect("steps_per_launch", "capture is off: no step is made in a graph")]
    values = {name: getattr(recipe, name).value for name in recipe.__struct_fields__}
    reason = why_not_captured(facts.device.type, facts.forms_to_capture, values)
    if facts.has_own_step:
        reason = "the experiment's own step decides on the CPU which updates it makes"
    if reason is not None:
        raise UsageError(
            "recipe-does-not-fit",
            "`capture=step` is not possible here.",
            because=reason,
            fix="leave it out",
        )
    return []


def _loader_findings(recipe: Recipe, facts: Facts) -> list[Finding]:
    """Settings of the DataLoader that change nothing here."""
    reasons: dict[str, str] = {}
    if recipe.loader_workers.value == 0:
        reasons = dict.fromkeys(("loader_prefetch", "loader_persistent"), "there are no workers")
    elif facts.data_kind == "iterable":
        reasons["loader_persistent"] = "workers of an iterable start anew in each epoch"
    elif recipe.data_path.value == "cached":
        reasons["loader_persistent"] = "workers end when all samples are in the cache"
    if facts.device.type == "cpu":
        reasons["loader_pin_memory"] = "there is no GPU to copy to"
    if facts.data_kind == "tensors":
        names = ("loader_workers", "loader_prefetch", "loader_pin_memory", "loader_persistent")
        reasons = dict.fromkeys(names, "tensors are sliced without a DataLoader")
    return [
        _without_effect(name, because)
        for name, because in reasons.items()
        if getattr(recipe, name).origin == "yours" and _is_asked_for(getattr(recipe, name).value)
    ]


def _is_asked_for(value: bool | int) -> bool:
    """To switch off what is off anyway needs no warning."""
    return value is not False


def _without_effect(name: str, because: str) -> Finding:
    return Finding(
        rule="setting-without-effect",
        severity="warning",
        problem=f"`{name}` has no effect here.",
        because=because,
        fixes=(Fix(text=f"leave --use {name} out"),),
    )
