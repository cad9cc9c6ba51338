"""One pass over a text, however long, for all signatures together, in bounded memory."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flatout.doctor.prefilter import required_words
from flatout.doctor.scan.cleaning import cleaned
from flatout.doctor.signature import WINDOW_BYTES, Sign, Signature

# The first matches show the cause, the last ones the outcome.
KEPT_FIRST = 8
KEPT_LAST = 8
# More matches of a signature add nothing, so endless repetition is not scanned endlessly.
SEEN_ENOUGH = 5_000
_BLOCK_BYTES = 256 * 1024
# How far ahead a multi-line signature may look.
_AHEAD_BYTES = 2 * WINDOW_BYTES
_LONGEST_LINE = 400
# A line that a pattern rejected this often, ignoring digits, is not tried again: a training prints
# the same line a million times.
_REFUSED_ENOUGH = 100
# Of a pattern that asks for certain numbers, such as an error's, another line may match.
_REFUSED_ENOUGH_NUMBERS = 5_000
_MOST_SHAPES = 2_000
# Summaries of test runs name failures that were expected.
_EXPECTED = (b"XFAIL ", b"SKIPPED [")

# Letters in lower case, everything else a space: a text becomes words.
_TO_WORDS = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 else 32 for code in range(256)
)
_TO_SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))


class _Text:
    """A fixed text of a signature, prepared for searching."""

    def __init__(self, text: str, signature: Signature) -> None:
        self.signature = signature
        self.needle = text.encode().lower()
        self.shape = self.needle.translate(_TO_SHAPE)
        self.words = frozenset(word.encode() for word in required_words(text))


class SignatureHit:
    """The matches of one signature: the first and the last few."""

    def __init__(self, *, ignores_digits: bool = True) -> None:
        self._enough = _REFUSED_ENOUGH if ignores_digits else _REFUSED_ENOUGH_NUMBERS
        self.first: list[Sign] = []
        self.last: deque[Sign] = deque(maxlen=KEPT_LAST)
        self.count = 0
        self._refused: dict[int, int] = {}
        self._num_refused = 0

    @property
    def has_refused(self) -> bool:
        """Whether any line was rejected often enough."""
        return self._num_refused > 0

    def add(self, sign: Sign) -> None:
        """Adds a match; those in the middle are dropped."""
        self.count += 1
        if len(self.first) < KEPT_FIRST:
            self.first.append(sign)
        else:
            self.last.append(sign)

    def is_refused(self, shape: bytes) -> bool:
        """Whether lines of this shape were rejected often enough."""
        return self._refused.get(hash(shape), 0) >= self._enough

    def refuse(self, shape_of_line: bytes) -> None:
        """Remembers a line that the pattern did not match."""
        shape = hash(shape_of_line)
        if len(self._refused) >= _MOST_SHAPES:
            self._refused.clear()
            self._num_refused = 0
        self._refused[shape] = self._refused.get(shape, 0) + 1
        self._num_refused += self._refused[shape] == self._enough


def scan(chunks: Iterable[bytes], signatures: Sequence[Signature]) -> dict[str, tuple[Sign, ...]]:
    """The matches of every signature, in text order; empty for one that does not occur.

    Of the lines of a block, those that differ only in digits are looked at once: this gives its
    words, and the texts that may be in it. A signature is searched only if all its words are there,
    and its pattern is tried only where its fixed text is found.
    """
    by_word = _by_rarest_word(tuple(signatures))
    seen = {
        signature.id: SignatureHit(ignores_digits=not signature.has_digits)
        for signature in signatures
    }
    line = 1
    for block, ahead in _blocks(cleaned(chunks)):
        # A progress bar's lone CRs separate lines for matching; only newlines count as line
        # numbers.
        whole = (block + ahead).replace(b"\r\n", b" \n").replace(b"\r", b"\n")
        shapes = set(whole[: len(block)].translate(_TO_SHAPE).split(b"\n"))
        sample = b"\n".join(shapes).lower()
        words = set(sample.translate(_TO_WORDS).split())
        candidates = [
            text
            for word in by_word.keys() & words
            for text in by_word[word]
            if text.words <= words
            and text.shape in sample
            and _is_open(text, shapes, seen[text.signature.id])
        ]
        if candidates:
            _search_block(block, whole, line, candidates, seen)
        line += block.count(b"\n")
    return {
        id: tuple(sorted((*hit.first, *hit.last), key=lambda sign: sign.line))
        for id, hit in seen.items()
    }


# Cached, because every text is scanned for the same signatures.
@functools.lru_cache(maxsize=4)
def _by_rarest_word(signatures: tuple[Signature, ...]) -> Mapping[bytes, Sequence[_Text]]:
    # The longest word rarely occurs by chance.
    by_word: dict[bytes, list[_Text]] = {}
    for signature in signatures:
        for text in (_Text(text, signature) for text in signature.texts):
            by_word.setdefault(max(text.words, key=len), []).append(text)
    return by_word


def _blocks(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Whole lines, about a block's worth at a time, and what comes after them."""
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        while len(buffer) > _BLOCK_BYTES + _AHEAD_BYTES:
            end = buffer.rfind(b"\n", 0, _BLOCK_BYTES) + 1 or _BLOCK_BYTES
            yield buffer[:end], buffer[end : end + _AHEAD_BYTES]
            buffer = buffer[end:]
    yield buffer, b""


def _is_open(text: _Text, shapes: set[bytes], hit: SignatureHit) -> bool:
    """Whether to search a text: its pattern has not rejected all lines that have it."""
    if hit.count >= SEEN_ENOUGH:
        return False
    if not hit.has_refused or text.signature.lines > 1:
        return True
    return any(text.shape in shape.lower() and not hit.is_refused(shape) for shape in shapes)


def _search_block(
    block: bytes,
    whole: bytes,
    line: int,
    candidates: Sequence[_Text],
    seen: dict[str, SignatureHit],
) -> None:
    small = block.lower().replace(b"\r", b"\n")
    for text in candidates:
        signature, hit = text.signature, seen[text.signature.id]
        at = small.find(text.needle)
        counted, number = 0, line
        while at >= 0 and hit.count < SEEN_ENOUGH:
            begin = max(small.rfind(b"\n", 0, at) + 1, at - WINDOW_BYTES)
            end = _end(whole, at, signature.lines)
            shape = whole[begin:end].translate(_TO_SHAPE)
            if not hit.is_refused(shape) and not shape.startswith(_EXPECTED):
                window = whole[begin:end].decode(errors="replace")
                values = signature.match(window)
                if values is None:
                    hit.refuse(shape)
                else:
                    number += block.count(b"\n", counted, begin)
                    counted = begin
                    shown = window.partition("\n")[0].strip()[:_LONGEST_LINE]
                    hit.add(Sign(id=signature.id, line=number, text=shown, values=values))
            # One match per line: continue the search after its end.
            behind = small.find(b"\n", at)
            at = small.find(text.needle, behind) if behind >= 0 else -1


def _end(text: bytes, at: int, num_lines: int) -> int:
    """The end of so many lines, or of the window."""
    limit = min(len(text), at + WINDOW_BYTES)
    end = at - 1
    for _ in range(num_lines):
        end = text.find(b"\n", end + 1, limit)
        if end < 0:
            return limit
    return end
