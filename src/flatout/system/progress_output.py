"""The output of a process, line by line as it comes, and of a progress bar a line now and then."""

from __future__ import annotations

import io
from collections.abc import Iterator

from flatout.system.clock import elapsed_s

# A bar writes over its line ten times a second, for hours.
_BAR_EVERY_S = 5.0
# What never ends its line is not kept for ever.
_LONGEST_BYTES = 1 << 16


def printed_lines(stream: io.BufferedReader, bar_every_s: float = _BAR_EVERY_S) -> Iterator[bytes]:
    r"""Each line, with the sign at its end, if it has one.

    Args:
        stream: what is printed.
        bar_every_s: of lines that are written over, which end in \r alone, one is given so often.
    """
    rest, last_bar_s = b"", float("-inf")
    while chunk := stream.read1(_LONGEST_BYTES):
        lines = (rest + chunk).splitlines(keepends=True)
        rest = b""
        # The end of a line is still to come; after \r that may be \n.
        if not lines[-1].endswith(b"\n") and len(lines[-1]) < _LONGEST_BYTES:
            rest = lines.pop()
        for line in lines:
            if line.endswith(b"\r"):
                if line == b"\r" or elapsed_s() - last_bar_s < bar_every_s:
                    continue
                last_bar_s = elapsed_s()
            yield line
    if rest:
        yield rest
