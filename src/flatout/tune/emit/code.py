"""A recipe as a plain PyTorch program: only the lines that it needs, each with its reason.

The program computes what `flatout train` computes under that recipe, and imports torch alone. Its
text is in `code_loop.py` and `code_data.py`.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from flatout.schema.code_outline import CodeOutline
from flatout.schema.machine import Machine
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run import RunHeader
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.tune.emit import code_data, code_float8, code_graphs, code_loop
from flatout.tune.emit.code_lines import Filling, filled

_WIDTH = 100

# Flags that must all hold, and the text that is then part of the program.
_SECTIONS = (
    ("", code_data.SEEDS),
    ("inline", code_data.STATES),
    ("indexed shuffled", code_data.ORDER),
    ("spans", code_data.SPANS),
    ("each", code_data.EACH),
    ("place", code_data.PLACE),
    ("slices", code_data.SLICES),
    ("workers pinned", code_data.USE_CPUS),
    ("loader", code_data.UNCHANGED),
    ("cached", code_data.OWN),
    ("samples", code_data.SAMPLES),
    ("streams", code_data.STREAM),
    ("recomputed attention", code_loop.SAME_KERNEL),
    ("recomputed_blocks", code_loop.RECOMPUTED),
    ("float8", code_float8.FLOAT8),
    ("pinned", code_loop.KEEP_ON),
    ("retained", code_loop.RETAIN),
    ("compiled_loss", code_loop.COMPILED),
    ("compiled_step", code_loop.COMPILED_STEP),
    ("captured", code_graphs.GRAPHS),
    ("captured", code_graphs.CAPTURED),
    ("", code_loop.BUILD),
    ("", code_loop.MEAN),
    ("skip", code_loop.IS_FINITE),
    ("ema", code_loop.SWAP),
    ("validation", code_loop.EVALUATE),
    ("", code_loop.TRAIN),
    ("", code_loop.MAIN),
)
_TEXTS = {
    "update": code_loop.UPDATE,
    "captured_update": code_loop.CAPTURED_UPDATE,
    "whole": code_loop.WHOLE,
    "parts": code_loop.PARTS,
    "validation": code_loop.VALIDATION,
}
_MODULES = (
    "contextlib", "copy", "ctypes", "functools", "hashlib", "importlib", "inspect", "itertools",
    "math", "operator", "os", "random", "sys", "types",
)  # fmt: skip
_BACKENDS = {
    "math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}  # fmt: skip
_OF_TORCH = ("DataLoader", "Dataset", "IterableDataset", "default_collate", "get_worker_info")


class EmitInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of what is written: a search, the recipe that it has found, the experiment."""

    header: RunHeader
    recipe: Recipe
    outline: CodeOutline


def program(header: RunHeader, tuned: TunedRecipe, outline: CodeOutline) -> str:
    """A program that trains an experiment under a recipe as `flatout train` does.

    Args:
        header: of the search; names the experiment and the machine.
        tuned: what it has found.
        outline: of the experiment.

    Returns:
        Its text.
    """
    given = EmitInput(header=header, recipe=tuned.recipe, outline=outline)
    flags = flags_of(given)
    filling = Filling(
        flags=flags, values=values_of(given), reasons=reasons_of(tuned.recipe), texts=_TEXTS
    )
    parts = [
        filled(text, filling)
        for words, text in _SECTIONS
        if all(flags[word] for word in words.split())
    ]
    device = f"DEVICE = torch.device({_literal(tuned.recipe.device.value)})"
    body = "\n\n\n".join(parts)
    constants = [device] if re.search(r"\bDEVICE\b", body) else []
    if flags["workers"] and flags["pinned"]:
        constants.append(code_data.ALL_CPUS.strip("\n"))
    if flags["file"]:
        constants.append(code_loop.STAND_IN.strip("\n"))
    environment = list(environment_of(given))
    imports = _imports("\n".join([*environment, *constants, body]), environment)
    head = "\n\n".join([_about(given, tuned), "from __future__ import annotations", *imports])
    return "\n\n\n".join(["\n\n".join([head, *constants]), body]) + "\n"


