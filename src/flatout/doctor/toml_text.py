"""What is wrong with a TOML file, in TOML's words and with the line where it is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import get_args

from flatout.doctor.rule_data import FixData, RuleData, ShellBySystem, SignatureData, Variant
from flatout.schema.finding import Severity
from flatout.schema.plan import Place, Safety

# Where something is: names of fields, and places in lists.
TomlPath = tuple[str | int, ...]

_HEADER = re.compile(r"\s*\[(\[?)\s*([^\]]*?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_KEY_PART = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")
_STRING = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'')
_STEP = re.compile(r"\.?([^.\[\]`]+)|\[(\d+)\]")
_AT = re.compile(r" - at `\$([^`]*)`$")
_SYNTAX = re.compile(r" \(at line (\d+), column (\d+)\)$")
_NAMES = {
    "array": "a list", "str": "a string", "object": "a table", "int": "a whole number",
    "float": "a decimal number", "bool": "true or false", "date": "a date", "datetime": "a date",
    "time": "a time",
}  # fmt: skip
_CHOICES = {
    "severity": Severity, "where": Place, "wsl": Place, "elsewhere": Place, "safety": Safety,
}  # fmt: skip
_BLOCKS = {"fix": FixData, "signature": SignatureData}
_VARIANTS = ("problem", "because", "text", "changes")


class Misfit(ValueError):
    """What does not fit in a rule. path: where it is in the file."""

    def __init__(self, why: str, *path: str | int) -> None:
        super().__init__(why)
        self.path: TomlPath = path

    def below(self, *path: str | int) -> Misfit:
        """The same within something larger."""
        return Misfit(str(self), *path, *self.path)

    def in_text(self, text: str) -> str:
        """The problem, with its line in the file's text."""
        line = line_of(text, self.path)
        return str(self) if line is None else f"line {line}: {self}"


def syntax_problem(error: str, text: str) -> str:
    """What a parser of TOML says, with the line first."""
    error = error.replace("array declaration", "`[[...]]`").replace("array", "list")
    at = _SYNTAX.search(error)
    if at is None:
        return error.replace("(at end of document)", "before the end of the file")
    line, column = int(at[1]), int(at[2])
    why = f"line {line}, column {column}: {error[: at.start()]}"
    if "Unescaped" in error or "Invalid hex" in error:
        return f"{why}; put a pattern into single quotes, in which `\\` needs no other one"
    if "Illegal character '\\n'" in error:
        return f"line {line}: a string in single quotes or double quotes must end in its line"
    quoted = text.splitlines()[line - 1 : line]
    if quoted and any(mark in quoted[0] for mark in "“”‘’"):
        return f"{why}; use straight quotes"
    return why


def misfit(error: str) -> Misfit:
    """What the decoder of tables says, in TOML's words."""
    at = _AT.search(error)
    path: TomlPath = ()
    if at is not None:
        path = tuple(int(step[2]) if step[2] else step[1] for step in _STEP.finditer(at[1]))
        error = error[: at.start()]
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", error):
        return Misfit(_unknown_field(unknown[1], path), *path, unknown[1])
    if missing := re.fullmatch("Object missing required field `(.*)`", error):
        return Misfit(f"{_place(path)} has no `{missing[1]}`, which it needs", *path)
    if wrong := re.fullmatch(r"Expected `(.*)`, got `(.*)`", error):
        return Misfit(_wrong_kind(path, wrong[1].split(" | "), wrong[2]), *path)
    if wrong := re.fullmatch("Invalid enum value '(.*)'", error):
        known = get_args(_CHOICES.get(str(path[-1]))) if path else ()
        return Misfit(f"{_named(path)} is `{wrong[1]}`; {_nearest(wrong[1], known)}", *path)
    return Misfit(f"{_named(path)}: {error}" if path else error, *path)


def _wrong_kind(path: TomlPath, wanted: list[str], got: str) -> str:
    if path in (("fix",), ("signature",), ("fact",)) and got == "object":
        return f"write `[[{path[0]}]]`, with two brackets: there may be several"
    kinds = " or ".join(_NAMES.get(kind, kind) for kind in wanted if kind != "null")
    hint = ""
    if wanted == ["array"] and got == "str":
        hint = "; put it into brackets: [...]"
    elif wanted == ["int"] and got == "str":
        hint = "; write it without quotes"
    return f"{_named(path)} must be {kinds}, not {_NAMES.get(got, got)}{hint}"


