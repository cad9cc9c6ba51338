"""Pictures as PNG files, without another package.

Source: W3C, "Portable Network Graphics (PNG) Specification", https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import struct
import zlib

from torch import Tensor

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2


def png_of(picture: Tensor) -> bytes:
    """The PNG file of a picture (height, width, channels): uint8, on the CPU, 1 or 3 channels."""
    height, width, channels = picture.shape
    color = _RGB if channels == 3 else _GREY
    rows = picture.contiguous().view(height, width * channels).numpy()
    # Each row begins with the filter that it has: none.
    content = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    return (
        _SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(content))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
