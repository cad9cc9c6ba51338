"""Ranges and choices of `flatout sweep`, and how its trials are chosen."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import UsageError
from flatout.runs.experiment_params import parse_parameters
from flatout.runs.sweep.carry_out import divided
from flatout.runs.sweep.space import (
    grid,
    num_combinations,
    num_values,
    parse_space,
    settings_of,
    values_of,
)
from flatout.schema.sweep import Choices, Range, Space, SweepRequest
from flatout.schema.train_request import TrainRequest

SOURCE = """
from typing import Literal
def experiment(lr: float = 1e-3, rate: float | None = None, width: int = 64, path: str = "a",
               act: Literal["relu", "gelu"] = "relu", bias: bool = True, mixed: int | str = 1):
    ...
"""
PARAMETERS = parse_parameters(SOURCE, "mine.py")


def space(*settings: str) -> Space:
    return parse_space(PARAMETERS, settings)[1]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("lr=1e-4..1e-2:log", Range(low=1e-4, high=1e-2, is_log=True)),
        ("lr=0..1", Range(low=0.0, high=1.0)),
        ("lr=-1.5..+0.5", Range(low=-1.5, high=0.5)),
        ("rate=0.1..0.5:step=0.1", Range(low=0.1, high=0.5, step=0.1)),
        ("lr=0..1:step=0.3", Range(low=0.0, high=1.0, step=0.3)),
        ("width=1..8", Range(low=1, high=8, step=1, is_int=True)),
        ("width=1..8:step=3", Range(low=1, high=8, step=3, is_int=True)),
        ("width=8..1e3:log", Range(low=8, high=1000, is_log=True, is_int=True)),
        ("width=32,64", Choices(values=(32, 64))),
        ("lr=1e-3, 1e-2", Choices(values=(1e-3, 1e-2))),
        ("act=relu,gelu", Choices(values=("relu", "gelu"))),
        ("bias=true,false", Choices(values=(True, False))),
        ("rate=none,0.5", Choices(values=(None, 0.5))),
        ("path=../a,../b", Choices(values=("../a", "../b"))),
        ("mixed=1..3", Range(low=1, high=3, step=1, is_int=True)),
        ("mixed=a..b,c", Choices(values=("a..b", "c"))),
    ],
)
def test_setting_varies_a_parameter(setting: str, expected: Range | Choices) -> None:
    assert list(space(setting).values()) == [expected]


def test_single_values_stay_fixed() -> None:
    fixed, varied = parse_space(PARAMETERS, ["width=64", "lr=0..1", "path=../data"])
    assert fixed == ("width=64", "path=../data")
    assert list(varied) == ["lr"]


@pytest.mark.parametrize(
    ("setting", "rule", "said"),
    [
        ("lr=1e-2..1e-4:log", "bad-sweep-range", "lr=1e-4..1e-2:log"),
        ("lr=1..1", "bad-sweep-range", "lr=1"),
        ("lr=0..1:log", "bad-sweep-range", "begin above 0"),
        ("width=-3..4:log", "bad-sweep-range", "begin above 0"),
        ("lr=0..1:step=2", "bad-sweep-range", "step"),
        ("lr=0..1:step=0", "bad-sweep-range", "step"),
        ("lr=1..2:log:step=0.5", "bad-sweep-range", "leave out one"),
        ("lr=0..1:linear", "bad-sweep-range", ":log or :step=NUMBER"),
        ("lr=a..b", "bad-sweep-range", "1e-4..1e-2:log"),
        ("width=0.5..2", "bad-parameter-value", "an integer"),
        ("width=1,1", "bad-sweep-range", "each once"),
        ("width=1,x", "bad-parameter-value", "an integer"),
        ("act=relu,tanh", "bad-parameter-value", "one of: relu, gelu"),
        ("rl=0..1", "unknown-parameter", "lr"),
        ("lr=0.1", "sweep-varies-nothing", "-s lr=1e-4..1e-2:log"),
    ],
)
def test_setting_that_makes_no_sense_is_refused(setting: str, rule: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        space(setting)
    assert caught.value.rule == rule
    assert said in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        (["width=1..3", "act=relu,gelu"], 6),
        (["lr=0..1:step=0.3"], 4),
        (["lr=0..1", "act=relu,gelu"], None),
        (["width=1..8:log"], None),
    ],
)
def test_combinations_of_a_space_with_and_without_steps(
    settings: list[str], number: int | None
) -> None:
    assert num_combinations(space(*settings)) == number


def test_grid_has_every_combination_once_and_the_last_is_the_fastest() -> None:
    points = grid(space("width=1..3", "act=relu,gelu"))
    assert [(point["width"], point["act"]) for point in points] == [
        (1, "relu"), (1, "gelu"), (2, "relu"), (2, "gelu"), (3, "relu"), (3, "gelu"),
    ]  # fmt: skip


@pytest.mark.parametrize("settings", [["lr=0..1"], ["width=1..1000", "lr=0..1:step=0.001"]])
def test_grid_that_has_no_end_is_refused(settings: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        grid(space(*settings))
    assert caught.value.rule == "bad-sweep-range"


def test_step_that_is_suggested_fits_the_parameter() -> None:
    with pytest.raises(UsageError) as caught:
        grid(space("width=8..64:log"))
    assert "-s width=8..64:step=14," in caught.value.fix
    assert space("width=8..64:step=14")


@pytest.mark.parametrize(
    ("range_text", "step"),
    [("0.001..0.01", 0.00225), ("0.0001..0.01", 0.00247), ("-0.3..0.1", 0.1), ("0..1e9", 2.5e8)],
)
def test_step_that_is_suggested_has_few_digits_and_fits_four_times(
    range_text: str, step: float
) -> None:
    with pytest.raises(UsageError) as caught:
        grid(space(f"lr={range_text}"))
    assert f":step={step!r}, or" in caught.value.fix
    assert len(grid(space(f"lr={range_text}:step={step!r}"))) == 5


@given(
    low=st.integers(-1000, 1000), steps=st.integers(1, 50), step=st.integers(1, 400),
    digits=st.integers(0, 4),
)  # fmt: skip
def test_values_with_a_step_are_exact(low: int, steps: int, step: int, digits: int) -> None:
    scale = 10**digits
    text = f"lr={low / scale}..{(low + steps * step) / scale}:step={step / scale}"
    if "e" in text:
        return
    (one,) = space(text).values()
    values = list(values_of(one))
    assert num_values(one) == len(values) == steps + 1
    assert values == [(low + number * step) / scale for number in range(steps + 1)]


@given(st.dictionaries(st.sampled_from(["lr", "rate"]), st.floats(-1e9, 1e9), min_size=1))
def test_chosen_values_come_back_from_their_settings(values: dict[str, float]) -> None:
    texts = settings_of(dict(values))
    other = next(iter(values))
    fixed, _ = parse_space(PARAMETERS, [*texts, "width=1..2"])
    assert fixed == texts and float(texts[0].partition("=")[2]) == values[other]


@pytest.mark.parametrize(
    ("gpus", "size", "parallel", "expected"),
    [
        (["0", "1"], 1, 2, ["0", "1"]),
        (["0", "1"], 1, 3, ["0", "1", "0"]),
        (["2", "5", "7"], 2, 2, [None, None]),
        (["0", "1", "2", "3"], 2, 2, ["0,1", "2,3"]),
        (["0"], 1, 4, [None] * 4),
        ([], 1, 2, [None, None]),
    ],
)
def test_gpus_are_divided_among_trials(
    gpus: list[str], size: int, parallel: int, expected: list[str | None]
) -> None:
    assert divided(gpus, size, parallel) == expected


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (SweepRequest(num_trials=0), "bad-sweep"),
        (SweepRequest(parallel=0), "bad-sweep"),
        (msgspec.structs.replace(SweepRequest(), sampler="gird"), "bad-sweep"),
        (msgspec.structs.replace(SweepRequest(), direction="up"), "bad-sweep"),
        (SweepRequest(resume="a", sampler="grid"), "cannot-change-on-resume"),
        (SweepRequest(resume="a", training=TrainRequest(experiment="digits")),
         "cannot-change-on-resume"),
        (SweepRequest(training=TrainRequest(epochs=1, steps=1)), "cannot-be-combined"),
        (SweepRequest(training=TrainRequest(track=("mlfow",))), "bad-tracker"),
        (SweepRequest(training=TrainRequest(track=("mlflow:http://ann:secret@host",))),
         "bad-tracker"),
    ],
)  # fmt: skip
def test_request_that_makes_no_sense_is_refused(request_: SweepRequest, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_.check()
    assert caught.value.rule == rule and "secret" not in str(caught.value)


def test_request_to_resume_may_have_more_trials() -> None:
    SweepRequest(resume="a", num_trials=50, parallel=2).check()
