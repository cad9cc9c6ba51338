"""Images, IDX files and texts as records."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from flatout.engine.ingest import idx
from flatout.engine.ingest.records import Records, RejectedRecords, key_of
from flatout.schema.ingest_protocol import IngestJob, SourcePiece
from flatout.system.source_path import library
from flatout.system.store.source_files import content, lines_from, path_of

_BATCH_ROWS = 1024
# A longer passage is not text.
_LONGEST_PASSAGE_BYTES = 2**20


def image_schema() -> Any:
    """name: path relative to the source; image: the file's bytes; label: number of its class."""
    arrow = library("pyarrow", package="pyarrow")
    return arrow.schema(
        [("name", arrow.string()), ("image", arrow.large_binary()), ("label", arrow.int64())]
    )


def read_images(job: IngestJob, piece: SourcePiece, bad: RejectedRecords) -> Iterator[Records]:
    """Image files unchanged, after checking that each is intact."""
    arrow = library("pyarrow", package="pyarrow")
    number_of = {name: number for number, name in enumerate(job.settings.classes)}
    for name in piece.files:
        raw = content(path_of(job.source, name))
        wrong = _what_is_wrong(raw)
        if wrong:
            bad.add(name, wrong)
            continue
        label = number_of[PurePosixPath(name).parts[0]]
        text = name.encode(errors="replace").decode()
        columns = [
            arrow.array([text], arrow.string()),
            arrow.array([raw], arrow.large_binary()),
            arrow.array([label], arrow.int64()),
        ]
        yield Records(columns, [key_of(raw)], len(raw))


def _what_is_wrong(raw: bytes) -> str | None:
    """The problem with an image's bytes; None if they are intact."""
    image = library("PIL.Image", package="Pillow")
    if not raw:
        return "it is empty"
    try:
        with image.open(io.BytesIO(raw)) as opened:
            opened.convert("RGB")
    except image.UnidentifiedImageError:
        # Pillow's message contains a memory address, which differs each time.
        return "it is not an image"
    except Exception as error:  # noqa: BLE001 - Pillow can raise nearly anything for a damaged file
        return str(error) or type(error).__name__
    return None


def idx_schema(job: IngestJob) -> Any:
    """image: bytes, (channels, height, width) as in the manifest; label: number of its class."""
    arrow = library("pyarrow", package="pyarrow")
    num_bytes = 1
    for size in job.settings.shape:
        num_bytes *= size
    return arrow.schema([("image", arrow.binary(num_bytes)), ("label", arrow.int64())])


def read_idx(job: IngestJob, piece: SourcePiece, bad: RejectedRecords) -> Iterator[Records]:
    """A range of the images of a pair of files. None of them can be bad."""
    arrow = library("pyarrow", package="pyarrow")
    _, images = idx.read(path_of(job.source, piece.files[0]), num_dimensions=3)
    _, labels = idx.read(path_of(job.source, piece.files[1]), num_dimensions=1)
    kind = idx_schema(job).field("image").type
    size = kind.byte_width
    for begin in range(piece.begin, piece.end, _BATCH_ROWS):
        end = min(begin + _BATCH_ROWS, piece.end)
        rows = [bytes(images[row * size : (row + 1) * size]) for row in range(begin, end)]
        columns = [
            arrow.array(rows, kind),
            arrow.array(list(labels[begin:end]), arrow.int64()),
        ]
        yield Records(columns, [key_of(row) for row in rows], len(rows) * size)


def text_schema() -> Any:
    """text: consecutive lines, without the empty lines around them."""
    arrow = library("pyarrow", package="pyarrow")
    return arrow.schema([("text", arrow.string())])


def read_passages(job: IngestJob, piece: SourcePiece, bad: RejectedRecords) -> Iterator[Records]:
    """The passages of a section of a text, separated by empty lines."""
    arrow = library("pyarrow", package="pyarrow")
    name = piece.files[0]
    passages: list[str] = []
    keys: list[bytes] = []
    for offset, raw in _passages(job, piece):
        wrong, text = _decoded(raw)
        if wrong:
            bad.add(f"{name}: byte {offset}", wrong, raw[:4000].decode(errors="replace"))
            continue
        passages.append(text)
        keys.append(key_of(text.encode()))
        if len(passages) == _BATCH_ROWS:
            yield Records([arrow.array(passages)], keys, sum(map(len, passages)))
            passages, keys = [], []
    if passages:
        yield Records([arrow.array(passages)], keys, sum(map(len, passages)))


def _passages(job: IngestJob, piece: SourcePiece) -> Iterator[tuple[int, bytes]]:
    """The passages after the first empty line of the piece, up to the first one after its end.

    So each passage of a file is in exactly one piece, and the previous piece need not be read.
    """
    is_inside = piece.begin == 0
    began, lines = 0, bytearray()
    for offset, line in lines_from(path_of(job.source, piece.files[0]), piece.begin):
        if line.strip():
            if is_inside:
                began = began if lines else offset
                # Too long: only enough of it is kept to show that.
                lines += line if len(lines) <= _LONGEST_PASSAGE_BYTES else b""
            # The next piece looks for its first empty line independently.
            is_over = not is_inside or len(lines) > _LONGEST_PASSAGE_BYTES
            if offset >= piece.end and is_over:
                break
            continue
        if lines:
            yield began, bytes(lines)
            lines.clear()
        is_inside = True
        if offset >= piece.end:
            return
    if lines:
        yield began, bytes(lines)


def _decoded(raw: bytes) -> tuple[str | None, str]:
    """The problem with a passage, and its text with Unix line ends."""
    if len(raw) > _LONGEST_PASSAGE_BYTES:
        return f"it is longer than {_LONGEST_PASSAGE_BYTES:,} bytes", ""
    if b"\0" in raw:
        return "it contains a zero byte, so it is not text", ""
    try:
        text = raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        return f"it is not UTF-8: {error.reason}", ""
    return None, text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
