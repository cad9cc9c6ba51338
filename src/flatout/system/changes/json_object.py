"""A JSON file of settings (daemon.json): one entry changed in the text, the rest left as it is.

The text is edited, not rewritten: order, spacing and numbers of the user's stay. What is not a
JSON, or leaves it open what is meant, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from flatout.system.changes.text_encoding import UnreadableText

_BLANK = re.compile(r"[ \t\r\n]*")


class _Member(msgspec.Struct, frozen=True):
    """An entry of an object: where its key and its value begin and end in the text."""

    key: str
    start: int
    key_end: int
    value_start: int
    end: int


class _Object(msgspec.Struct, frozen=True):
    """An object in a text: where its braces are, and what is between them."""

    text: str
    start: int
    members: tuple[_Member, ...]
    end: int


def with_entry(text: str, keys: Sequence[str], value: Any, newline: str) -> str:
    """The text with an entry at its value, or without it where the value is None.

    Args:
        text: of the whole file; a blank one is an empty object.
        keys: from the outermost on; objects that are missing are made.
        value: bool, number, text or list of texts.
        newline: for lines that are added.

    Raises:
        UnreadableText: it is not a JSON object, names a key twice, or one of `keys` holds no
            object.
    """
    if not text.strip():
        text = f"{{}}{newline}"
    whole = _checked(text)
    if value is None and not _has(whole, keys):
        return text
    start = _skip_blank(text, 0)
    for depth, key in enumerate(keys):
        json_object = _object_at(text, start)
        member = next((member for member in json_object.members if member.key == key), None)
        if member is None:
            for outer in reversed(keys[depth + 1 :]):
                value = {outer: value}
            return _with_member(json_object, key, value, newline)
        if depth == len(keys) - 1:
            return (
                _without(json_object, member)
                if value is None
                else _replaced(json_object, member, value)
            )
        if text[member.value_start] != "{":
            raise UnreadableText(f"`{'.'.join(keys[: depth + 1])}` is not an object")
        start = member.value_start
    raise AssertionError("a place has at least one key")


def _checked(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableText(f"it is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableText("it is JSON, but not an object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UnreadableText(f"`{twice}` occurs twice")
    return named


def _no_constant(name: str) -> Any:
    raise UnreadableText(f"{name} is not JSON")


def _has(whole: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(whole, dict) or key not in whole:
            return False
        whole = whole[key]
    return True


def _skip_blank(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    return blank.end() if blank else position


def _object_at(text: str, start: int) -> _Object:
    decoder = json.JSONDecoder()
    members: list[_Member] = []
    position = _skip_blank(text, start + 1)
    while text[position] != "}":
        key, key_end = decoder.raw_decode(text, position)
        value_start = _skip_blank(text, _skip_blank(text, key_end) + 1)
        _, end = decoder.raw_decode(text, value_start)
        members.append(_Member(key, position, key_end, value_start, end))
        position = _skip_blank(text, end)
        if text[position] == ",":
            position = _skip_blank(text, position + 1)
    return _Object(text, start, tuple(members), position)


def _replaced(json_object: _Object, member: _Member, value: Any) -> str:
    text = json_object.text
    now = json.loads(text[member.value_start : member.end])
    # 1 and True are equal to Python, and not to Docker.
    if now == value and type(now) is type(value):
        return text
    return text[: member.value_start] + _dumped(value) + text[member.end :]


def _with_member(json_object: _Object, key: str, value: Any, newline: str) -> str:
    text = json_object.text
    line = text[text.rfind("\n", 0, json_object.start) + 1 : json_object.start]
    outer = line[: len(line) - len(line.lstrip())]
    unit = next(iter(re.findall(r"\n([ \t]+)\S", text)), "    ")
    if not json_object.members:
        inner = newline + outer + unit
        added = f"{inner}{_dumped(key)}: {_dumped(value, inner, unit)}{newline}{outer}"
        return text[: json_object.start + 1] + added + text[json_object.end :]
    first, last = json_object.members[0], json_object.members[-1]
    before = text[json_object.start + 1 : first.start]
    colon = text[last.key_end : last.value_start]
    if "\n" in before:
        gap = "\n" + before.rpartition("\n")[2]
        gap = f"\r{gap}" if "\r\n" in before else gap
        added = f",{gap}{_dumped(key)}{colon}{_dumped(value, gap, unit)}"
    else:
        added = f", {_dumped(key)}{colon}{_dumped(value)}"
    return text[: last.end] + added + text[last.end :]


def _without(json_object: _Object, member: _Member) -> str:
    text, number = json_object.text, json_object.members.index(member)
    if len(json_object.members) == 1:
        return text[: json_object.start + 1] + text[json_object.end :]
    if member is json_object.members[-1]:
        return text[: json_object.members[number - 1].end] + text[member.end :]
    return text[: member.start] + text[json_object.members[number + 1].start :]


def _dumped(value: Any, gap: str | None = None, unit: str = "") -> str:
    """JSON; objects over several lines where a gap, a newline with its indentation, is given."""
    if gap is None or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = gap + unit
    members = [
        f"{inner}{_dumped(key)}: {_dumped(member, inner, unit)}" for key, member in value.items()
    ]
    return "{" + ",".join(members) + gap + "}"
