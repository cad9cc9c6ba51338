"""A recipe as settings for another tool: Lightning, the Hugging Face Trainer, Accelerate.

A piece of Python to paste: it needs a few names, which its docstring lists. Each setting has the
recipe's own reason; at the end stands what the tool cannot express. The text is in
`settings_text.py`.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping

import msgspec

from flatout.schema.code_outline import CodeOutline
from flatout.schema.recipe import Recipe, recipe_fields
from flatout.schema.run import RunHeader
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Emit
from flatout.tune.emit import code_data, code_loop, settings_text
from flatout.tune.emit.code import (
    EmitInput,
    environment_of,
    flags_of,
    reasons_of,
    result_text,
    sober,
    values_of,
)
from flatout.tune.emit.code_lines import Filling, comment_lines, filled

_WIDTH = 100


class _Tool(msgspec.Struct, frozen=True, kw_only=True):
    """name: in a sentence. texts: its settings. imported: names, by the module they come from."""

    name: str
    texts: tuple[str, ...]
    imported: Mapping[str, tuple[str, ...]] = {}


_TOOLS: dict[Emit, _Tool] = {
    "lightning": _Tool(
        name="Lightning",
        texts=(settings_text.LOADER, settings_text.LIGHTNING),
        imported={"lightning.pytorch.callbacks": ("ModelCheckpoint",)},
    ),
    "hf": _Tool(
        name="the Hugging Face Trainer",
        texts=(settings_text.TRANSFORMERS,),
        imported={"transformers": ("Trainer", "TrainingArguments")},
    ),
    "accelerate": _Tool(
        name="Accelerate",
        texts=(settings_text.LOADER, settings_text.ACCELERATE),
        imported={
            "accelerate": ("Accelerator",),
            "accelerate.utils": ("DataLoaderConfiguration", "TorchDynamoPlugin"),
        },
    ),
}
# Flags that must all hold, and the text that then comes before the settings.
_SECTIONS = (
    ("tensors", code_data.EACH),
    ("tensors", settings_text.ROWS),
    ("tensors", code_data.UNCHANGED),
    ("recomputed_blocks", code_loop.RECOMPUTED),
    ("pinned", code_loop.KEEP_ON),
    ("retained", code_loop.RETAIN),
    ("hf layout", settings_text.CONTIGUOUS),
    ("lightning implementation", settings_text.OPTIMIZERS),
)
_MODULES = ("ctypes", "os")
_IMPORTED = {
    "torch.nn.attention": ("SDPBackend", "sdpa_kernel"),
    "torch.utils.checkpoint": ("checkpoint",),
    "torch.utils.data": ("DataLoader", "Dataset"),
}


def settings(header: RunHeader, tuned: TunedRecipe, outline: CodeOutline, emit: Emit) -> str:
    """The settings of a tool that train with a recipe, as a piece of Python.

    Args:
        header: of the search; names the experiment and the machine.
        tuned: what it has found.
        outline: of the experiment.
        emit: the tool.
    """
    given, tool = EmitInput(header=header, recipe=tuned.recipe, outline=outline), _TOOLS[emit]
    flags = _flags(given, emit)
    filling = Filling(
        flags=flags, values=_values(given, emit), reasons=reasons_of(given.recipe), texts={}
    )
    helpers = [text for words, text in _SECTIONS if all(flags[word] for word in words.split())]
    body = "\n\n\n".join(filled(text, filling) for text in helpers)
    lines = "\n".join(filled(text, filling) for text in (settings_text.SHARED, *tool.texts))
    visible = filled(settings_text.VISIBLE, filling)
    environment = "\n".join([*environment_of(given), visible]).strip()
    closing = "\n".join(_closing(given, emit, f"{environment}\n{lines}"))
    parts = [_about(given, tuned, emit), *_imports(tool, environment, f"{body}\n{lines}")]
    if flags["resident"]:
        parts.append(f'DEVICE = torch.device("{_device(given.recipe, emit)}")')
    settings_block = "\n\n".join([lines, closing])
    separate = "\n\n\n" if body else "\n\n"
    return separate.join(["\n\n".join(parts), *([body] if body else []), settings_block]) + "\n"


def _flags(given: EmitInput, emit: Emit) -> dict[str, bool]:
    """The needed parts of the text, by name; those of a program first."""
    recipe, outline = given.recipe, given.outline
    flags = flags_of(given)
    is_read = outline.data_kind != "tensors"
    has_workers = is_read and recipe.loader_workers.value > 0
    is_own_argument = emit == "hf" and outline.self_checkpointing == ("",)
    return {
        **flags,
        **{str(tool): tool == emit for tool in _TOOLS},
        "resident": flags["resident"] and not is_read,
        "read": is_read,
        "workers": has_workers,
        "pin": is_read and flags["cuda"] and recipe.loader_pin_memory.value,
        "collated": is_read and outline.has_collate,
        "steps": outline.is_by_steps or (emit == "hf" and outline.data_kind == "iterable"),
        "precise": flags["cuda"] or flags["autocast"],
        "dynamic": recipe.compile_mode.value == "dynamic",
        "own_argument": flags["recomputed_by_itself"] and is_own_argument,
        "enabled_by_hand": flags["recomputed_by_itself"] and not is_own_argument,
        "changed_groups": flags["implementation"] and emit != "lightning",
        "checkpoints": recipe.checkpoint_every.value is not None,
        "callbacks": flags["implementation"] or recipe.checkpoint_every.value is not None,
    }


def _values(given: EmitInput, emit: Emit) -> dict[str, str]:
    recipe = given.recipe
    precision = "bf16" if recipe.precision.value == "float8" else recipe.precision.value
    names = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
    is_dynamic = recipe.compile_mode.value == "dynamic"
    per_forward, num_parts = _split(given)
    every = recipe.checkpoint_every.value
    callbacks = ["OptimizerImplementation()"] * (recipe.optimizer_implementation.value != "own")
    callbacks += [f"ModelCheckpoint(every_n_train_steps={every})"] * (every is not None)
    return {
        **values_of(given),
        "network": "module" if emit == "lightning" else "model",
        "batch_size": str(per_forward),
        "num_parts": str(num_parts),
        "gpu": _index(recipe),
        "precision": names.get(precision, "32-true"),
        "mixed_precision": precision if precision in names else "no",
        "is_deterministic": str(recipe.deterministic.value),
        "is_pinning": str(recipe.loader_pin_memory.value),
        # The recipe's kernel applies to all of a training here, also to what is computed again.
        "kernel_of_block": "",
        # For the Trainer, 0 is no clipping.
        "largest_norm": str(recipe.clip_norm.value or 0.0),
        "mode": "default" if is_dynamic else recipe.compile_mode.value,
        "num_workers": str(recipe.loader_workers.value),
        "callbacks": ", ".join(callbacks),
        "checkpoint_every": str(every),
    }


def _split(given: EmitInput) -> tuple[int, int]:
    """Samples in each forward pass, and forward passes in an update."""
    batch_size, micro = given.outline.batch_size, given.recipe.micro_batch_size.value
    num_parts = math.ceil(batch_size / min(micro, batch_size))
    return math.ceil(batch_size / num_parts), num_parts


def _index(recipe: Recipe) -> str:
    return recipe.device.value.partition(":")[2] or "0"


def _device(recipe: Recipe, emit: Emit) -> str:
    """The device by the number that it has in the tool's process."""
    return f"cuda:{_index(recipe) if emit == 'lightning' else 0}"


