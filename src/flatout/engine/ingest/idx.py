"""IDX files, the format of MNIST: byte images and their labels, in two files.

Source: http://yann.lecun.com/exdb/mnist/ ("the IDX file format"): two zeros, 8 for bytes, the
number of dimensions, each size as four bytes with the highest first, the data.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.schema.ingest_protocol import Part
from flatout.schema.units import counted_text
from flatout.system.store.source_files import SourceFile, content, path_of

_NAME = re.compile(r"(.*)-(images-idx3|labels-idx1)-ubyte(\.gz)?", re.IGNORECASE)
# Test files by the last word of the prefix: `t10k-images-...`, `emnist-letters-test-images-...`.
_TEST_WORDS = ("t10k", "test")


class IdxPair(msgspec.Struct, frozen=True):
    """The two files of one set of images. part: taken from their names."""

    images: str
    labels: str
    part: Part | None


class IdxSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a pair. shape: (height, width) of its images."""

    num_rows: int
    shape: tuple[int, int]
    largest_label: int

    @property
    def row_bytes(self) -> int:
        """Size of one image in bytes."""
        return self.shape[0] * self.shape[1]


def is_name(name: str) -> bool:
    """Whether a file is named like an IDX file."""
    return _NAME.fullmatch(name) is not None


def pairs_of(folder: Path, files: Sequence[SourceFile]) -> list[IdxPair]:
    """The files in pairs, training first.

    Raises:
        UsageError: source-not-readable.
    """
    by_stem: dict[str, dict[str, str]] = {}
    for file in files:
        match = _NAME.fullmatch(file.name)
        if match:
            by_stem.setdefault(match[1], {})[match[2].lower()] = file.name
    pairs = []
    for stem, both in sorted(by_stem.items(), key=lambda item: (_is_test(item[0]), item[0])):
        if len(both) < 2:
            raise UsageError(
                "source-not-readable",
                f"{path_of(str(folder), next(iter(both.values())))} has no matching file.",
                because="images and labels are in two files whose names start the same",
                fix="put both files into the folder, with the same prefix",
            )
        part: Part | None = "test" if _is_test(stem) else None
        pairs.append(IdxPair(both["images-idx3"], both["labels-idx1"], part))
    return pairs


def summarize(source: str, pair: IdxPair) -> IdxSummary:
    """Reads both files once.

    Raises:
        UsageError: source-not-readable.
    """
    (num_rows, *shape), _ = read(path_of(source, pair.images), num_dimensions=3)
    (num_labels,), labels = read(path_of(source, pair.labels), num_dimensions=1)
    if num_rows != num_labels or not num_rows or 0 in shape:
        raise _not_readable(
            path_of(source, pair.images),
            f"it has {counted_text(num_rows, 'image')} and {counted_text(num_labels, 'label')}",
        )
    return IdxSummary(num_rows=num_rows, shape=(shape[0], shape[1]), largest_label=max(labels))


def read(path: Path, *, num_dimensions: int) -> tuple[list[int], memoryview]:
    """The sizes of a file's dimensions, and its bytes.

    Raises:
        UsageError: source-not-readable.
    """
    raw = content(path)
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _not_readable(path, f"it cannot be decompressed: {error}") from error
    head = 4 + 4 * num_dimensions
    if raw[:4] != bytes((0, 0, 8, num_dimensions)) or len(raw) < head:
        raise _not_readable(path, f"it is not an IDX file of bytes in {num_dimensions} dimensions")
    sizes = [int.from_bytes(raw[offset : offset + 4], "big") for offset in range(4, head, 4)]
    num_bytes = 1
    for size in sizes:
        num_bytes *= size
    if len(raw) != head + num_bytes:
        raise _not_readable(path, f"it has {len(raw) - head} bytes of data, not {num_bytes}")
    return sizes, memoryview(raw)[head:]


def _is_test(stem: str) -> bool:
    return re.split(r"[-_/]", stem.lower())[-1] in _TEST_WORDS


def _not_readable(path: Path, because: str) -> UsageError:
    return UsageError(
        "source-not-readable",
        f"{path} cannot be read as IDX.",
        because=because,
        fix="get an intact copy of the file; for MNIST: flatout data get mnist",
    )
