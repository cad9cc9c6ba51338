"""Combinations of recipe fields that cannot run here, or have no effect or a price."""

from __future__ import annotations

from flatout.engine.recipe.compile_checks import compiling_findings
from flatout.engine.recipe.default_recipe import num_pinned_cpus
from flatout.engine.recipe.experiment_facts import ExperimentFacts
from flatout.engine.runtime.allocator import why_not_retained
from flatout.errors import UsageError
from flatout.schema.finding import Finding, Fix
from flatout.schema.recipe import FLOAT8_MULTIPLE, Recipe
from flatout.schema.units import counted_text
from flatout.tune.captures import why_not_captured


def check_recipe(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
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
            because="the format is for 4-d weights, and the model has 5-d ones",
            fix="leave it out",
        )
    if recipe.precision.value == "float8" and not facts.num_float8_layers:
        raise UsageError(
            "recipe-does-not-fit",
            "`precision=float8` does not work with this model.",
            because=f"only linear layers whose sizes are multiples of {FLOAT8_MULTIPLE} support 8 "
            "bits, and the model has none",
            fix="use bf16, or leave it out",
        )
    _check_benchmark(recipe)
    findings = [*_process_findings(recipe, facts), *compiling_findings(recipe, facts)]
    findings += _checkpointing_findings(recipe, facts)
    findings += _capture_findings(recipe, facts)
    findings += _loader_findings(recipe, facts)
    if recipe.benchmark.value and facts.device.type == "cpu":
        findings.append(_without_effect("benchmark", "cuDNN only, on a GPU"))
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
            because="cuDNN takes the algorithm that was fastest when it was timed, which may "
            "differ in the next run",
            fix="leave one of them out",
        )


def _process_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
    """Settings of the process that do nothing for this step, or harm it.

    Raises:
        UsageError: recipe-does-not-fit, where they cannot be made.
    """
    return [*_affinity_findings(recipe, facts), *_allocator_findings(recipe, facts)]


def _affinity_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
    value, num_cpus = recipe.cpu_affinity.value, num_pinned_cpus(recipe, facts)
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
            because=f"`cpu_affinity={value}` leaves this many here, and threads of one operation "
            "wait for those without a CPU",
            fixes=(Fix(text=f"set num_threads={num_cpus}"),),
        )
    ]


def _allocator_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
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


def _check_data_path(path: str, facts: ExperimentFacts) -> None:
    """Refuses a path that this kind of data cannot take.

    Raises:
        UsageError: recipe-does-not-fit.
    """
    paths, because = {
        "tensors": (("sliced", "resident"), "they are tensors, and sliced in memory"),
        "map-style": (("loader", "cached"), "its samples are read one by one, by a DataLoader"),
        "iterable": (
            ("loader",),
            "samples of an iterable have no index: only a DataLoader can read it",
        ),
    }[facts.data_kind]
    if path not in paths:
        raise UsageError(
            "recipe-does-not-fit",
            f"`data_path={path}` does not work with this data.",
            because=because,
            fix=f"use {' or '.join(paths)}, or leave it out",
        )


def _checkpointing_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
    """What activation checkpointing leaves out.

    Raises:
        UsageError: recipe-does-not-fit, where nothing is left for it.
    """
    if not recipe.activation_checkpointing.value:
        return []
    moving = "norms with running statistics, which a second forward pass would update again"
    if facts.num_blocks == 0:
        raise UsageError(
            "recipe-does-not-fit",
            "`activation_checkpointing=true` finds nothing to recompute in this model.",
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


def _capture_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
    """What is set for a captured step where none is.

    Raises:
        UsageError: recipe-does-not-fit, where it cannot be.
    """
    if recipe.capture.value == "off":
        steps = recipe.steps_per_launch
        if steps.value == 1 or steps.origin != "yours":
            return []
        return [
            _without_effect("steps_per_launch", "capture is off: no step is recorded in a graph")
        ]
    values = {name: getattr(recipe, name).value for name in recipe.__struct_fields__}
    forms = facts.forms_to_capture
    reason = why_not_captured(facts.device.type, forms, facts.not_captured, values)
    if reason is not None:
        raise UsageError(
            "recipe-does-not-fit",
            "`capture=step` is not supported here.",
            because=reason,
            fix="leave it out",
        )
    return []


def _loader_findings(recipe: Recipe, facts: ExperimentFacts) -> list[Finding]:
    """Settings of the DataLoader that change nothing here."""
    reasons: dict[str, str] = {}
    if recipe.loader_workers.value == 0:
        reasons = dict.fromkeys(("loader_prefetch", "loader_persistent"), "there are no workers")
    elif facts.data_kind == "iterable":
        reasons["loader_persistent"] = "workers of an iterable restart in each epoch"
    elif recipe.data_path.value == "cached":
        reasons["loader_persistent"] = "workers exit once all samples are in the cache"
    if facts.device.type == "cpu":
        reasons["loader_pin_memory"] = "there is no GPU to copy to"
    if facts.data_kind == "tensors":
        names = ("loader_workers", "loader_prefetch", "loader_pin_memory", "loader_persistent")
        reasons = dict.fromkeys(names, "tensors are sliced without a DataLoader")
    return [
        _without_effect(name, because)
        for name, because in reasons.items()
        if getattr(recipe, name).origin == "yours" and _is_enabled(getattr(recipe, name).value)
    ]


def _is_enabled(value: bool | int) -> bool:
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
