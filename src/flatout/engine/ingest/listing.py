"""A source as pieces of work: what it is, what is in it, and where it is cut."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.engine.data_files import existing
from flatout.engine.ingest import idx, tables
from flatout.errors import UsageError
from flatout.nouns.ingestion import (
    DEFAULT_SHARE,
    IngestRequest,
    Kind,
    Piece,
    Settings,
)
from flatout.system.source_files import SourceFile, files_below, path_of, stamp

# What a piece holds of its source: enough that starting it costs nothing, and little enough that a
# worker holds it in memory.
PIECE_BYTES = 32 * 2**20

_ENDINGS: dict[str, Kind] = {
    ".jpg": "images", ".jpeg": "images", ".png": "images", ".webp": "images",
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".csv.gz": "csv", ".tsv.gz": "csv",
    ".txt": "text", ".md": "text",
}  # fmt: skip


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A source that was looked through.

    num_ignored: files of other kinds than its own, and images outside of their classes' folders.
    """

    settings: Settings
    pieces: tuple[Piece, ...]
    num_ignored: int
    has_own_test: bool = False

    @property
    def size_bytes(self) -> int:
        """What there is to read."""
        return sum(piece.size_bytes for piece in self.pieces)


def look_through(request: IngestRequest) -> Source:
    """What a source is and how it is cut; its records are not read yet.

    Raises:
        UsageError: data-path-not-found, no-data, source-of-several-kinds, empty-class, no-images,
            column-not-found, table-not-readable, source-not-readable.
    """
    place = existing(request.source)
    every = files_below(place)
    kind = request.kind or _kind_of(place, every)
    files = [file for file in every if _kind_of_file(file.name) == kind]
    if not files:
        raise UsageError(
            "no-data",
            f"there is nothing in {place} to ingest as {kind}.",
            because=f"expected {', '.join(_looked_for(kind))}",
            fix="check the path, or name another --kind",
        )
    if request.key is not None and kind not in ("csv", "parquet"):
        raise UsageError(
            "column-not-found",
            f"`--key {request.key}`: {kind} have no columns.",
            fix="leave --key out; the content of each record decides its part",
        )
    has_own_test = kind == "idx" and any(pair.part for pair in idx.pairs_of(place, files))
    settings = Settings(
        kind=kind,
        validation=DEFAULT_SHARE if request.validation is None else request.validation,
        test=_test_share(request, has_own_test=has_own_test),
        key=request.key,
    )
    num_loose = sum(not file.folder for file in files) if kind == "images" else 0
    cut = {"images": _images, "idx": _idx, "csv": _csv, "parquet": _parquet, "text": _text}[kind]
    settings, pieces = cut(place, files, settings)
    return Source(
        settings=settings,
        pieces=tuple(pieces),
        num_ignored=len(every) - len(files) + num_loose,
        has_own_test=has_own_test,
    )


def _test_share(request: IngestRequest, *, has_own_test: bool) -> float:
    """A source with a test part of its own keeps that."""
    if has_own_test:
        return 0.0
    return DEFAULT_SHARE if request.test is None else request.test


def _kind_of_file(name: str) -> Kind | None:
    lower = name.lower()
    if idx.is_name(lower):
        return "idx"
    return next((kind for ending, kind in _ENDINGS.items() if lower.endswith(ending)), None)


def _looked_for(kind: Kind) -> list[str]:
    if kind == "idx":
        return ["NAME-images-idx3-ubyte", "NAME-labels-idx1-ubyte", "the same with .gz"]
    return [f"files that end in {ending}" for ending, of in _ENDINGS.items() if of == kind]


def _kind_of(place: Path, files: Sequence[SourceFile]) -> Kind:
    kinds = {kind for file in files if (kind := _kind_of_file(file.name))}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds:
        raise UsageError(
            "source-of-several-kinds",
            f"{place} holds {', '.join(sorted(kinds))}.",
            because="the records of one data set are of one kind",
            fix=f"say which: --kind {min(kinds)}",
        )
    raise UsageError(
        "no-data",
        f"there is nothing in {place} that flatout can ingest.",
        because="it takes images in a folder for each class, IDX files, CSV, Parquet and text",
        fix="check the path, or name what it is with --kind",
    )


