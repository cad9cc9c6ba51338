"""The recipe before anything was measured: each field with its reason."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.engine.recipe.experiment_facts import ExperimentFacts
from flatout.engine.runtime.allocator import freed_memory
from flatout.schema.recipe import Choice, Recipe, check_field
from flatout.schema.units import bytes_text

# Of the GPU's free memory, for data that stays there; the rest is for the model and its batches.
_RESIDENT_SHARE = 0.25

# Below this many multiplications in a forward pass, threads that wait for each other cost more
# than they do: nothing on an idle machine, several times the step on a busy one (LOG.md).
_SHARED_PRODUCTS = 4_000_000

# A worker reads what its core can: 390 photos/s at 2.6 ms each. A step on a GPU leaves all cores to
# them, a light one on the CPU most; a heavy one loses about what it gains (LOG.md). Each of them is
# a process with Python and torch, so that there is an end to it.
_MOST_WORKERS = 8


def chosen_recipe(facts: ExperimentFacts, fixed: dict[str, Any]) -> Recipe:
    """The recipe for these facts: what the user fixed, and for the rest the defaults.

    Args:
        facts: of the experiment and the device.
        fixed: recipe fields by name, with the values the user wants.
    """
    recipe = Recipe(
        **_of_the_step(facts),
        **_of_the_data(facts),
        clip_norm=Choice(value=facts.clip_norm, why="set by the experiment", origin="yours")
        if facts.clip_norm
        else Choice(value=None, why="the experiment sets none"),
        nonfinite_loss=Choice(value="stop", why="a NaN spreads to every weight in one update"),
        out_of_memory=Choice(
            value="auto", why="continues with less memory where results stay the same"
        ),
        checkpoint_every=Choice(
            value=None, why="by measured cost: pauses and slowdown together below 2 %"
        ),
    )
    recipe = changed_recipe(recipe, fixed)
    num_cpus = num_pinned_cpus(recipe, facts)
    if num_cpus is not None and recipe.num_threads.value > num_cpus and "num_threads" not in fixed:
        one_each: Choice[int] = Choice(value=num_cpus, why="one per CPU of cpu_affinity")
        recipe = msgspec.structs.replace(recipe, num_threads=one_each)
    return recipe


def num_pinned_cpus(recipe: Recipe, facts: ExperimentFacts) -> int | None:
    """The number of CPUs that the recipe's threads keep to; None if it sets no limit."""
    value = recipe.cpu_affinity.value
    has_limit = value != "all" and facts.topology.problem is None
    return len(facts.topology.chosen(value)) if has_limit else None


def changed_recipe(recipe: Recipe, fixed: dict[str, Any]) -> Recipe:
    """The recipe with some fields set by the user."""
    changes = {
        name: Choice(value=check_field(name, value), why="set by you", origin="yours")
        for name, value in fixed.items()
    }
    recipe = msgspec.structs.replace(recipe, **changes)
    if recipe.deterministic.value and recipe.benchmark.value and "benchmark" not in fixed:
        why = "the choice would depend on a measurement, and `deterministic` is on"
        return msgspec.structs.replace(recipe, benchmark=Choice(value=False, why=why))
    return recipe


def _of_the_step(facts: ExperimentFacts) -> dict[str, Choice[Any]]:
    is_cpu = facts.device.type == "cpu"
    if facts.can_be_fused:
        optimizer = Choice(value="fused", why="one kernel call instead of several per parameter")
    else:
        optimizer = Choice(
            value="own", why="torch has no fused kernel for this optimizer; left as it is"
        )
    return {
        "device": Choice(
            value=str(facts.device),
            why="torch finds no usable GPU" if is_cpu else "the first GPU that torch lists",
        ),
        "precision": Choice(value="fp32", why="exact; fewer bits only on request"),
        "optimizer_implementation": optimizer,
        "memory_format": Choice(value="contiguous", why="as the model was built"),
        "attention": Choice(value="auto", why="torch chooses by shape and device"),
        "micro_batch_size": Choice(value=facts.batch_size, why="the whole batch in one pass"),
        "activation_checkpointing": Choice(
            value=False, why="recomputing activations takes time; only useful where memory is short"
        ),
        "capture": Choice(
            value="off",
            why="a hook's on_step runs after every step, between graphs"
            if facts.has_step_hook
            else "only a launch-bound step gains; tuning measures it",
        ),
        "steps_per_launch": Choice(value=1, why="one step per launch"),
        "compiled": Choice(value="off", why="compiling only pays off in long runs"),
        "compile_mode": Choice(value="default", why="torch.compile's own default"),
        "sharding": facts.sharding,
        "batch_norm": Choice(
            value="per-rank", why="as with micro-batches; no synchronization between ranks"
        ),
        "exchange": Choice(
            value="agreed",
            why="a failing rank is detected and named, and ranks can use less memory together",
        ),
        "num_threads": threads(facts),
        "cpu_affinity": Choice(value="all", why="the system schedules threads freely"),
        "allocator": freed_memory(is_cpu=is_cpu, num_ranks=facts.num_ranks),
        "deterministic": Choice(
            value=is_cpu,
            why="on a CPU, bit-exact repetition has no measurable cost"
            if is_cpu
            else "slower on a GPU, and some operations have no deterministic kernel",
        ),
        "benchmark": Choice(
            value=not is_cpu,
            why="cuDNN only, on a GPU"
            if is_cpu
            else "the first step of each shape is slower, later ones may be faster",
        ),
    }


def threads(facts: ExperimentFacts) -> Choice[int]:
    """The default number of threads for an operation."""
    products = facts.num_parameters * facts.batch_size
    if facts.device.type == "cpu" and not facts.has_convolutions and products < _SHARED_PRODUCTS:
        return Choice(
            value=1,
            why="too little work per operation to split among threads",
            origin="estimated",
            evidence=f"about {products:,} multiplications per forward pass",
        )
    return Choice(
        value=facts.num_threads, why=f"torch's choice for {facts.num_cores} physical cores"
    )


def _of_the_data(facts: ExperimentFacts) -> dict[str, Choice[Any]]:
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
            else "each worker would read the whole iterable"
            if facts.data_kind == "iterable"
            else _why_so_many(facts),
        ),
        "loader_prefetch": Choice(value=2, why="two batches ahead per worker, as torch does"),
        "loader_pin_memory": Choice(
            value=is_pinned,
            why="copies to the GPU overlap with the step"
            if is_pinned
            else no_loader
            if is_tensors
            else "no GPU to copy to",
        ),
        "loader_persistent": Choice(
            value=has_workers,
            why="workers need not restart each epoch" if has_workers else "no workers",
        ),
    }


def shared_workers(recipe: Recipe, facts: ExperimentFacts) -> Recipe:
    """The recipe with as many loader workers as this many ranks leave; not where the user says."""
    workers = recipe.loader_workers
    if workers.origin == "yours" or workers.value <= _num_workers(facts):
        return recipe
    fewer: Choice[int] = Choice(value=_num_workers(facts), why=_why_so_many(facts))
    return msgspec.structs.replace(recipe, loader_workers=fewer)


def _num_workers(facts: ExperimentFacts) -> int:
    return max(1, min(_MOST_WORKERS, facts.num_cores // facts.num_ranks_here))


def _why_so_many(facts: ExperimentFacts) -> str:
    shared = f" shared by {facts.num_ranks_here} ranks" if facts.num_ranks_here > 1 else ""
    return f"one per core of {facts.num_cores}{shared}, {_MOST_WORKERS} at most"


def _data_path(facts: ExperimentFacts) -> Choice[str]:
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