def flags_of(given: EmitInput) -> dict[str, bool]:
    """The needed parts of the text, by name."""
    recipe, outline = given.recipe, given.outline
    kinds = {outline.data_kind, outline.validation_kind}
    is_read = bool(kinds & {"map-style", "iterable"})
    is_cached = "map-style" in kinds and recipe.data_path.value == "cached"
    # What is kept is kept in this process, which therefore reads it.
    has_workers = is_read and recipe.loader_workers.value > 0 and not is_cached
    of_step = _flags_of_step(recipe, outline)
    is_resident = recipe.data_path.value == "resident" and of_step["cuda"]
    # Data already on the device in the right format needs no copy.
    is_placed = of_step["layout"] or (of_step["cuda"] and not (is_resident and not is_read))
    return {
        **of_step,
        **_flags_of_experiment(outline),
        "file": given.header.spec.file is not None,
        "resident": is_resident,
        "place": is_placed,
        "slices": "tensors" in kinds,
        "samples": "map-style" in kinds,
        "streams": "iterable" in kinds,
        "loader": is_read,
        "cached": is_cached,
        "workers": has_workers,
        "inline": is_read and not has_workers,
        "pin": is_read and of_step["cuda"] and recipe.loader_pin_memory.value,
        "each": "tensors" in kinds or is_placed or is_cached or of_step["captured"],
        "spans": "tensors" in kinds or of_step["accumulated"],
    }


def _flags_of_step(recipe: Recipe, outline: CodeOutline) -> dict[str, bool]:
    precision = recipe.precision.value
    is_clipping = recipe.clip_norm.value is not None
    is_skipping = recipe.nonfinite_loss.value == "skip"
    is_accumulated = recipe.micro_batch_size.value < outline.batch_size
    is_recomputing = bool(recipe.activation_checkpointing.value)
    return {
        "cuda": recipe.device.value.startswith("cuda"),
        "tf32": precision == "tf32",
        "fp16": precision == "fp16",
        "float8": precision == "float8",
        "autocast": precision in ("bf16", "fp16", "float8"),
        "attention": recipe.attention.value != "auto",
        "layout": recipe.memory_format.value == "channels_last",
        "implementation": recipe.optimizer_implementation.value != "own",
        "fused": recipe.optimizer_implementation.value == "fused",
        "deterministic": recipe.deterministic.value,
        "pinned": recipe.cpu_affinity.value in outline.cpus,
        "retained": recipe.allocator.value == "retain",
        "captured": recipe.capture.value == "step",
        "compiled": recipe.compiled.value != "off",
        "compiled_loss": recipe.compiled.value in ("loss", "both"),
        "compiled_step": recipe.compiled.value in ("optimizer", "both"),
        "autotuned": recipe.compile_mode.value == "max-autotune-no-cudagraphs",
        "clip": is_clipping,
        "skip": is_skipping,
        "recomputed": is_recomputing,
        "recomputed_blocks": is_recomputing and bool(outline.blocks),
        "recomputed_by_itself": is_recomputing and bool(outline.self_checkpointing),
        "accumulated": is_accumulated,
        "parameters": is_clipping or is_skipping or (is_accumulated and outline.is_counted),
    }


def _flags_of_experiment(outline: CodeOutline) -> dict[str, bool]:
    return {
        "tensors": outline.data_kind == "tensors",
        "map": outline.data_kind == "map-style",
        "stream": outline.data_kind == "iterable",
        "indexed": outline.data_kind != "iterable",
        "shuffled": outline.is_shuffled,
        "counted": outline.is_counted,
        "steps": outline.is_by_steps,
        "schedule": outline.scheduling is not None,
        "schedule_length": outline.takes_length,
        "schedule_step": outline.scheduling == "step",
        "schedule_epoch": outline.scheduling == "epoch",
        "plateau": outline.scheduling == "plateau",
        "ema": outline.has_ema,
        "validation": outline.validation_kind is not None,
        "on_tensors": outline.validation_kind == "tensors",
        "on_samples": outline.validation_kind == "map-style",
        "on_stream": outline.validation_kind == "iterable",
        "metrics": outline.has_metrics,
        "validate_steps": outline.validation_kind is not None
        and outline.validate_every is not None,
        "early_stop": outline.has_early_stop,
    }


def _total_steps(outline: CodeOutline, epochs: str) -> str:
    """The number of the schedule's steps in the whole training, as an expression."""
    samples = "count(data)" if outline.data_kind == "tensors" else "len(data)"
    per_epoch = f"math.ceil({samples} / experiment.batch_size)"
    is_per_step = outline.scheduling == "step"
    if outline.is_by_steps:
        steps = "experiment.steps"
        return steps if is_per_step else f"math.ceil({steps} / {per_epoch})"
    return f"{epochs} * {per_epoch}" if is_per_step else epochs