def _unknown_field(name: str, path: TomlPath) -> str:
    known = _fields(path)
    elsewhere = [block for block, kind in _BLOCKS.items() if name in _names(kind)]
    if not difflib.get_close_matches(name, known, n=1, cutoff=0.75):
        if path and name in _names(RuleData):
            return f"`{name}` belongs to the rule: put it above the first `[[`"
        if elsewhere and (not path or path[0] in _BLOCKS):
            return f"`{name}` belongs to a `[[{elsewhere[0]}]]`; {_place(path)} has no such field"
    return f"{_place(path)} has no field `{name}`; {_nearest(name, known)}"


def _nearest(wrong: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there are {', '.join(known)}" if known else "there is no such value"


def _fields(path: TomlPath) -> tuple[str, ...]:
    """Names of the fields of a user's own rules in that table."""
    if len(path) >= 2 and isinstance(path[-1], int) and path[-2] in _VARIANTS:
        return _names(Variant)
    if path and path[-1] == "where":
        return _names(ShellBySystem)
    if len(path) == 2 and path[0] in _BLOCKS:
        return _names(_BLOCKS[str(path[0])])
    return () if path else _names(RuleData)


def _names(kind: type) -> tuple[str, ...]:
    return tuple(kind.__struct_fields__)  # type: ignore[attr-defined]


def _place(path: TomlPath) -> str:
    return _named(path) if path else "the rule"


def _named(path: TomlPath) -> str:
    """A field or block as it is called in the file: `prior`, the 2nd `[[fix]]`."""
    if len(path) == 2 and path[0] in _BLOCKS:
        return f"`[[{path[0]}]]` number {int(path[1]) + 1}"
    if len(path) > 1 and isinstance(path[-1], int):
        return f"item {path[-1] + 1} of {_named(path[:-1])}"
    return f"`{path[-1]}`" if path else "it"


def line_of(text: str, path: TomlPath) -> int | None:
    """The line, from 1, where that is in a valid TOML text, or what it is in; None for all."""
    lines = dict(_lines(text))
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _lines(text: str) -> Iterator[tuple[TomlPath, int]]:
    """Every key and block with its line, and every item of a list."""
    prefix: TomlPath = ()
    counts: dict[str, int] = {}
    value = _Value(())
    for number, line in enumerate(text.split("\n"), start=1):
        if value.is_open:
            yield from value.read(line, number)
            continue
        if header := _HEADER.match(line):
            name = header[2].strip("\"'")
            if header[1]:
                counts[name] = counts.get(name, -1) + 1
            prefix = (name, counts[name]) if header[1] else (name,)
            yield prefix, number
        elif key := _KEY.match(line):
            parts = (part.strip("\"'") for part in _KEY_PART.findall(key[1]))
            value = _Value((*prefix, *parts))
            yield value.path, number
            yield from value.read(line[key.end() :], number)


class _Value:
    """A value that may go over several lines: strings in three quotes, lists, tables in braces."""

    def __init__(self, path: TomlPath) -> None:
        self.path = path
        self._quotes = ""
        self._depth = 0
        self._item = 0
        self._is_begun = False

    @property
    def is_open(self) -> bool:
        """Whether it goes on in the next line."""
        return bool(self._quotes) or self._depth > 0

    def read(self, line: str, number: int) -> Iterator[tuple[TomlPath, int]]:
        """The items of a list that begin in this line."""
        at = 0
        while at < len(line):
            if self._quotes:
                at = self._behind_quotes(line, at)
                continue
            sign = line[at]
            if sign == "#":
                return
            if self._depth == 1 and not self._is_begun and not sign.isspace() and sign not in ",]}":
                self._is_begun = True
                yield (*self.path, self._item), number
            if string := _STRING.match(line, at):
                if len(string[0]) == 3 and string[0] in ('"""', "'''"):
                    self._quotes = string[0]
                at = string.end()
                continue
            if sign in "[{":
                self._depth += 1
            elif sign in "]}":
                self._depth -= 1
            elif sign == "," and self._depth == 1:
                self._item += 1
                self._is_begun = False
            at += 1

    def _behind_quotes(self, line: str, at: int) -> int:
        """Where the string ends in this line, or the line's end."""
        while at < len(line):
            if self._quotes == '"""' and line[at] == "\\":
                at += 2
            elif line.startswith(self._quotes, at):
                at += 3
                # Up to two quotes may stand before the three that end it.
                while line[at : at + 1] == self._quotes[0]:
                    at += 1
                self._quotes = ""
                return at
            else:
                at += 1
        return at
