"""Turns bytes of any origin into UTF-8 without colors and escape sequences."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

# Colors and cursor movements (CSI), titles and links (OSC), and two-byte sequences. The classes
# of one sequence are disjoint, so that no text causes backtracking.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def cleaned(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same text in UTF-8, as far as possible, without colors; a lone CR stays.

    PowerShell writes UTF-16, and appends it to files in other encodings: without a BOM at the
    beginning, only the zero bytes are dropped, which is right for ASCII output.
    """
    decoder: codecs.IncrementalDecoder | None = None
    rest = b""
    is_first = True
    for chunk in chunks:
        if is_first and chunk:
            is_first = False
            for mark, encoding in _MARKS:
                if chunk.startswith(mark):
                    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
                    chunk = chunk[len(mark) :]
        if decoder:
            chunk = decoder.decode(chunk).encode(errors="replace")
        elif b"\0" in chunk:
            chunk = chunk.replace(b"\0", b"").replace(b"\xff\xfe", b"")
        chunk = rest + chunk
        rest = b""
        if b"\x1b" in chunk:
            # A sequence may be cut in two by the end of the chunk.
            begin = chunk.rfind(b"\x1b", max(0, len(chunk) - 64))
            if begin >= 0:
                chunk, rest = chunk[:begin], chunk[begin:]
            chunk = _ESCAPES.sub(b"", chunk)
        yield chunk
    yield _ESCAPES.sub(b"", rest)