def _images(
    place: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[Piece]]:
    """Images in buckets by the hash of their names: a new one changes one bucket, and every shard
    is a mixture of all classes.
    """
    classes = sorted({file.folder for file in files} - {""})
    if not classes:
        raise UsageError(
            "no-images",
            f"there is no folder of a class in {place}.",
            because="an image's class is the name of the folder it lies in",
            fix="move the images into folders with the names of their classes",
        )
    owned = [file for file in files if file.folder]
    num_bits = 0
    while sum(file.size_bytes for file in owned) > PIECE_BYTES << num_bits:
        num_bits += 1
    buckets: dict[int, list[tuple[bytes, SourceFile]]] = {}
    for file in owned:
        order = hashlib.sha256(file.name.encode(errors="surrogateescape")).digest()
        bucket = int.from_bytes(order[:4], "big") >> (32 - num_bits)
        buckets.setdefault(bucket, []).append((order, file))
    pieces = []
    for bucket, ordered in sorted(buckets.items()):
        inside = [file for _, file in sorted(ordered, key=lambda pair: pair[0])]
        pieces.append(
            Piece(
                name=_named(f"{num_bits}/{bucket}"),
                files=tuple(file.name for file in inside),
                size_bytes=sum(file.size_bytes for file in inside),
                stamp=stamp(inside),
            )
        )
    return msgspec.structs.replace(settings, classes=tuple(classes)), pieces


def _idx(
    place: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[Piece]]:
    sizes = {file.name: file for file in files}
    pieces, shapes, most = [], set(), 0
    for pair in idx.pairs_of(place, files):
        looked = idx.look(str(place), pair)
        shapes.add(looked.shape)
        most = max(most, looked.largest_label)
        both = [sizes[pair.images], sizes[pair.labels]]
        rows_each = max(1, PIECE_BYTES // looked.row_bytes)
        for begin in range(0, looked.num_rows, rows_each):
            end = min(begin + rows_each, looked.num_rows)
            pieces.append(
                Piece(
                    name=_named(f"{pair.images}#{begin}"),
                    files=(pair.images, pair.labels),
                    size_bytes=(end - begin) * looked.row_bytes,
                    stamp=stamp(both, begin, end),
                    begin=begin,
                    end=end,
                    part=pair.part,
                )
            )
    if len(shapes) != 1:
        raise UsageError(
            "source-not-readable",
            f"the images of {place} are not of one size.",
            because=", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)),
            fix="ingest them one after the other, into a folder each",
        )
    classes = tuple(str(number) for number in range(most + 1))
    return msgspec.structs.replace(settings, classes=classes, shape=(1, *shapes.pop())), pieces


def _csv(
    place: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[Piece]]:
    paths = [path_of(str(place), file.name) for file in files]
    columns = tables.csv_columns(paths)
    tables.check_key(settings.key, columns)
    # Where a row begins is known only to who has read all that is before it: one file, one piece.
    return msgspec.structs.replace(settings, columns=columns), [_whole_file(file) for file in files]


def _parquet(
    place: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[Piece]]:
    paths = [path_of(str(place), file.name) for file in files]
    columns = tables.parquet_columns(paths)
    tables.check_key(settings.key, columns)
    pieces = []
    for file, path in zip(files, paths, strict=True):
        for begin, end, size_bytes in tables.row_group_ranges(path, PIECE_BYTES):
            pieces.append(
                Piece(
                    name=_named(f"{file.name}#{begin}"),
                    files=(file.name,),
                    size_bytes=size_bytes,
                    stamp=stamp([file], begin, end),
                    begin=begin,
                    end=end,
                )
            )
    return msgspec.structs.replace(settings, columns=columns), pieces


def _text(
    place: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[Piece]]:
    pieces = []
    for file in files:
        for begin in range(0, max(1, file.size_bytes), PIECE_BYTES):
            end = min(begin + PIECE_BYTES, file.size_bytes)
            pieces.append(
                Piece(
                    name=_named(f"{file.name}#{begin}"),
                    files=(file.name,),
                    size_bytes=end - begin,
                    stamp=stamp([file], begin, end),
                    begin=begin,
                    end=end,
                )
            )
    return settings, pieces


def _whole_file(file: SourceFile) -> Piece:
    return Piece(
        name=_named(file.name),
        files=(file.name,),
        size_bytes=file.size_bytes,
        stamp=stamp([file]),
    )


def _named(identity: str) -> str:
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:12]
