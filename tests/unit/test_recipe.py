"""Recipe fields written as text: what is taken, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import UsageError
from flatout.schema.recipe import check_field, parse_field, recipe_fields


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("precision", "bf16", "bf16"),
        ("device", "cuda:1", "cuda:1"),
        ("loader_workers", "4", 4),
        ("clip_norm", "1", 1.0),
        ("clip_norm", "none", None),
        ("checkpoint_every", "None", None),
        ("deterministic", "true", True),
        ("deterministic", "0", False),
        ("memory_format", " channels_last ", "channels_last"),
        ("sharding", "none", "none"),
    ],
)
def test_parse_field_when_it_is_right(name: str, text: str, value: Any) -> None:
    parsed = parse_field(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("precision", "bf17"), ("precision", "none"), ("device", "tpu"), ("device", "cuda:"),
        ("device", "cuda:٣"), ("loader_workers", "-1"), ("loader_workers", "2.5"),
        ("micro_batch_size", "0"), ("num_threads", "1" * 30), ("clip_norm", "nan"),
        ("clip_norm", "inf"), ("clip_norm", "-0.1"), ("deterministic", "maybe"),
        ("checkpoint_every", "0"), ("num_threads", ""),
    ],
)  # fmt: skip
def test_parse_field_when_the_value_is_wrong(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_field(name, text)
    assert caught.value.rule == "bad-recipe-value"
    assert name in caught.value.problem
    assert caught.value.fix


def test_parse_field_tells_the_choices_when_there_are_few() -> None:
    with pytest.raises(UsageError) as caught:
        parse_field("precision", "half")
    assert caught.value.fix == "use one of: fp32, tf32, bf16, fp16, float8"


@pytest.mark.parametrize("ask", [parse_field, check_field])
def test_a_field_that_does_not_exist_gets_the_nearest(ask: Any) -> None:
    with pytest.raises(UsageError) as caught:
        ask("precison", "bf16")
    assert caught.value.rule == "unknown-recipe-field"
    assert "`precision`" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_threads", True), ("clip_norm", float("nan")), ("device", 1), ("precision", ["fp32"])],
)
def test_check_field_when_json_gives_the_wrong_kind(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        check_field(name, value)


@given(st.sampled_from(sorted(recipe_fields())), st.text())
def test_parse_field_when_the_text_is_anything(name: str, text: str) -> None:
    try:
        value = parse_field(name, text)
    except UsageError:
        return
    # What was taken once is taken again: a resume checks what a start has stored.
    assert check_field(name, value) == value
