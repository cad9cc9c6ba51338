"""One pass over a text, however long, for all signatures at once, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from flatout.doctor.logs.cleaning import cleaned
from flatout.doctor.signature import WINDOW_BYTES, Sign, Signature

# Beginnings tell the cause, ends tell what it came to.
KEPT_FIRST = 8
KEPT_LAST = 8
# A signature seen this often has told what it can; what a program repeats for ever is not looked
# at for ever.
SEEN_ENOUGH = 5_000
_BLOCK_BYTES = 256 * 1024
# How far a signature that goes over lines may look.
_AHEAD_BYTES = 2 * WINDOW_BYTES
_LONGEST_LINE = 400

# Letters in lower case, everything else a space: a text becomes words.
_TO_WORDS = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 else 32 for code in range(256)
)


class _Text:
    """A fixed text of a signature, ready to be looked for."""

    def __init__(self, text: str, signature: Signature) -> None:
        self.signature = signature
        self.needle = text.encode().lower()
        self.words = frozenset(self.needle.translate(_TO_WORDS).split())


class Seen:
    """What was seen of one signature: its first places and its last."""

    def __init__(self) -> None:
        self.first: list[Sign] = []
        self.last: deque[Sign] = deque(maxlen=KEPT_LAST)
        self.count = 0

    def add(self, sign: Sign) -> None:
        """Keeps a place, and lets one in the middle go."""
        self.count += 1
        if len(self.first) < KEPT_FIRST:
            self.first.append(sign)
        else:
            self.last.append(sign)


def scan(chunks: Iterable[bytes], signatures: Sequence[Signature]) -> dict[str, tuple[Sign, ...]]:
    """The places of every signature, in the order of the text; none for one that is not there.

    A block of text is first taken apart into its set of words. Only a signature whose words are all
    among them is looked for, and only where its fixed text is found is a pattern tried.
    """
    texts = [_Text(text, one) for one in signatures for text in one.texts]
    by_word = _by_rarest_word(texts)
    seen = {one.id: Seen() for one in signatures}
    line = 1
    for block, ahead in _blocks(cleaned(chunks)):
        words = set(block.translate(_TO_WORDS).split())
        wanted = [
            text
            for word in by_word.keys() & words
            for text in by_word[word]
            if text.words <= words and seen[text.signature.id].count < SEEN_ENOUGH
        ]
        if wanted:
            _look(block, ahead, line, wanted, seen)
        line += block.count(b"\n")
    return {
        id: tuple(sorted((*one.first, *one.last), key=lambda sign: sign.line))
        for id, one in seen.items()
    }


def _by_rarest_word(texts: Sequence[_Text]) -> dict[bytes, list[_Text]]:
    # The longest word is seldom met by chance.
    by_word: dict[bytes, list[_Text]] = {}
    for text in texts:
        by_word.setdefault(max(text.words, key=len), []).append(text)
    return by_word


def _blocks(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Whole lines, about a block's worth at a time, and what comes after them."""
    held = b""
    for chunk in chunks:
        held += chunk
        while len(held) > _BLOCK_BYTES + _AHEAD_BYTES:
            end = held.rfind(b"\n", 0, _BLOCK_BYTES) + 1 or _BLOCK_BYTES
            yield held[:end], held[end : end + _AHEAD_BYTES]
            held = held[end:]
    yield held, b""


def _look(
    block: bytes, ahead: bytes, line: int, wanted: Sequence[_Text], seen: dict[str, Seen]
) -> None:
    small = block.lower()
    whole = block + ahead
    for text in wanted:
        one, places = text.signature, seen[text.signature.id]
        at = small.find(text.needle)
        counted, number = 0, line
        while at >= 0 and places.count < SEEN_ENOUGH:
            begin = max(small.rfind(b"\n", 0, at), small.rfind(b"\r", 0, at)) + 1
            window = whole[max(begin, at - WINDOW_BYTES) : at + WINDOW_BYTES]
            lines = window.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
            parts = lines.split("\n", one.lines)[: one.lines]
            values = one.match("\n".join(parts))
            number += block.count(b"\n", counted, begin)
            counted = begin
            if values is not None:
                shown = parts[0].strip()[:_LONGEST_LINE]
                places.add(Sign(id=one.id, line=number, text=shown, values=values))
            # Once a line: the next place is looked for behind its end.
            end = _line_end(small, at)
            at = small.find(text.needle, end)


def _line_end(text: bytes, at: int) -> int:
    ends = [end for end in (text.find(b"\n", at), text.find(b"\r", at)) if end >= 0]
    return min(ends, default=len(text))
