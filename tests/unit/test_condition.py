"""Conditions of rules, as text and in effect."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.doctor.condition import names_in, parse_condition
from flatout.doctor.rule import Case
from flatout.doctor.signature import Sign
from flatout.schema.machine import Host, Machine

SIGNS = ("a", "b", "c")


def case_of(*seen: str, os: str | None = None, wsl: int | None = None, **values: str) -> Case:
    """A case in which these signs were seen, each with these values."""
    signs = {
        id: (Sign(id=id, line=1, text=id, values=values),) if id in seen else () for id in SIGNS
    }
    return Case(machine=Machine(host=Host(os=os, wsl=wsl)), signs=signs)


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("a or b and c", "a or b and c"),
        ("(a or b) and c", "(a or b) and c"),
        ("a and not b", "a and not b"),
        ("not (a or b)", "not (a or b)"),
        ("a and not (b and not c)", "a and not (b and not c)"),
        ("not not a", "a"),
    ],
)
def test_condition_means_the_same_as_in_python(text: str, python: str) -> None:
    condition = parse_condition(text)
    for truth in itertools.product([False, True], repeat=3):
        names = dict(zip(SIGNS, truth, strict=True))
        case = case_of(*(name for name, is_seen in names.items() if is_seen))
        assert condition.holds(case) == eval(python, {}, names), (text, names)


@given(
    st.recursive(
        st.sampled_from(SIGNS),
        lambda inner: st.one_of(
            inner.map(lambda one: f"not ({one})"),
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
                lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
            ),
        ),
        max_leaves=8,
    )
)
def test_condition_means_the_same_as_in_python_for_any_nesting(text: str) -> None:
    condition = parse_condition(text)
    for truth in itertools.product([False, True], repeat=3):
        names = dict(zip(SIGNS, truth, strict=True))
        case = case_of(*(name for name, is_seen in names.items() if is_seen))
        assert condition.holds(case) == eval(text, {}, names)


def test_condition_asks_for_facts_and_values() -> None:
    assert parse_condition("a and wsl").holds(case_of("a", wsl=2))
    assert not parse_condition("a and wsl").holds(case_of("a"))
    assert parse_condition("windows and not linux").holds(case_of(os="windows"))
    assert parse_condition("a.offered").holds(case_of("a", offered="3"))
    assert parse_condition("a.offered=none").holds(case_of("a", offered="none"))
    assert not parse_condition("a.offered=none").holds(case_of("a", offered="3"))
    assert parse_condition("not a.offered").holds(case_of("a"))


def test_names_in_a_condition_tell_negated_ones() -> None:
    names = list(names_in(parse_condition("a and not (b or not c)")))
    assert [(name.sign, name.is_negated) for name in names] == [
        ("a", False), ("b", True), ("c", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "`b` has no `and` or `or` before it"),
        ("a and", "a name is missing at the end"),
        ("and a", "a name is missing before `and`"),
        ("(a or b", "a `)` is missing"),
        ("a) or b", "`)` has no `and` or `or` before it"),
        ("a & b", "`& b` is neither a name nor and, or, not"),
        ("", "a name is missing at the end"),
    ],
)
def test_wrong_condition_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(").replace(")", r"\)")):
        parse_condition(text)
