"""The lines of a run's folder, JSON both ways."""

from __future__ import annotations

import math
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

from flatout.schema.run_lines import EpochEnded, Event, Metric, Validated

KINDS = [(kind, Event) for kind in get_args(Event)] + [(kind, Metric) for kind in get_args(Metric)]


def example(kind: Any, within: tuple[Any, ...] = ()) -> Any:
    """A value of that type: of a struct one with every field, but those that hold it again."""
    plain = {bool: True, int: 3, float: 0.5, str: "text", Any: "anything", type(None): None}
    if kind in plain:
        return plain[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return parts[0]
    # A Literal or None is of the older kind.
    if origin in (UnionType, Union):
        return None if parts[0] in within else example(parts[0], within)
    if origin is dict:
        return {example(parts[0], within): example(parts[1], within)}
    if origin is tuple:
        return tuple(example(part, within) for part in parts if part is not Ellipsis)
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: example(field.type, (*within, kind)) for field in fields})


@pytest.mark.parametrize(("kind", "family"), KINDS, ids=lambda item: getattr(item, "__name__", ""))
def test_line_survives_json(kind: Any, family: Any) -> None:
    line = example(kind)
    read = msgspec.json.decode(msgspec.json.encode(line), type=family)
    assert read == line
    assert type(read) is kind


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_metric_can_be_read_when_a_number_is_not_finite(value: float) -> None:
    validated = Validated(at=1.0, step=1, epoch=0, metrics={"loss": value}, is_best=False)
    ended = EpochEnded(at=1.0, step=1, epoch=0, loss=value)
    read = msgspec.json.decode(msgspec.json.encode(validated), type=Metric)
    assert isinstance(read, Validated)
    assert read.metrics == {"loss": None}
    assert msgspec.json.decode(msgspec.json.encode(ended), type=Metric).loss is None


def test_kinds_are_those_in_folders_written_before() -> None:
    # A line's kind is on the disk of every run: a class may be renamed, its tag never.
    kinds = {msgspec.inspect.type_info(kind).tag for kind, _ in KINDS}  # type: ignore[union-attr]
    assert kinds == {
        "started", "recipeset", "extended", "shareschecked", "filechanged", "dryran", "fetched",
        "warned", "profiled", "trying", "tried", "tuned", "outlined", "checkpointed", "stopped",
        "failed", "finished", "flopscounted", "progress", "epochended", "validated", "classified",
        "generated", "logged",
    }  # fmt: skip