def _imports(tool: _Tool, environment: str, text: str) -> Iterator[str]:
    """Python's imports, the environment, then those of the other packages."""
    known = f"{environment}\n{text}"
    own = [f"import {name}" for name in _MODULES if re.search(rf"(?<![\w.]){name}\.", known)]
    own += ["from typing import Any"] * (re.search(r"\bAny\b", text) is not None)
    yield from ("\n".join(block) for block in (own, [environment]) if any(block))
    others = ["import lightning"] * ("lightning." in text) + ["import torch"]
    for module, names in sorted({**_IMPORTED, **tool.imported}.items()):
        used = [name for name in names if re.search(rf"\b{name}\b[(.)]", text)]
        others += [f"from {module} import {', '.join(used)}"] * bool(used)
    yield "\n".join(others)


def _about(given: EmitInput, tuned: TunedRecipe, emit: Emit) -> str:
    """The docstring, with the names that must exist."""
    title = f"{given.header.spec.name} in {_TOOLS[emit].name}, with the recipe that flatout found."
    summary = (
        f"{result_text(given, tuned)} Speed is that of flatout's own loop. Seeds, the order of "
        "samples and what is not about speed (schedule, validation, averages) are yours. Paste it "
        "where these names exist:"
    )
    lines = [sober(title), "", *textwrap.wrap(sober(summary), _WIDTH), ""]
    for name, meaning in _names(given, emit):
        lines.append(f"    {name}: {meaning}")
    return '"""' + "\n".join(lines) + '\n"""'


