"""A recipe in a file, as a search leaves it, fixes the fields of another training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flatout.errors import UsageError
from flatout.runs.start import specify
from flatout.schema.recipe import Choice, Recipe, recipe_fields
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files
from flatout.system.store.recipe_cache import fields_in, left_to_ranks

VALUES: dict[str, Any] = {
    "device": "cpu", "precision": "bf16", "attention": "auto", "data_path": "loader",
    "loader_workers": 2, "loader_prefetch": 4, "loader_pin_memory": False,
    "loader_persistent": True, "optimizer_implementation": "fused",
    "memory_format": "channels_last", "micro_batch_size": 8, "clip_norm": None, "num_threads": 3,
    "deterministic": True, "nonfinite_loss": "skip", "checkpoint_every": None,
    "activation_checkpointing": False, "cpu_affinity": "all", "allocator": "system",
    "out_of_memory": "auto", "capture": "step", "steps_per_launch": 8, "compiled": "off",
    "compile_mode": "default", "sharding": "none", "batch_norm": "per-rank",
    "exchange": "agreed", "benchmark": False,
}  # fmt: skip


def recipe_file(folder: Path, **fields: Any) -> Path:
    choices = {name: Choice(value=value, why="so") for name, value in (VALUES | fields).items()}
    path = folder / "recipe.json"
    atomic_files.write_json(path, Recipe(**choices))
    return path


def test_fields_in_are_all_of_them(tmp_path: Path) -> None:
    assert fields_in(recipe_file(tmp_path)) == VALUES
    assert set(VALUES) == set(recipe_fields())


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({"data_path": "sliced"}, {n for n in VALUES if n.startswith("loader_")}),
        ({"loader_workers": 0}, {"loader_prefetch", "loader_persistent"}),
        ({"data_path": "cached"}, {"loader_persistent"}),
    ],
)
def test_fields_in_when_some_have_no_effect(
    tmp_path: Path, fields: dict[str, Any], left_out: set[str]
) -> None:
    assert set(VALUES) - set(fields_in(recipe_file(tmp_path, **fields))) == left_out


@pytest.mark.parametrize("text", [None, "", "[1]", '{"device": {}}'])
def test_fields_in_when_it_is_no_recipe(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "recipe.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        fields_in(path)
    assert caught.value.rule == "recipe-not-readable"


def test_fields_in_when_a_value_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        fields_in(recipe_file(tmp_path, num_threads=0))
    assert caught.value.rule == "bad-recipe-value"


def test_train_with_a_recipe_fixes_its_fields_and_searches_nothing(
    cli: Any, tmp_path: Path
) -> None:
    path = str(recipe_file(tmp_path))
    done = cli.run(*cli.train("--recipe", path, "--use", "num_threads=1"))
    assert done.returncode == 0, done.stderr
    spec = json.loads((cli.runs / "mine-0001" / "run.json").read_text())["spec"]
    assert spec["fixed"] == VALUES | {"num_threads": 1}
    assert spec["tuning"]["mode"] == "off"


def test_a_resume_takes_no_recipe() -> None:
    with pytest.raises(UsageError) as caught:
        TrainRequest(resume="last", recipe="recipe.json").check()
    assert caught.value.rule == "cannot-change-on-resume"


def test_ranks_do_without_what_was_found_for_one_process(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, cpu_affinity="one-per-core", capture="off", compiled="loss")
    fields = fields_in(path)
    own = {"cpu_affinity", "compiled", "compile_mode"}
    assert set(left_to_ranks(fields)) == {*own, "num_threads"}
    alone = TrainRequest(experiment="digits", recipe=str(path), uses=("num_threads=1",))
    kept = fields | {"num_threads": 1}
    spec = specify(structs.replace(alone, on="local:2"))
    assert set(spec.not_fixed) == own
    assert spec.fixed == {name: value for name, value in kept.items() if name not in own}
    for one in (alone, structs.replace(alone, on="local:1")):
        assert specify(one).fixed == kept