def values_of(given: EmitInput) -> dict[str, str]:
    """The values filled into the text, by name."""
    recipe, outline, spec = given.recipe, given.outline, given.header.spec
    module = f"flatout.experiments.{spec.name.replace('-', '_')}"
    file = PurePath(spec.file) if spec.file else None
    implementation = recipe.optimizer_implementation.value
    is_smaller = outline.is_smaller_better
    is_cached = recipe.data_path.value == "cached"
    has_kernel = recipe.attention.value != "auto"
    share = float(recipe.activation_checkpointing.value)
    return {
        "seed": str(spec.seed),
        "epochs": str(spec.epochs or "experiment.epochs"),
        "total_steps": _total_steps(outline, str(spec.epochs or "experiment.epochs")),
        "parameters": "named_parameters" if outline.has_named_parameters else "parameters",
        "num_threads": str(recipe.num_threads.value),
        "cpus": _numbers(outline.cpus.get(recipe.cpu_affinity.value, ())),
        "is_tf32": str(recipe.precision.value == "tf32"),
        "is_benchmarking": str(recipe.benchmark.value),
        "is_foreach": str(implementation == "foreach"),
        "is_fused": str(implementation == "fused"),
        "dtype": "torch.float16" if recipe.precision.value == "fp16" else "torch.bfloat16",
        "backend": _BACKENDS.get(recipe.attention.value, ""),
        "micro_batch_size": f"{recipe.micro_batch_size.value:_}",
        "steps_per_launch": str(recipe.steps_per_launch.value),
        "is_dynamic": str(recipe.compile_mode.value == "dynamic"),
        "has_code": _has_code(recipe),
        "compile_options": _compile_options(recipe),
        "clip_norm": _literal(recipe.clip_norm.value),
        "blocks": _names(outline.blocks[: math.ceil(share * len(outline.blocks))]),
        "self_checkpointing": _names(outline.self_checkpointing),
        "prefix": outline.checkpointing_prefix,
        "kernel_of_block": ", context_fn=same_kernel" if has_kernel else "",
        "kernel_of_own": ', "context_fn": same_kernel' if has_kernel else "",
        "num_workers": str(0 if is_cached else recipe.loader_workers.value),
        "loader_prefetch": str(recipe.loader_prefetch.value),
        "loader_persistent": str(recipe.loader_persistent.value),
        "collate": "experiment.collate" if outline.has_collate else "default_collate",
        "num_samples": "count(data)" if outline.data_kind == "tensors" else "len(data)",
        "num_gathered": f"{outline.num_gathered or 1:_}",
        "num_gathered_on": f"{outline.num_gathered_validation or 1:_}",
        "validate_every": str(outline.validate_every),
        "forked": "DEVICE" if recipe.device.value.startswith("cuda") else "",
        "best": _literal(outline.best),
        "better": "<" if is_smaller else ">",
        "best_of": "min" if is_smaller else "max",
        "worst": "math.inf" if is_smaller else "-math.inf",
        "folder": _literal(str(file.parent)) if file else "",
        "module": _literal(file.stem if file else module),
        "arguments": _arguments(spec.parameters),
        "weights_file": _literal(f"{spec.name}.pt"),
    }


def _has_code(recipe: Recipe) -> str:
    """The kinds of micro-batches that there is code for."""
    if recipe.compile_mode.value == "dynamic":
        return "True"
    return f"size == {recipe.micro_batch_size.value:_}"


def _compile_options(recipe: Recipe) -> str:
    """Options of the compiler: torch's own random draws, and repeatable choices."""
    is_deterministic = recipe.deterministic.value
    return f'{{"fallback_random": True, "deterministic": {is_deterministic}}}'


def _arguments(parameters: dict[str, Any]) -> str:
    """Arguments of a call, on one line if they fit on it."""
    texts = [f"{name}={_literal(value)}" for name, value in parameters.items()]
    line = ", ".join(texts)
    if len(f"    chosen = described.experiment({line})") <= _WIDTH:
        return line
    return "\n" + "".join(f"        {text},\n" for text in texts) + "    "


def _names(names: tuple[str, ...]) -> str:
    """Names to loop over, on one line if they fit on it."""
    texts = [_literal(name) for name in names]
    line = ", ".join(texts)
    if len(f"    for name in [{line}]:") <= _WIDTH:
        return f"[{line}]"
    return "[\n" + "".join(f"        {text},\n" for text in texts) + "    ]"


