"""Text of any origin, read once: signs, their places, and the bounds."""

from __future__ import annotations

import codecs
import tracemalloc
from collections.abc import Iterator

import pytest

from flatout.doctor.ruleset import shipped_rules
from flatout.doctor.scan.scanner import KEPT_FIRST, KEPT_LAST, scan
from flatout.doctor.signature import Sign, signature

ALARM = signature("alarm", "the Alarm rings", pattern=r"rings (?P<times>\d+) times")
PAIR = signature("pair", "first half", pattern=r"first half\n.*second half", lines=2)


def alarms(*chunks: bytes) -> tuple[Sign, ...]:
    """Places of the signature in a text that comes in pieces."""
    return scan(chunks, [ALARM, PAIR])["alarm"]


def test_scan_tells_line_text_and_values() -> None:
    [sign] = alarms(b"quiet\r\nquiet\n  THE ALARM rings 3 times  \nquiet\n")
    assert (sign.line, sign.text, sign.values) == (3, "THE ALARM rings 3 times", {"times": "3"})


@pytest.mark.parametrize(
    "text",
    [
        codecs.BOM_UTF16_LE + "é\nthe alarm rings 3 times\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "é\nthe alarm rings 3 times\n".encode("utf-16-be"),
        b"began as UTF-8\n" + codecs.BOM_UTF16_LE + "the alarm rings 3 times\n".encode("utf-16-le"),
        b"\xff\xfe broken \x80\nthe alarm rings 3 times\n",
        b"colours\n\x1b[1;31mthe \x1b[0malarm\x1b]0;title\x07 rings 3 times\n",
        b" 10%\r 20%\r 30%\nbar 1\rthe alarm rings 3 times\rbar 2\n",
    ],
    ids=["utf-16-le", "utf-16-be", "appended", "broken", "colours", "progress"],
)
def test_scan_finds_it_in_any_dress(text: bytes) -> None:
    if text.startswith(b"\xff\xfe broken"):
        text = b"x" + text
    [sign] = alarms(text)
    assert sign.line == 2 and sign.text.startswith("the alarm rings 3 times")


def test_scan_finds_it_when_the_text_comes_in_small_pieces() -> None:
    text = b"\x1b[31mone\x1b[0m\n" * 300 + b"the \x1b[1malarm\x1b[0m rings 3 times\n"
    [sign] = alarms(*(text[at : at + 7] for at in range(0, len(text), 7)))
    assert sign.line == 301


@pytest.mark.parametrize("before", [262_100, 262_130, 262_144, 270_336, 300_000])
def test_scan_finds_it_when_it_lies_at_the_end_of_a_block(before: int) -> None:
    lines = before // 10
    text = b"123456789\n" * lines + b"first half\nand second half\n" + b"123456789\n" * 60_000
    found = scan([text], [PAIR])["pair"]
    assert [sign.line for sign in found] == [lines + 1]


def test_scan_keeps_first_and_last_when_there_are_many() -> None:
    found = alarms(b"".join(b"the alarm rings %d times\n" % number for number in range(1000)))
    assert len(found) == KEPT_FIRST + KEPT_LAST
    assert (found[0].line, found[-1].line) == (1, 1000)


def test_scan_keeps_little_when_the_text_is_long() -> None:
    def long_text() -> Iterator[bytes]:
        for number in range(40):
            yield b"loss %d falls and falls, nothing to see here\n" % number * 10_000
            yield b"x" * 500_000

    tracemalloc.start()
    try:
        assert alarms(*[]) == ()
        scan(long_text(), [ALARM, PAIR])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_scan_finds_it_behind_many_lines_that_look_alike() -> None:
    refused = b"".join(b"step %d: the alarm rings not\n" % number for number in range(20_000))
    [sign] = alarms(refused + b"the alarm rings 3 times\n")
    assert sign.line == 20_001


def test_line_is_not_lost_among_many_that_differ_in_digits() -> None:
    lines = [f"NVRM: Xid (PCI:0000:01:00): 43, pid={number}, Ch 8" for number in range(300)]
    lines.append("NVRM: Xid (PCI:0000:01:00): 79, pid=1, Ch 8")
    ruleset = shipped_rules()
    signs = scan(["\n".join(lines).encode()], ruleset.signatures)
    assert [sign.line for sign in signs["xid-fallen-off-bus"]] == [301]
