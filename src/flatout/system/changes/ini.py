"""Settings in sections (.wslconfig, wsl.conf): one changed, and every other sign left as it is.

WSL reads such files leniently: keys in any case, sections and keys more than once. So a value is
set at all of its places, whichever of them WSL takes.
"""

from __future__ import annotations

import re

from flatout.system.changes.text_encoding import UnreadableText, line_end, lines_of

_SECTION = re.compile(r"\s*\[([^\]\n]*)\]\s*(?:[#;].*)?\Z", re.DOTALL)
_SETTING = re.compile(
    r"(?P<before>\s*(?P<key>[^=\s#;\[][^=]*?)\s*=[ \t]*)"
    r"(?P<value>\"[^\"\r\n]*\"|.*?)(?P<after>[ \t]*(?:[ \t][#;].*)?\r?\n?)\Z",
    re.DOTALL,
)


def with_setting(text: str, section: str, key: str, value: str | None, newline: str) -> str:
    """The text with a setting at its value, or without it where the value is None.

    Args:
        text: of the whole file.
        section: its name, in any case.
        key: of the setting, in any case; as it is spelled there it stays.
        value: as it should be written.
        newline: for lines that are added.

    Raises:
        UnreadableText: a line is neither a section nor a setting nor a comment.
    """
    lines = lines_of(text)
    line_numbers = _matching_lines(lines, section, key)
    if value is None:
        return "".join(line for number, line in enumerate(lines) if number not in line_numbers)
    if line_numbers:
        return "".join(
            _with_value(line, value) if number in line_numbers else line
            for number, line in enumerate(lines)
        )
    return "".join(_with_line(lines, section, f"{key}={value}", newline))


def _matching_lines(lines: list[str], section: str, key: str) -> set[int]:
    """The numbers of the lines that set it; all lines are looked at, so that none is garbage."""
    line_numbers = set()
    current = ""
    is_continued = False
    for number, line in enumerate(lines):
        bare = line.strip().removeprefix("\ufeff")
        was_continued, is_continued = is_continued, bare.endswith("\\")
        if was_continued or not bare or bare.startswith(("#", ";")):
            continue
        heading = _SECTION.match(line)
        if heading:
            current = heading[1].strip().lower()
            continue
        match = _SETTING.match(line)
        if match is None:
            raise UnreadableText(f"line {number + 1} is not a setting: {bare[:60]!r}")
        if current == section.lower() and match["key"].lower() == key.lower():
            if is_continued:
                raise UnreadableText(f"line {number + 1} continues on the next")
            line_numbers.add(number)
    return line_numbers


def _with_value(line: str, value: str) -> str:
    match = _SETTING.match(line)
    assert match is not None, "only lines that match are places"
    if match["value"].strip().strip('"') == value.strip('"'):
        return line
    return f"{match['before']}{value}{match['after']}"


def _with_line(lines: list[str], section: str, added: str, newline: str) -> list[str]:
    """The lines with one more at the end of the section, which is made where there is none."""
    headings = [_SECTION.match(line) for line in lines]
    starts = [
        number
        for number, heading in enumerate(headings)
        if heading and heading[1].strip().lower() == section.lower()
    ]
    if not starts:
        gap = [newline] if lines and lines[-1].strip() else []
        return [*_closed(lines, newline), *gap, f"[{section}]{newline}", f"{added}{newline}"]
    # Behind the last line of the section that says something: blank lines belong to what follows.
    last = starts[-1]
    for number in range(starts[-1] + 1, len(lines)):
        if headings[number]:
            break
        if lines[number].strip() and not lines[number].lstrip().startswith(("#", ";")):
            last = number
    before, after = lines[: last + 1], lines[last + 1 :]
    # Where the file ends without a newline, it still does.
    end = newline if after or line_end(before[-1]) else ""
    return [*_closed(before, newline), f"{added}{end}", *after]


def _closed(lines: list[str], newline: str) -> list[str]:
    """The lines, the last one with a line end."""
    if not lines or line_end(lines[-1]):
        return lines
    return [*lines[:-1], lines[-1] + newline]
