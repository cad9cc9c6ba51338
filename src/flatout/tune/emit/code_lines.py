"""Fills in the text of a program: keeps the lines that are needed, says why, puts values in.

In such a text a line may end in a mark, and a mark may stand alone:

    lines  #? fp16 !clip   kept where all of these flags hold (`!`: does not hold)
    with x:  #| fp16       the same; where it is left out, what is indented below it is not
    #= precision           comments that say why this field of the recipe is as it is
    #@ update              another text, indented as this line is
    $dtype                 a value
"""

from __future__ import annotations

import re
import string
import textwrap
from collections.abc import Iterator, Mapping

import msgspec

_WIDTH = 100
_MARKED = re.compile(r"(?P<code>.*?)  #(?P<mark>[?|]) (?P<flags>.+)")
_ALONE = re.compile(r"(?P<indent> *)#(?P<mark>[=@]) (?P<name>\w+)(  #\? (?P<flags>.+))?")


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a template: flags, values, reasons of recipe fields, other texts."""

    flags: Mapping[str, bool]
    values: Mapping[str, str]
    reasons: Mapping[str, str]
    texts: Mapping[str, str]


def filled(text: str, filling: Filling) -> str:
    """The text with its marks carried out."""
    lines = _freed(_inserted(text, filling), filling.flags)
    return string.Template("\n".join(lines)).substitute(filling.values)


def _inserted(text: str, filling: Filling) -> Iterator[str]:
    """The lines, with other texts and reasons in their places."""
    for line in text.strip("\n").splitlines():
        alone = _ALONE.fullmatch(line)
        if alone is None:
            yield line
        elif alone["flags"] and not _holds(alone["flags"], filling.flags):
            continue
        elif alone["mark"] == "@":
            inner = filling.texts[alone["name"]]
            yield from _inserted(textwrap.indent(inner, alone["indent"]), filling)
        else:
            yield from comment_lines(filling.reasons[alone["name"]], len(alone["indent"]))


def _freed(lines: Iterator[str], flags: Mapping[str, bool]) -> Iterator[str]:
    """The lines whose flags hold; below a block's head that is left out, one step to the left."""
    heads: list[int] = []
    for line in lines:
        marked = _MARKED.fullmatch(line)
        code = marked["code"] if marked else line
        indent = len(code) - len(code.lstrip())
        while heads and code and indent <= heads[-1]:
            heads.pop()
        if marked is None or _holds(marked["flags"], flags):
            yield code[4 * len(heads) :]
        elif marked["mark"] == "|":
            heads.append(indent)


def _holds(words: str, flags: Mapping[str, bool]) -> bool:
    return all(flags[word.removeprefix("!")] != word.startswith("!") for word in words.split())


def comment_lines(text: str, indent: int = 0) -> list[str]:
    """A sentence as comments of the program."""
    start = " " * indent + "# "
    plain = " ".join(text.split()).replace("$", "$$")
    return textwrap.wrap(plain, _WIDTH, initial_indent=start, subsequent_indent=start)
