"""Each field of the recipe is known wherever forgetting it would go unnoticed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from flatout.schema.recipe import _RANGES, Recipe, recipe_fields

SRC = Path(__file__).resolve().parents[2] / "src" / "flatout"
_KEPT = "a search never changes it"
_UNSEARCHED = dict.fromkeys(
    ("device", "clip_norm", "sharding", "batch_norm", "exchange", "nonfinite_loss",
     "out_of_memory", "checkpoint_every", "deterministic"),
    _KEPT,
)  # fmt: skip
_SHORT = "not in a recipe in one line; `flatout show --recipe` has it"
_FITS = "suits several ranks as it suits one"
# Place -> fields that are not named there, each with its reason.
PLACES: dict[str, dict[str, str]] = {
    "engine/recipe/default_recipe.py": {},
    # A field that is left out there concerns everything: slower, never wrong.
    "tune/gate.py: _CONCERNED": {
        **{name: why for name, why in _UNSEARCHED.items()
           if name not in ("deterministic", "checkpoint_every")},
        "micro_batch_size": "concerns everything",
        "activation_checkpointing": "concerns everything",
    },
    "tune/candidates.py: plain_changes": {
        **_UNSEARCHED,
        "attention": "its default leaves it to torch, as a plain loop does",
        "data_path": "a plain loop is built without one: engine/tuner/baseline_loop.py",
        "loader_prefetch": "its default is torch's",
        "activation_checkpointing": "its default is none",
    },
    "engine/tuner/effect_checks.py: _EFFECT_CHECKS": {
        **_UNSEARCHED,
        "benchmark": "no trace shows which algorithm cuDNN has chosen",
        "loader_persistent": "shows only between epochs",
        "steps_per_launch": "seen with `capture`",
        "compile_mode": "seen with `compiled`",
    },
    "system/store/recipe_cache.py: left_to_ranks": dict.fromkeys(
        (
            "activation_checkpointing", "allocator", "attention", "batch_norm", "benchmark",
            "checkpoint_every", "clip_norm", "data_path", "deterministic", "device", "exchange",
            "loader_persistent", "loader_pin_memory", "loader_prefetch", "loader_workers",
            "memory_format", "micro_batch_size", "nonfinite_loss", "optimizer_implementation",
            "out_of_memory", "precision", "sharding",
        ),
        _FITS,
    ),
    "cli/render/wording.py: recipe_text": dict.fromkeys(
        (
            "attention", "benchmark", "checkpoint_every", "compile_mode", "loader_persistent",
            "loader_pin_memory", "loader_prefetch", "nonfinite_loss", "out_of_memory",
        ),
        _SHORT,
    ),
}  # fmt: skip


def source_of(place: str) -> str:
    """The text of a file, or of a function, class or table in it."""
    path, _, name = place.partition(": ")
    text = (SRC / path).read_text(encoding="utf-8")
    if not name:
        return text
    for node in ast.parse(text).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node
        if name in (getattr(target, "name", None), getattr(target, "id", None)):
            return ast.get_source_segment(text, node) or ""
    raise AssertionError(f"{place} is elsewhere now")


@pytest.mark.parametrize("place", PLACES)
def test_every_field_is_named_or_left_out_with_a_reason(place: str) -> None:
    text = source_of(place)
    unnamed = {name for name in recipe_fields() if not re.search(rf"\b{name}\b", text)}
    assert unnamed - PLACES[place].keys() == set(), "name it there, or say here why not"
    assert PLACES[place].keys() - unnamed == set(), "a reason that is no longer needed"


def test_every_field_is_described() -> None:
    described = Recipe.__doc__ or ""
    loader = {name for name in recipe_fields() if name.startswith("loader_")}
    assert "loader_*:" in described
    missing = [name for name in recipe_fields() if f"    {name}: " not in described]
    assert set(missing) - loader == set()


def test_every_number_has_a_range() -> None:
    numbers = {
        name
        for name, kind in recipe_fields().items()
        if {int, float} & {kind, *get_args(kind)} and kind is not bool
    }
    assert numbers == set(_RANGES)


def test_every_field_is_carried_out() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (SRC / "engine").rglob("*.py")]
    read = {name for text in texts for name in re.findall(r"recipe\.(\w+)", text)}
    assert set(recipe_fields()) - read == set()


def test_source_of_when_it_is_elsewhere() -> None:
    with pytest.raises(AssertionError):
        source_of("schema/recipe.py: NoSuchTable")
