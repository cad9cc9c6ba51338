"""Recipes and outlines of experiments, for tests of what is written from them."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from flatout.schema.code_outline import CodeOutline, DataKind, Scheduling
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.recipe import (
    Allocator,
    Attention,
    Capture,
    Choice,
    Compiled,
    CompileMode,
    CpuAffinity,
    MemoryFormat,
    NonfiniteLoss,
    OptimizerImplementation,
    Precision,
    Recipe,
)
from flatout.schema.run import RunHeader
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.schema.tuning import Decision, Interval

PLAIN: dict[str, Any] = {
    "device": "cpu", "precision": "fp32", "attention": "auto", "data_path": "sliced",
    "loader_workers": 0,
    "loader_prefetch": 2, "loader_pin_memory": False, "loader_persistent": False,
    "optimizer_implementation": "own", "memory_format": "contiguous", "micro_batch_size": 8,
    "clip_norm": None, "num_threads": 1, "deterministic": True, "nonfinite_loss": "stop",
    "checkpoint_every": None, "activation_checkpointing": False, "cpu_affinity": "all",
    "allocator": "system", "compiled": "off", "compile_mode": "default",
}  # fmt: skip
OUTLINE = CodeOutline(
    data_kind="tensors",
    batch_size=8,
    num_gathered=4096,
    blocks=("blocks.0", "blocks.1"),
    cpus={"one-per-core": (0, 2, 4, 6, 8, 9), "performance-cores": (1, 3)},
)
LOADED = {"data_path": "loader", "loader_workers": 2}


def recipe(**fields: Any) -> Recipe:
    """A plain recipe with these fields."""
    values = PLAIN | fields
    return Recipe(**{name: Choice(value=value, why="so") for name, value in values.items()})


def header(**spec: Any) -> RunHeader:
    """The header of a search for the recipe of `rings`, or of another experiment."""
    experiment = ExperimentSpec(**({"name": "rings", "file": "/home/me/rings.py"} | spec))
    return RunHeader(
        id="rings-0001", created_at=0.0, flatout_version="1.2.3", python="", spec=experiment
    )


def tuned(chosen: Recipe) -> TunedRecipe:
    """A recipe that was measured."""
    decision = Decision(
        is_default=False, changes={}, rungs=(), lost=(), refused=(), skipped=(),
        speedup=Interval(middle=1.2, low=1.1, high=1.3), why="it was", search_s=1.0,
        over_plain=Interval(middle=1.5, low=1.4, high=1.6),
    )  # fmt: skip
    return TunedRecipe(
        folder="", recipe=chosen, decision=decision, is_from_cache=False, unit="rows"
    )


def outlines() -> st.SearchStrategy[CodeOutline]:
    """Outlines of all kinds of experiments."""
    kinds = st.sampled_from(get_args(DataKind))
    flags = (
        "is_shuffled", "has_collate", "has_named_parameters", "is_counted", "is_by_steps",
        "has_ema", "has_metrics", "has_early_stop", "is_smaller_better",
    )  # fmt: skip
    return st.builds(
        CodeOutline,
        data_kind=kinds,
        batch_size=st.just(8),
        num_gathered=st.just(4096),
        num_gathered_validation=st.just(4096),
        validation_kind=st.none() | kinds,
        scheduling=st.none() | st.sampled_from(get_args(Scheduling)),
        validate_every=st.none() | st.just(50),
        blocks=st.sampled_from([(), ("0",), tuple(f"encoder.layers.{n}" for n in range(12))]),
        self_checkpointing=st.sampled_from([(), ("", "other")]),
        **{name: st.booleans() for name in flags},
    ).filter(
        lambda one: one.validation_kind or not (one.has_early_stop or one.scheduling == "plateau")
    )


def recipes() -> st.SearchStrategy[Recipe]:
    """Recipes of all kinds."""
    values = {
        "device": st.sampled_from(["cpu", "cuda:0"]),
        "precision": st.sampled_from(get_args(Precision)),
        "attention": st.sampled_from(get_args(Attention)),
        "compiled": st.sampled_from(get_args(Compiled)),
        "compile_mode": st.sampled_from(get_args(CompileMode)),
        "data_path": st.sampled_from(["sliced", "resident"]),
        "loader_workers": st.sampled_from([0, 2]),
        "loader_pin_memory": st.booleans(),
        "loader_persistent": st.booleans(),
        "optimizer_implementation": st.sampled_from(get_args(OptimizerImplementation)),
        "memory_format": st.sampled_from(get_args(MemoryFormat)),
        "micro_batch_size": st.sampled_from([8, 3]),
        "clip_norm": st.sampled_from([None, 1.0]),
        "num_threads": st.sampled_from([1, 8]),
        "cpu_affinity": st.sampled_from(get_args(CpuAffinity)),
        "allocator": st.sampled_from(get_args(Allocator)),
        "deterministic": st.booleans(),
        "nonfinite_loss": st.sampled_from(get_args(NonfiniteLoss)),
        "activation_checkpointing": st.sampled_from([False, True, 0.25, 0.5]),
        "capture": st.sampled_from(get_args(Capture)),
        "steps_per_launch": st.sampled_from([1, 8]),
    }
    return st.fixed_dictionaries(values).map(lambda fields: recipe(**fields))