def _names(given: EmitInput, emit: Emit) -> Iterator[tuple[str, str]]:
    """The names that must exist, and what they are."""
    flags = _flags(given, emit)
    if emit == "lightning":
        yield "module", "the LightningModule"
        if flags["recomputed"] or flags["compiled_loss"]:
            yield "model", "the network in it, as in the experiment"
    else:
        yield "model", "its forward pass returns the loss" if emit == "hf" else "the network"
        yield "optimizer", "the optimizer of its parameters"
    if emit == "accelerate":
        result = "a sum and its count" if flags["counted"] else "the loss"
        yield "loss_of", f"a function of model and batch that returns {result}"
    if flags["read"]:
        yield "dataset", "the training data, which returns samples"
    elif emit == "hf":
        yield "tensors", "the training data: a dict of tensors, named as the model's arguments"
    else:
        yield "tensors", "the training data: a tensor, or a tuple or dict of them"
    if flags["collated"]:
        yield "collate", "makes a batch from a list of samples"
    is_by_steps = flags["steps"] and emit != "accelerate"
    length = "updates" if is_by_steps else "passes over the data"
    yield "steps" if is_by_steps else "epochs", f"the number of {length}"


def _closing(given: EmitInput, emit: Emit, written: str) -> Iterator[str]:
    """Comments: what the tool cannot express, and the fields for which nothing is set."""
    name = _TOOLS[emit].name
    missing = list(_missing(given, emit))
    yield f"# What {name} cannot express:"
    for field, text in missing:
        value = getattr(given.recipe, field).value
        first, *rest = textwrap.wrap(f"{field} {value}: {text}.", _WIDTH - 4)
        yield f"# - {first}"
        yield from (f"#   {line}" for line in rest)
    named = {field for field, _ in missing}
    named |= set(re.findall(r"^ *# (\w+) ", written, re.M))
    others = [
        f"{field} {getattr(given.recipe, field).value}"
        for field in recipe_fields()
        if field not in named
    ]
    if others:
        yield "#"
        yield from comment_lines(f"Nothing to set: {', '.join(others)}.")


