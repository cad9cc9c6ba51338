"""Files in requests: what they are, from their content alone, and whether a replica may read them.

Names of uploaded files are not looked at. Only headers are read here; replicas decode. Pure.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import struct
import tokenize
import zlib

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from flatout.errors import UsageError
from flatout.schema.serve_protocol import AnyInput, FileInput, TextInput
from flatout.schema.units import bytes_text, count_text
from flatout.serve.limits import ServeLimits, check_num_inputs

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"GIF87a", ".gif"),
    (b"GIF89a", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tiff"),
    (b"MM\x00*", ".tiff"),
    (b"\x93NUMPY", ".npy"),
    (b"\x1f\x8b", ".gz"),
)
# Pillow's names. It tries no other format, whatever a file's first bytes are.
_IMAGES = {
    ".png": "PNG", ".jpg": "JPEG", ".gif": "GIF", ".bmp": "BMP", ".webp": "WEBP", ".tiff": "TIFF",
}  # fmt: skip
# What Pillow, numpy and gzip raise for damaged files.
_UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, ArithmeticError,
    MemoryError, RuntimeError, struct.error, tokenize.TokenError, zlib.error,
)  # fmt: skip
_PIECE_BYTES = 1 << 20
# Of four channels, or of one with 32 bits.
_PIXEL_BYTES = 4
_FILENAME = re.compile(rb";\s*filename\*?\s*=", re.IGNORECASE)


def suffix_of(data: bytes) -> str:
    """The suffix for a file with this content; empty if it is of no known kind."""
    for magic, suffix in _MAGIC:
        if data.startswith(magic):
            return suffix
    return ".webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def file_input(data: bytes, limits: ServeLimits) -> FileInput:
    """A file as an input, after a check of what it would become in memory.

    Raises:
        UsageError: file-damaged, file-too-large
    """
    suffix, content_bytes = suffix_of(data), 0
    if not data:
        raise _damaged("a file is empty")
    if suffix in _IMAGES:
        content_bytes = _PIXEL_BYTES * _num_pixels(data, _IMAGES[suffix], limits)
    elif suffix == ".npy":
        content_bytes = _array_bytes(data, limits)
    elif suffix == ".gz":
        content_bytes = _gzip_bytes(data, limits)
    return FileInput(data, suffix, content_bytes)


def _damaged(problem: str, because: str | None = None) -> UsageError:
    return UsageError("file-damaged", f"{problem}.", because=because, fix="send the whole file")


def _too_large(problem: str, because: str) -> UsageError:
    return UsageError("file-too-large", problem, because=because, fix="send a smaller file")


def _num_pixels(data: bytes, kind: str, limits: ServeLimits) -> int:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=(kind,)) as image:
            pixels = image.width * image.height
    except Image.DecompressionBombError as error:
        raise _too_large("an image has too many pixels.", str(error)) from error
    except _UNREADABLE as error:
        raise _damaged(f"a {kind} image cannot be read", type(error).__name__) from error
    if pixels > limits.image_pixels:
        raise _too_large(
            "an image has too many pixels.",
            f"it has {count_text(pixels)}; {count_text(limits.image_pixels)} are allowed",
        )
    return pixels


def _array_bytes(data: bytes, limits: ServeLimits) -> int:
    from numpy.lib import format as npy

    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
        expected = math.prod(shape) * dtype.itemsize
    except _UNREADABLE as error:
        raise _damaged("a .npy file cannot be read", str(error)[:200]) from error
    if dtype.hasobject:
        raise UsageError(
            "file-damaged",
            "a .npy file contains Python objects.",
            because="reading them would run code from the file",
            fix="save the array with a numeric dtype",
        )
    if expected > limits.tensor_bytes:
        raise _too_large(
            "an array is too large.",
            f"it has {bytes_text(expected)}; {bytes_text(limits.tensor_bytes)} are allowed",
        )
    if expected != len(data) - file.tell():
        raise _damaged(
            "a .npy file does not have the data that its header describes",
            f"expected {expected} bytes, found {len(data) - file.tell()}",
        )
    return expected


def _gzip_bytes(data: bytes, limits: ServeLimits) -> int:
    """Decompresses without keeping the content: the size in the trailer may be wrong."""
    total = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while piece := file.read(_PIECE_BYTES):
                total += len(piece)
                if total > limits.file_bytes:
                    raise _too_large(
                        "a compressed file is too large.",
                        f"it contains more than {bytes_text(limits.file_bytes)}",
                    )
    except _UNREADABLE as error:
        raise _damaged("a compressed file cannot be read", str(error)) from error
    return total


class _Parts:
    """Collects the parts of a multipart body: whether each is a file, and its content."""

    def __init__(self, limits: ServeLimits) -> None:
        self.found: list[tuple[bool, bytearray]] = []
        self.is_complete = False
        self._limits = limits
        self._name = bytearray()
        self._value = bytearray()

    def begin(self) -> None:
        check_num_inputs(len(self.found) + 1, self._limits)
        self.found.append((False, bytearray()))

    def name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._name.lower() == b"content-disposition" and _FILENAME.search(self._value):
            self.found[-1] = (True, self.found[-1][1])
        self._name.clear()
        self._value.clear()

    def content(self, data: bytes, start: int, end: int) -> None:
        self.found[-1][1].extend(data[start:end])

    def end(self) -> None:
        self.is_complete = True


def multipart_inputs(body: bytes, content_type: str, limits: ServeLimits) -> list[AnyInput]:
    """The parts of a multipart body: files, and texts where a part has no file name.

    Raises:
        UsageError: body-not-readable, too-many-inputs, file-damaged, file-too-large
    """
    parts = _Parts(limits)
    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise FormParserError("no boundary in the content type")
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": parts.begin,
                "on_header_field": parts.name,
                "on_header_value": parts.value,
                "on_header_end": parts.end_header,
                "on_part_data": parts.content,
                "on_end": parts.end,
            },
        )
        parser.write(body)
        if not parts.is_complete:
            raise FormParserError("it ends before its last boundary")
    except (FormParserError, ValueError) as error:
        raise UsageError(
            "body-not-readable",
            "the multipart body of the request cannot be read.",
            because=str(error)[:200],
            fix="send all of it, as `curl -F file=@image.png` does",
        ) from error
    check_num_inputs(len(parts.found), limits)
    return [
        file_input(bytes(content), limits) if is_file else TextInput(decoded_text(bytes(content)))
        for is_file, content in parts.found
    ]


def decoded_text(data: bytes) -> str:
    """UTF-8 as text.

    Raises:
        UsageError: body-not-readable
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            "body-not-readable",
            "a text is not UTF-8.",
            because=f"{error.reason} at byte {error.start}",
            fix="encode texts as UTF-8",
        ) from error
