"""What a training does when its memory has run out: with figures of trainings that are not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.cli.render.wording import adaptation_text
from flatout.engine.runlog.history import read_history
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run_lines import RecipeSet
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder
from flatout.tune.oom_policy import Growth, OomOptions, growth, is_moved, oom_recipe_fields

MEANS = OomOptions(batch_size=50, has_batch_norm=False, has_own_step=False, has_blocks=False)
VALUES: dict[str, Any] = {
    "device": "cpu", "precision": "fp32", "data_path": "sliced", "loader_workers": 0,
    "loader_prefetch": 2, "loader_pin_memory": False, "loader_persistent": False,
    "optimizer_implementation": "own", "memory_format": "contiguous", "attention": "auto",
    "micro_batch_size": 50, "activation_checkpointing": False, "clip_norm": None,
    "num_threads": 1, "deterministic": True, "nonfinite_loss": "stop", "out_of_memory": "auto",
    "checkpoint_every": None,
}  # fmt: skip


def recipe(**values: Any) -> Recipe:
    chosen = {name: Choice(value=value, why="made up") for name, value in VALUES.items()}
    set_here = {n: Choice(value=value, why="", origin="yours") for n, value in values.items()}
    return Recipe(**(chosen | set_here))


def means(**facts: Any) -> OomOptions:
    return msgspec.structs.replace(MEANS, **facts)


def smaller(size: int) -> dict[str, Any]:
    return {"micro_batch_size": size}


RECOMPUTED = {"activation_checkpointing": True}


@pytest.mark.parametrize(
    ("values", "facts", "expected"),
    [
        ({}, {}, smaller(25)),
        ({"micro_batch_size": 25}, {}, smaller(13)),
        # More than the batch has is the batch.
        ({"micro_batch_size": 64}, {}, smaller(25)),
        # Smaller parts cost less than computing twice.
        ({}, {"has_blocks": True}, smaller(25)),
        ({"micro_batch_size": 1}, {"has_blocks": True}, RECOMPUTED),
        ({}, {"has_batch_norm": True, "has_blocks": True}, RECOMPUTED),
        ({"out_of_memory": "shrink"}, {"has_batch_norm": True}, smaller(25)),
        ({"out_of_memory": "shrink"}, {"has_batch_norm": True, "has_blocks": True}, RECOMPUTED),
        ({}, {"has_own_step": True, "has_blocks": True}, RECOMPUTED),
    ],
    ids=str,
)
def test_relief_is(values: dict[str, Any], facts: dict[str, Any], expected: Any) -> None:
    assert oom_recipe_fields(recipe(**values), means(**facts)) == expected


def test_a_graph_without_memory_is_done_without() -> None:
    assert oom_recipe_fields(recipe(), means(has_batch_norm=True), "capture") == {"capture": "off"}
    said = oom_recipe_fields(recipe(out_of_memory="stop"), means(), "capture")
    assert isinstance(said, str) and "stop" in said


@pytest.mark.parametrize(
    ("values", "facts", "said"),
    [
        ({"out_of_memory": "stop"}, {}, "`stop`"),
        ({"micro_batch_size": 1}, {}, "single sample"),
        ({}, {"has_batch_norm": True}, "BatchNorm"),
        # What a person has set stays as it is.
        ({"activation_checkpointing": False}, {"has_batch_norm": True, "has_blocks": True}, "Norm"),
        ({}, {"has_own_step": True}, "own step"),
        ({"out_of_memory": "shrink"}, {"has_own_step": True}, "own step"),
    ],
    ids=str,
)
def test_there_is_no_relief_where(values: dict[str, Any], facts: dict[str, Any], said: str) -> None:
    found = oom_recipe_fields(recipe(**values), means(**facts))
    assert isinstance(found, str) and said in found


def made_smaller(step: int, before: int, after: int) -> OomAdaptation:
    return OomAdaptation(kind="smaller", step=step, before=before, after=after, part="backward")


def test_larger_parts_are_tried_later_each_time() -> None:
    first = made_smaller(11, 50, 25)
    assert growth([]) is None
    assert growth([first]) == Growth(after_step=1010, micro_batch_size=50)
    grown = OomAdaptation(kind="larger", step=1011, before=25, after=50)
    assert growth([first, grown]) is None
    again = made_smaller(1011, 50, 25)
    assert growth([first, again]) == Growth(after_step=3010, micro_batch_size=50)
    # Not above what was used at first.
    small = [made_smaller(1, 7, 4)]
    assert growth(small) == Growth(after_step=1000, micro_batch_size=7)
    recomputed = OomAdaptation(kind="recomputed", step=5, before=50, after=50)
    assert growth([recomputed]) is None


@pytest.mark.parametrize(
    ("rates", "excess", "is_seen"),
    [
        ([100.0] * 10 + [20.0] * 5, 2**30, True),
        # Nothing was taken that was not free; or the speed is as it was; or nobody knows it yet.
        ([100.0] * 10 + [20.0] * 5, 0, False),
        ([100.0] * 10 + [60.0] * 5, 2**30, False),
        ([100.0] * 12 + [20.0] * 2, 2**30, False),
        ([100.0] * 3 + [20.0] * 5, 2**30, False),
    ],
)
def test_moved_memory_is_seen_when(rates: list[float], excess: int, is_seen: bool) -> None:
    assert is_moved(rates, excess) is is_seen


def history_of(folder: Path, *lines: RecipeSet) -> Any:
    run = RunFolder(folder)
    file = atomic_files.Lines(run.events)
    for line in lines:
        file.append(line)
    file.close()
    return read_history(run)


def decided(step: int, adaptation: OomAdaptation | None = None, **values: Any) -> RecipeSet:
    return RecipeSet(at=0.0, step=step, recipe=recipe(**values), adaptation=adaptation)


def test_what_was_decided_for_later_stays_decided(tmp_path: Path) -> None:
    larger = OomAdaptation(kind="larger", step=41, before=25, after=50)
    history = history_of(
        tmp_path, decided(0), decided(20, clip_norm=0.5), decided(30, micro_batch_size=4),
        decided(40, larger),
    )  # fmt: skip
    change = Choice(value=25, why="memory ran out", origin="measured")
    lines = list(history.adapted(10, {"micro_batch_size": change}, made_smaller(11, 50, 25)))
    assert [line.step for line in lines] == [10, 20, 30]
    assert [line.recipe.micro_batch_size.value for line in lines] == [25, 25, 4]
    assert lines[1].recipe.clip_norm.value == 0.5
    assert [line.adaptation is None for line in lines] == [False, True, True]
    after = history_of(tmp_path, *lines)
    assert after.recipe_at(10).micro_batch_size.value == 25
    assert after.next_change(10) == 20
    # While a decision lies ahead nothing else is tried.
    assert after.growth(10) is None


def test_growth_is_that_of_the_history(tmp_path: Path) -> None:
    history = history_of(
        tmp_path, decided(0), decided(10, made_smaller(11, 50, 25), micro_batch_size=25)
    )
    assert history.growth(10) == Growth(after_step=1010, micro_batch_size=50)
    # What a person has decided since is what they want.
    history = history_of(tmp_path, decided(12, micro_batch_size=5))
    assert history.growth(12) is None


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (
            made_smaller(413, 64, 32),
            "ran out in the backward pass of step 413; from here on micro-batches of 32 instead "
            "of 64",
        ),
        (
            OomAdaptation(kind="recomputed", step=1, before=8, after=8, part="optimizer",
                       is_in_place=False),
            "ran out in the optimizer's part of step 1; from here on activations are recomputed, "
            "from the last checkpoint",
        ),
        (
            OomAdaptation(kind="smaller", step=8, before=8, after=4, part="validation"),
            "ran out in the validation after step 7; from here on micro-batches of 4 instead of 8",
        ),
        (
            OomAdaptation(kind="smaller", step=8, before=8, after=4, part="process",
                       is_in_place=False),
            "the kernel killed the process because memory ran out; from step 8 on micro-batches "
            "of 4 instead of 8",
        ),
        (
            OomAdaptation(kind="larger", step=1_414, before=4, after=8),
            "trying micro-batches of 8 instead of 4 from step 1,414 on",
        ),
    ],
)  # fmt: skip
def test_adaptation_is_reported_in_a_sentence(one: OomAdaptation, text: str) -> None:
    assert adaptation_text(one) == text


def test_option_is_the_field() -> None:
    assert TrainRequest(on_oom="shrink").fixed == {"out_of_memory": "shrink"}
    assert TrainRequest().fixed == {}
