"""One pass over a text, however long, for all signatures at once, in bounded memory."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
# A line that a pattern has refused so often, but for its digits, is not tried again: a training
# prints the same line a million times.
_REFUSED_ENOUGH = 100
_MOST_SHAPES = 2_000

# Letters in lower case, everything else a space: a text becomes words.
_TO_WORDS = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 else 32 for code in range(256)
)
_TO_SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))


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
        self._refused: dict[int, int] = {}

    def add(self, sign: Sign) -> None:
        """Keeps a place, and lets one in the middle go."""
        self.count += 1
        if len(self.first) < KEPT_FIRST:
            self.first.append(sign)
        else:
            self.last.append(sign)

    def is_refused(self, window: bytes) -> bool:
        """Whether lines like this one were refused often enough."""
        return self._refused.get(hash(window.translate(_TO_SHAPE)), 0) >= _REFUSED_ENOUGH

    def refuse(self, window: bytes) -> None:
        """Remembers a line that the pattern did not match."""
        shape = hash(window.translate(_TO_SHAPE))
        if len(self._refused) >= _MOST_SHAPES:
            self._refused.clear()
        self._refused[shape] = self._refused.get(shape, 0) + 1


def scan(chunks: Iterable[bytes], signatures: Sequence[Signature]) -> dict[str, tuple[Sign, ...]]:
    """The places of every signature, in the order of the text; none for one that is not there.

    A block of text is first taken apart into its set of words. Only a signature whose words are all
    among them is looked for, and only where its fixed text is found is a pattern tried.
    """
    by_word = _by_rarest_word(tuple(signatures))
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


# The same few for every text: those of all rules.
@functools.lru_cache(maxsize=4)
def _by_rarest_word(signatures: tuple[Signature, ...]) -> Mapping[bytes, Sequence[_Text]]:
    # The longest word is seldom met by chance.
    by_word: dict[bytes, list[_Text]] = {}
    for one in signatures:
        for text in (_Text(text, one) for text in one.texts):
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
    # A progress bar's lone CRs end lines for the eye; for the count, only a newline does.
    small = block.lower().replace(b"\r", b"\n")
    whole = (block + ahead).replace(b"\r\n", b" \n").replace(b"\r", b"\n")
    for text in wanted:
        one, places = text.signature, seen[text.signature.id]
        at = small.find(text.needle)
        counted, number = 0, line
        while at >= 0 and places.count < SEEN_ENOUGH:
            begin = max(small.rfind(b"\n", 0, at) + 1, at - WINDOW_BYTES)
            end = _end(whole, at, one.lines)
            if not places.is_refused(whole[begin:end]):
                window = whole[begin:end].decode(errors="replace")
                values = one.match(window)
                if values is None:
                    places.refuse(whole[begin:end])
                else:
                    number += block.count(b"\n", counted, begin)
                    counted = begin
                    shown = window.partition("\n")[0].strip()[:_LONGEST_LINE]
                    places.add(Sign(id=one.id, line=number, text=shown, values=values))
            # Once a line: the next place is looked for behind its end.
            behind = small.find(b"\n", at)
            at = small.find(text.needle, behind) if behind >= 0 else -1


def _end(text: bytes, at: int, num_lines: int) -> int:
    """Where so many lines end, or the window does."""
    limit = min(len(text), at + WINDOW_BYTES)
    end = at - 1
    for _ in range(num_lines):
        end = text.find(b"\n", end + 1, limit)
        if end < 0:
            return limit
    return end
