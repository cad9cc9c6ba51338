from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import UsageError
from flatout.runs.experiment_params import Parameter, parse_parameters, parse_settings

SOURCE = """
import torch
from typing import Literal, Optional
WIDTH = 64

def experiment(
    lr: float = 1e-3,
    width: int = WIDTH,
    act: Literal["relu", "gelu", 3] = "relu",
    bias: bool = True,
    tag: Optional[str] = None,
    limit: "int | None" = None,
    layers: list[int] = [1, 2],
    plain=0.5,
    open_=None,
    *,
    data: str,
) -> "flatout.Experiment":
    raise RuntimeError("is not run")
"""


def parameters() -> tuple[Parameter, ...]:
    return parse_parameters(SOURCE, "mine.py")


def value(setting: str) -> Any:
    values = parse_settings(parameters(), [setting, "data=x"])
    return values[setting.partition("=")[0]]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("lr=3e-4", 3e-4),
        ("lr=1", 1.0),
        ("width=1_000", 1000),
        ("width=1e3", 1000),
        ("act=gelu", "gelu"),
        ("act=3", 3),
        ("bias=False", False),
        ("bias=on", True),
        ("tag=none", None),
        ("tag=a=b", "a=b"),
        ("limit=7", 7),
        ("limit=none", None),
        ("plain=2", 2.0),
        ("open_=2", 2),
        ("open_=text", "text"),
    ],
)
def test_parse_settings_when_a_text_fits_its_type(setting: str, expected: object) -> None:
    found = value(setting)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("setting", "rule", "hint"),
    [
        ("lr=fast", "bad-parameter-value", "give a number"),
        ("lr=nan", "bad-parameter-value", "give a number"),
        ("lr=inf", "bad-parameter-value", "give a number"),
        ("width=1.5", "bad-parameter-value", "give an integer"),
        ("width=1e-3", "bad-parameter-value", "give an integer"),
        ("act=tanh", "bad-parameter-value", "give one of: relu, gelu, 3"),
        ("bias=maybe", "bad-parameter-value", "give true or false"),
        ("limit=x", "bad-parameter-value", "give an integer or none"),
        ("layers=3", "bad-parameter-value", "change its default in the file"),
        ("widht=3", "unknown-parameter", "did you mean `width`?"),
        ("lr", "bad-setting", "-s lr=value"),
        ("=3", "bad-setting", "-s name=value"),
        ("data=y", "set-twice", "give it once"),
    ],
)
def test_parse_settings_when_a_text_does_not_fit(setting: str, rule: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        value(setting)
    assert caught.value.rule == rule
    assert hint in caught.value.fix


def test_parse_settings_when_a_required_one_is_missing() -> None:
    with pytest.raises(UsageError, match="needs `data`") as caught:
        parse_settings(parameters(), ["lr=1"])
    assert caught.value.rule == "parameter-missing"
    assert caught.value.fix == "-s data=..."


def test_parse_parameters_keeps_defaults_as_written() -> None:
    by_name = {one.name: one for one in parameters()}
    assert by_name["lr"].default == "0.001"
    assert by_name["width"].default == "WIDTH"
    assert by_name["data"].default is None
    assert by_name["layers"].kinds == ()
    assert by_name["limit"].kinds == ("None", "int")


def test_parse_parameters_when_the_last_definition_wins() -> None:
    text = "def experiment(a): ...\ndef experiment(b=1): ...\n"
    assert [one.name for one in parse_parameters(text, "x.py")] == ["b"]


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("def experimnt(): ...\ndef other(): ...", "its functions are: experimnt, other"),
        ("async def experiment(): ...", "is an async function"),
        ("experiment = Experiment(model=Net)", "is a variable"),
        ("experiment: Experiment = make()", "is a variable"),
        ("x = 1", None),
        ("class A:\n    def experiment(self): ...", None),
    ],
)
def test_parse_parameters_when_there_is_no_experiment(text: str, because: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_parameters(text, "mine.py")
    assert caught.value.rule == "no-experiment-function"
    assert because is None or because in str(caught.value.because)


def test_parse_parameters_when_the_syntax_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"mine.py, line 2, is not valid Python") as caught:
        parse_parameters("x = 1\ndef experiment(:\n", "mine.py")
    assert "def experiment(:" in str(caught.value.because)


def test_parse_parameters_when_there_is_a_null_byte() -> None:
    with pytest.raises(UsageError) as caught:
        parse_parameters("x = '\0'", "mine.py")
    assert caught.value.rule == "experiment-syntax-error"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_parse_settings_gives_back_every_float(number: float) -> None:
    assert value(f"lr={number!r}") == number


@given(st.integers())
def test_parse_settings_gives_back_every_int(number: int) -> None:
    assert value(f"width={number}") == number


@given(st.text())
def test_parse_settings_when_anything_is_typed(text: str) -> None:
    try:
        values = parse_settings(parameters(), [text, "data=x"])
    except UsageError as error:
        assert error.fix
    else:
        assert len(values) == 2


@pytest.mark.parametrize(
    "default", ["{[]: 1}", "(" * 60 + ")" * 60, "f(1)", "1 if True else 2", "-" * 5000 + "1"]
)
def test_no_default_is_too_odd_to_be_read(default: str) -> None:
    try:
        (one,) = parse_parameters(f"def experiment(x={default}): ...", "mine.py")
    except UsageError as error:
        assert error.rule == "experiment-syntax-error"
    else:
        assert one.default_value == one.default or one.default_value is None


def test_experiments_are_parsed_by_several_threads_at_once() -> None:
    text = "\n".join(["def experiment(lr: 'float' = 1e-3): ...", *["x = [[1], (2, [3])]"] * 300])

    def collected(phase: str, facts: dict[str, int]) -> None:
        """Python code within a collection: another thread may continue there."""

    interval_s, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(collected)
    try:
        with ThreadPoolExecutor(4) as threads:
            parsed = list(threads.map(lambda _: parse_parameters(text, "a.py"), range(60)))
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval_s)
    assert {parameters[0].default_value for parameters in parsed} == {1e-3}