def _numbers(numbers: tuple[int, ...]) -> str:
    """A set of rising numbers; three and more at equal distances are a range."""
    texts, rest = [], list(numbers)
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        count = 1
        while count < len(rest) and rest[count] - rest[count - 1] == step:
            count += 1
        if count < 3:
            texts.append(str(rest.pop(0)))
            continue
        texts.append(f"*range({rest[0]}, {rest[count - 1] + 1}{f', {step}' * (step > 1)})")
        del rest[:count]
    return f"{{{', '.join(texts)}}}"


def _literal(value: Any) -> str:
    """A value as it is written in Python."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def reasons_of(recipe: Recipe) -> dict[str, str]:
    """Each field's choice in words; the loader's fields speak as one."""
    choices: dict[str, Choice[Any]] = msgspec.structs.asdict(recipe)
    reasons = {name: _reason(name, choice) for name, choice in choices.items()}
    return {**reasons, "loader": reasons["loader_workers"]}


def _reason(name: str, choice: Choice[Any]) -> str:
    evidence = f" ({choice.evidence})" if choice.evidence else ""
    return f"{name} {choice.value}: {choice.why}{evidence}."


def _about(given: EmitInput, tuned: TunedRecipe) -> str:
    """The program's docstring."""
    title = f"{given.header.spec.name} in plain PyTorch, with the recipe that flatout found for it."
    summary = (
        f"{result_text(given, tuned)} It reproduces the losses of `flatout train` "
        f"(flatout {given.header.flatout_version}) with the same recipe; it writes no checkpoints, "
        "and saves the last weights, not the best."
    )
    text = "\n".join([sober(title), "", *textwrap.wrap(sober(summary), _WIDTH)])
    return f'"""{text}\n"""'


def result_text(given: EmitInput, tuned: TunedRecipe) -> str:
    """The gain of a recipe and where it was measured, in a sentence."""
    decision = tuned.decision
    gain, of = decision.over_plain, "a plain loop's speed"
    if gain is None:
        gain, of = decision.speedup, "the speed of flatout's defaults"
    if gain is None or decision.speedup is None:
        return f"flatout kept its defaults: {decision.why}."
    interval = f"x{gain.middle:.2f} [{gain.low:.2f}, {gain.high:.2f}] of {of}"
    return f"{interval}{_machine_text(given.header.machine, given.recipe)}."


def sober(text: str) -> str:
    """Text that can stand in a docstring."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _machine_text(machine: Machine | None, recipe: Recipe) -> str:
    """The machine of the measurement, as far as it is known."""
    if machine is None:
        return ""
    name = machine.cpu.name
    _, _, index = recipe.device.value.partition(":")
    if recipe.device.value.startswith("cuda"):
        names = {gpu.index: gpu.name for gpu in machine.gpus}
        name = names.get(int(index or 0))
    torch = machine.framework("torch")
    return (f", on {name}" if name else "") + (f" with torch {torch.version}" if torch else "")


def environment_of(given: EmitInput) -> Iterator[str]:
    """Lines for what the libraries read when they are loaded."""
    recipe = given.recipe
    is_cuda = recipe.device.value.startswith("cuda")
    if is_cuda:
        yield "# Number GPUs as nvidia-smi does."
        yield 'os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")'
    if is_cuda and recipe.deterministic.value:
        yield "# Without this, cuBLAS is not deterministic."
        yield 'os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")'


def _imports(text: str, environment: list[str]) -> list[str]:
    """The imports that a text needs, with the environment between Python's and torch's."""
    own = [f"import {name}" for name in _MODULES if re.search(rf"(?<![\w.]){name}\.", text)]
    if re.search(r"\bIterator\[", text):
        own.append("from collections.abc import Iterator")
    own.append("from typing import Any")
    names = ", ".join(name for name in _OF_TORCH if re.search(rf"\b{name}\b", text))
    others = ["import torch"]
    others += ["from torch.nn.attention import SDPBackend, sdpa_kernel"] * ("sdpa_kernel" in text)
    others += ["from torch.utils.checkpoint import checkpoint"] * ("checkpoint(" in text)
    others += [f"from torch.utils.data import {names}"] * bool(names)
    blocks = (own, environment, others)
    return ["\n".join(block) for block in blocks if block]