def _missing(given: EmitInput, emit: Emit) -> Iterator[tuple[str, str]]:
    """Fields that the tool cannot express as flatout does, and what it does instead."""
    recipe, name = given.recipe, _TOOLS[emit].name
    yield from _missing_of_data(given, emit)
    yield from _missing_of_step(given, emit)
    if recipe.cpu_affinity.value != "all" and _flags(given, emit)["workers"]:
        yield "cpu_affinity", "loader workers inherit it; flatout's may use all CPUs"
    if not recipe.device.value.startswith("cuda") and recipe.num_threads.value > 1:
        text = (
            "if there are as many threads as CPUs, flatout also pins each to a CPU of its own "
            f"during a step; {name} does not"
        )
        yield "num_threads", text
    after_nan = {
        "lightning": "Lightning trains on; EarlyStopping on the logged loss ends the training",
        "hf": "the Trainer trains on",
        "accelerate": "the loop above trains on; checking each loss would wait for the device",
    }
    yield "nonfinite_loss", after_nan[emit]
    if recipe.out_of_memory.value != "stop":
        # The Trainer can try a smaller batch, but then also makes smaller updates.
        yield "out_of_memory", f"{name} does not continue with smaller micro-batches"
    if recipe.checkpoint_every.value is None:
        often = {
            "lightning": "one after each epoch", "hf": "one every 500 updates",
            "accelerate": "none",
        }  # fmt: skip
        text = f"flatout measures what a checkpoint costs; {name} writes {often[emit]}"
        yield "checkpoint_every", text
    elif emit == "accelerate":
        yield "checkpoint_every", "call accelerator.save_state in the loop"
    several = {"sharding": "none", "batch_norm": "per-rank", "exchange": "agreed"}
    for field, plain in several.items():
        if getattr(recipe, field).value != plain:
            yield field, "it is for several processes, and this recipe is for one"


def _missing_of_data(given: EmitInput, emit: Emit) -> Iterator[tuple[str, str]]:
    recipe, outline = given.recipe, given.outline
    name = _TOOLS[emit].name
    if recipe.data_path.value == "cached":
        text = (
            f"{name} caches no decoded samples; the loader reads each of them in every epoch. "
            "Cache them in the dataset"
        )
        yield "data_path", text
    per_forward, num_parts = _split(given)
    if num_parts == 1:
        return
    if per_forward * num_parts != outline.batch_size:
        text = (
            f"all micro-batches are of one size, so an update takes {per_forward * num_parts} "
            f"samples, not {outline.batch_size}"
        )
        yield "micro_batch_size", text
    if emit != "hf":
        text = (
            f"{name} divides each loss by {num_parts}, also at the end of an epoch, where fewer "
            "are left, and whatever each of them counts"
        )
        yield "micro_batch_size", text
    elif outline.is_counted:
        text = (
            "the Trainer weights losses by what they count only if the model's forward pass takes "
            "num_items_in_batch"
        )
        yield "micro_batch_size", text


def _missing_of_step(given: EmitInput, emit: Emit) -> Iterator[tuple[str, str]]:
    recipe, outline, name = given.recipe, given.outline, _TOOLS[emit].name
    if recipe.precision.value == "float8":
        text = (
            "only its bf16 autocast is set; linear layers in 8 bits need another package, which "
            "rounds differently"
        )
        yield "precision", text
    if recipe.capture.value != "off":
        graphs = f"{name} launches each operation from Python; CUDA graphs need a loop of your own"
        yield "capture", f"{graphs}: `flatout tune --emit code` prints one"
        yield "steps_per_launch", "without CUDA graphs, each update is launched by itself"
    if recipe.compiled.value in ("optimizer", "both"):
        yield "compiled", f"{name} does not compile the optimizer's step"
    is_compiled = recipe.compiled.value in ("loss", "both")
    if is_compiled:
        yield "compiled", "the model is compiled, but not a loss outside of it"
    if is_compiled and recipe.compile_mode.value == "dynamic" and emit == "hf":
        yield "compile_mode", "torch compiles for all shapes only after a second one has come"
    if recipe.activation_checkpointing.value not in (False, True) and outline.self_checkpointing:
        yield "activation_checkpointing", "all blocks are computed again, not only this share"
    if recipe.clip_norm.value is None and emit == "hf":
        yield "clip_norm", "transformers 5 computes the norm of the gradients anyway"
