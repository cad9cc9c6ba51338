"""Stray quotes in CSV files: found whatever the blocks are, and nothing else is."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from flatout.system.csv_quotes import MOST_LINES, StrayQuote, check_quotes

_CELLS = some.text('ab"\n, ', max_size=5)


def in_blocks(text: str, size: int) -> list[bytes]:
    content = text.encode()
    return [content[place : place + size] for place in range(0, len(content), size)]


@settings(max_examples=100, deadline=None)
@given(some.lists(some.lists(_CELLS, min_size=2, max_size=2), max_size=5), some.integers(1, 9))
def test_what_python_has_written_has_no_stray_quote(rows: list[list[str]], size: int) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerows(rows)
    check_quotes(in_blocks(stream.getvalue(), size), ",")


@pytest.mark.parametrize("size", [3, 7, 2**20])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"', 1),
        ('\ufeff"a', 1),
        ('a,b\n1,"2\n3,4\n', 2),
        ('a,b\n"x\ny",1\n"",""\n1,"""\n', 5),
        ('a,b\r\n1,"2""\r\n', 2),
        ('a\n"' + "x\n" * (MOST_LINES + 1) + '"\n', 2),
        ('a\n1\n"' + "x" * 2**20 + 'x"\n', 3),
    ],
)
def test_stray_quote_is_found_with_its_line(text: str, line: int, size: int) -> None:
    if len(text) > 2**16 and size < 100:
        size = 2**16
    with pytest.raises(StrayQuote, match=f"line {line} "):
        check_quotes(in_blocks(text, size), ",")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        'a,b\n5" pipe,6"\n',
        '"a" "b,1\n',
        'a\n"' + "x\n" * (MOST_LINES - 1) + '"\n',
        'a""\n',
    ],
)
def test_letters_and_long_texts_are_no_stray_quotes(text: str) -> None:
    check_quotes(in_blocks(text, 3), ",")
    check_quotes([text.encode()], ",")
