"""The execution of a training step on a machine: every field with its reason.

What is computed (model, loss, data order, batch size) belongs to the experiment; a recipe changes
only how fast, and within stated numerics. `clip_norm` stands here because it is applied by the
step, but its value is the experiment's.

To add a field
--------------

1. Here: its `Literal`, if its values have names; its line in the docstring of `Recipe`; a `Choice`
   with a default, without which old runs can no longer be read; a number's range in `_RANGES`.
2. Its default, with a reason: `engine/recipe/default_recipe.py`. What cannot be combined, or has no
   effect: `engine/recipe/recipe_checks.py`; with ranks, `engine/training/run_checks.py`
   (`check_ranks`, `_without_effect`).
3. Carried out where `engine/session/session.py` reads it: `process_settings` for the process,
   `Session.__init__` when objects are built, `step_parts` (and `StepParts` in
   `engine/step/step.py`) for each step; `Session.adapt`, if it may change during training.
4. If a search may try it: a candidate in `tune/candidates.py`, and its plain value in
   `plain_changes`; `tune/gate.py: _CONCERNED`; how its effect is observed, in
   `engine/tuner/effect_checks.py: _EFFECT_CHECKS`; `engine/gate/fixtures.py: small`, if the gate
   must set it. Emitted as code: `tune/emit/code.py: _flags_of_step` and `tune/emit/code_loop.py`;
   as settings: `tune/emit/settings_text.py`, or named in `settings.py: _missing`.
5. `system/store/recipe_cache.py: left_to_ranks`, if it suits a single process only;
   `engine/predict/predictor.py: _OF_USE`, if it also matters where nothing is trained.
6. Shown: `cli/render/wording.py: recipe_text`; described: docs/recipe.md, a heading.
7. Tests that list all fields: test_recipe_places.py (each place above, or a reason), test_code.py
   (`CHANGED`, or `none`), test_settings.py (`CHANGED`), test_recipe_file.py (`VALUES`);
   test_show.py (`_VALUES`), if shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from flatout.errors import UsageError, nearest

T = TypeVar("T")

Origin = Literal["yours", "measured", "estimated", "default"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "float8"]
DataPath = Literal["sliced", "resident", "loader", "cached"]
OptimizerImplementation = Literal["own", "for-loop", "foreach", "fused"]
MemoryFormat = Literal["contiguous", "channels_last"]
Attention = Literal["auto", "math", "flash", "efficient", "cudnn"]
Allocator = Literal["system", "retain"]
Compiled = Literal["off", "loss", "optimizer", "both"]
CompileMode = Literal["default", "max-autotune-no-cudagraphs", "dynamic"]
CpuAffinity = Literal["all", "one-per-core", "performance-cores"]
NonfiniteLoss = Literal["stop", "skip"]
OutOfMemory = Literal["auto", "shrink", "stop"]
Capture = Literal["off", "step"]
Sharding = Literal["none", "full"]
BatchNorm = Literal["per-rank", "synchronized"]
Exchange = Literal["agreed", "plain"]


# Sides of matrices that tensor cores multiply in 8 bits are multiples of this.
FLOAT8_MULTIPLE = 16


class Choice(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A value that says why it was chosen and who chose it."""

    value: T
    why: str
    origin: Origin = "default"
    evidence: str | None = None


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The execution of a step.

    device: `cpu`, `cuda` or `cuda:N`.
    precision: `fp32`; `tf32` (fp32 storage, tensor-core products); `bf16` autocast;
        `fp16` autocast with a loss scaler; `float8` products of linear layers, and `bf16` autocast.
    data_path: `sliced` tensors in memory, `resident` on the device; a DataLoader, or samples
        `cached` in memory as they are read for the first time.
    loader_*: workers, batches prefetched per worker, pinned memory, workers kept between epochs.
    optimizer_implementation: `own` leaves the optimizer as the experiment built it.
    attention: the kernel of torch's scaled_dot_product_attention; `auto` leaves it to torch.
    memory_format: of 4-dimensional weights and inputs.
    micro_batch_size: samples per forward; the batch is accumulated from as many as it takes.
    activation_checkpointing: repeated blocks keep their inputs alone, and compute their
        activations again in the backward pass: none, all, or this share of them.
    capture: `step` records whole updates as CUDA graphs, and launches them without Python.
    steps_per_launch: updates in a graph.
    compiled: what torch.compile turns into code: the forward pass with its `loss`, the step of the
        `optimizer`, both, or nothing.
    compile_mode: how; `dynamic` makes one code for all shapes.
    sharding: of several ranks: `full` spreads weights, gradients and moments over them.
    batch_norm: of several ranks: statistics of each `per-rank` share, or `synchronized` ones.
    exchange: of several ranks: each exchange is `agreed` on by all of them first, or `plain`.
    clip_norm: largest gradient norm (2-norm over all parameters), None for no clipping.
    num_threads: intra-op threads of the CPU.
    cpu_affinity: the CPUs that threads run on: `all` that the process may use, one of each core,
        or one of each performance core.
    allocator: `system` leaves freed memory to the C library; `retain` keeps it in the process.
    deterministic: only algorithms that repeat bit for bit.
    benchmark: cuDNN times its algorithms for each shape of a convolution, and takes the fastest.
    nonfinite_loss: `stop` the run at a NaN or infinite loss, or `skip` that batch's update.
    out_of_memory: `auto` continues with less where the same is computed, `shrink` also where
        BatchNorm sees smaller micro-batches, `stop` ends the run.
    checkpoint_every: steps between checkpoints; None chooses by measured cost (<= 2 %).
    """

    device: Choice[str]
    precision: Choice[Precision]
    data_path: Choice[DataPath]
    loader_workers: Choice[int]
    loader_prefetch: Choice[int]
    loader_pin_memory: Choice[bool]
    loader_persistent: Choice[bool]
    optimizer_implementation: Choice[OptimizerImplementation]
    memory_format: Choice[MemoryFormat]
    attention: Choice[Attention]
    micro_batch_size: Choice[int]
    activation_checkpointing: Choice[bool | float] = Choice(
        value=False, why="no such field when this recipe was chosen"
    )
    capture: Choice[Capture] = Choice(value="off", why="no such field when this recipe was chosen")
    steps_per_launch: Choice[int] = Choice(value=1, why="no such field when this recipe was chosen")
    compiled: Choice[Compiled] = Choice(
        value="off", why="no such field when this recipe was chosen"
    )
    compile_mode: Choice[CompileMode] = Choice(
        value="default", why="no such field when this recipe was chosen"
    )
    sharding: Choice[Sharding] = Choice(
        value="none", why="no such field when this recipe was chosen"
    )
    batch_norm: Choice[BatchNorm] = Choice(
        value="per-rank", why="no such field when this recipe was chosen"
    )
    exchange: Choice[Exchange] = Choice(
        value="agreed", why="no such field when this recipe was chosen"
    )
    clip_norm: Choice[float | None]
    num_threads: Choice[int]
    cpu_affinity: Choice[CpuAffinity] = Choice(
        value="all", why="no such field when this recipe was chosen"
    )
    allocator: Choice[Allocator] = Choice(
        value="system", why="no such field when this recipe was chosen"
    )
    deterministic: Choice[bool]
    benchmark: Choice[bool] = Choice(value=False, why="no such field when this recipe was chosen")
    nonfinite_loss: Choice[NonfiniteLoss]
    out_of_memory: Choice[OutOfMemory] = Choice(
        value="auto", why="no such field when this recipe was chosen"
    )
    checkpoint_every: Choice[int | None]


# Smallest and largest value that make sense, for the fields that are numbers.
_RANGES: dict[str, tuple[float, float]] = {
    "loader_workers": (0, 1024),
    "loader_prefetch": (1, 1024),
    "micro_batch_size": (1, 2**31),
    "activation_checkpointing": (0, 1),
    "steps_per_launch": (1, 1024),
    "clip_norm": (0.0, 1e30),
    "num_threads": (1, 1024),
    "checkpoint_every": (1, 2**53),
}


def recipe_fields() -> dict[str, Any]:
    """Every recipe field with the type of its value, in the order shown to people."""
    return {field.name: get_args(field.type)[0] for field in msgspec.structs.fields(Recipe)}


def parse_field(name: str, text: str) -> Any:
    """The value of a recipe field written as text (`precision`, `bf16`).

    Raises:
        UsageError: unknown-recipe-field, bad-recipe-value.
    """
    text = text.strip()
    # A value of that name, as of `sharding`, is not the absence of one.
    is_absent = text.lower() == "none" and text not in get_args(recipe_fields().get(name))
    return check_field(name, None if is_absent else text)


def check_field(name: str, value: Any) -> Any:
    """A recipe field's value, converted where it is text, else refused with the reason.

    Raises:
        UsageError: unknown-recipe-field, bad-recipe-value.
    """
    kinds = recipe_fields()
    if name not in kinds:
        raise UsageError(
            "unknown-recipe-field", f"a recipe has no field `{name}`.", fix=nearest(name, kinds)
        )
    try:
        checked = msgspec.convert(value, kinds[name], strict=False)
    except msgspec.ValidationError as error:
        raise _bad_value(name, value, str(error)) from error
    if name in _RANGES and checked is not None:
        least, most = _RANGES[name]
        # Written so that NaN, which compares with nothing, is refused too.
        if not least <= checked <= most:
            raise _bad_value(name, value, f"it must be between {least:g} and {most:g}")
    if name == "device" and not _DEVICE.fullmatch(checked):
        raise _bad_value(name, value, "a device is cpu, cuda or cuda:N")
    return checked


_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,4})?")


def _bad_value(name: str, value: Any, reason: str) -> UsageError:
    kind = recipe_fields()[name]
    allowed = ", ".join(map(str, get_args(kind))) if get_origin(kind) is Literal else ""
    return UsageError(
        "bad-recipe-value",
        f"`{name}={value}` is not a valid value for this recipe field.",
        because=reason,
        fix=f"use one of: {allowed}" if allowed else f"see what {name} means: flatout docs recipe",
    )


def fixed_fields(use: Mapping[str, Any] | None, device: str | None) -> dict[str, Any]:
    """Recipe fields that are fixed, checked.

    Raises:
        UsageError: set-twice, unknown-recipe-field, bad-recipe-value.
    """
    given = dict(use or {})
    if device is not None:
        if given.get("device", device) != device:
            raise UsageError(
                "set-twice",
                f"`device` is set twice: {given['device']} and {device}.",
                fix="give it once",
            )
        given["device"] = device
    return {field: check_field(field, value) for field, value in given.items()}
