"""Divides a source into pieces of work: its kind, its files, and where they are split."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.engine.ingest import idx, tables
from flatout.errors import UsageError
from flatout.schema.ingest_protocol import (
    DEFAULT_SHARE,
    IngestRequest,
    Settings,
    SourceKind,
    SourcePiece,
)
from flatout.system.source_path import existing, no_class_folders
from flatout.system.store.source_files import SourceFile, files_below, path_of, stamp

# Size of a piece: large enough that starting it costs little, small enough to fit into a worker's
# memory.
PIECE_BYTES = 32 * 2**20

_ENDINGS: dict[str, SourceKind] = {
    ".jpg": "images", ".jpeg": "images", ".png": "images", ".webp": "images",
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".csv.gz": "csv", ".tsv.gz": "csv",
    ".txt": "text", ".md": "text",
}  # fmt: skip


class IngestSource(msgspec.Struct, frozen=True, kw_only=True):
    """A listed source.

    num_ignored: files of other kinds, and images outside of class folders.
    """

    settings: Settings
    pieces: tuple[SourcePiece, ...]
    num_ignored: int
    has_own_test: bool = False

    @property
    def size_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(piece.size_bytes for piece in self.pieces)


def scan_source(request: IngestRequest) -> IngestSource:
    """Determines the kind and the pieces of a source, without reading its records.

    Raises:
        UsageError: data-path-not-found, no-data, source-of-several-kinds, empty-class, no-images,
            column-not-found, table-not-readable, source-not-readable.
    """
    source = existing(request.source)
    every = files_below(source)
    kind = request.kind or _kind_of(source, every)
    files = [file for file in every if _kind_of_file(file.name) == kind]
    if not files:
        raise UsageError(
            "no-data",
            f"{source} contains nothing to ingest as {kind}.",
            because=f"expected {', '.join(_looked_for(kind))}",
            fix="check the path, or name another --kind",
        )
    if request.key is not None and kind not in ("csv", "parquet"):
        raise UsageError(
            "column-not-found",
            f"`--key {request.key}`: {kind} have no columns.",
            fix="remove --key; the content of each record decides its split",
        )
    has_own_test = kind == "idx" and any(pair.part for pair in idx.pairs_of(source, files))
    settings = Settings(
        kind=kind,
        validation=DEFAULT_SHARE if request.validation is None else request.validation,
        test=_test_share(request, has_own_test=has_own_test),
        key=request.key,
    )
    num_loose = sum(not file.folder for file in files) if kind == "images" else 0
    cut = {"images": _images, "idx": _idx, "csv": _csv, "parquet": _parquet, "text": _text}[kind]
    settings, pieces = cut(source, files, settings)
    return IngestSource(
        settings=settings,
        pieces=tuple(pieces),
        num_ignored=len(every) - len(files) + num_loose,
        has_own_test=has_own_test,
    )


def _test_share(request: IngestRequest, *, has_own_test: bool) -> float:
    """A source with its own test part keeps it."""
    if has_own_test:
        return 0.0
    return DEFAULT_SHARE if request.test is None else request.test


def _kind_of_file(name: str) -> SourceKind | None:
    lower = name.lower()
    if idx.is_name(lower):
        return "idx"
    return next((kind for ending, kind in _ENDINGS.items() if lower.endswith(ending)), None)


def _looked_for(kind: SourceKind) -> list[str]:
    if kind == "idx":
        return ["NAME-images-idx3-ubyte", "NAME-labels-idx1-ubyte", "the same with .gz"]
    return [f"files that end in {ending}" for ending, of in _ENDINGS.items() if of == kind]


def _kind_of(source: Path, files: Sequence[SourceFile]) -> SourceKind:
    kinds = {kind for file in files if (kind := _kind_of_file(file.name))}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds:
        raise UsageError(
            "source-of-several-kinds",
            f"{source} holds {', '.join(sorted(kinds))}.",
            because="all records of a data set must be of one kind",
            fix=f"choose one, for example --kind {min(kinds)}",
        )
    raise UsageError(
        "no-data",
        f"{source} contains nothing that flatout can ingest.",
        because="supported are images in class folders, IDX files, CSV, Parquet and text",
        fix="check the path, or name the kind of data with --kind",
    )


def _images(
    source: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[SourcePiece]]:
    """Images in buckets by the hash of their names: a new image changes only one bucket, and every
    shard is a mixture of all classes.
    """
    classes = sorted({file.folder for file in files} - {""})
    if not classes:
        raise no_class_folders(source)
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
            SourcePiece(
                name=_named(f"{num_bits}/{bucket}"),
                files=tuple(file.name for file in inside),
                size_bytes=sum(file.size_bytes for file in inside),
                stamp=stamp(inside),
            )
        )
    return msgspec.structs.replace(settings, classes=tuple(classes)), pieces


def _idx(
    source: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[SourcePiece]]:
    sizes = {file.name: file for file in files}
    pieces, shapes, most = [], set(), 0
    for pair in idx.pairs_of(source, files):
        summary = idx.summarize(str(source), pair)
        shapes.add(summary.shape)
        most = max(most, summary.largest_label)
        both = [sizes[pair.images], sizes[pair.labels]]
        rows_per_piece = max(1, PIECE_BYTES // summary.row_bytes)
        for begin in range(0, summary.num_rows, rows_per_piece):
            end = min(begin + rows_per_piece, summary.num_rows)
            pieces.append(
                SourcePiece(
                    name=_named(f"{pair.images}#{begin}"),
                    files=(pair.images, pair.labels),
                    size_bytes=(end - begin) * summary.row_bytes,
                    stamp=stamp(both, begin, end),
                    begin=begin,
                    end=end,
                    part=pair.part,
                )
            )
    if len(shapes) != 1:
        raise UsageError(
            "source-not-readable",
            f"the images in {source} differ in size.",
            because=", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)),
            fix="ingest them separately, each into its own folder",
        )
    classes = tuple(str(number) for number in range(most + 1))
    return msgspec.structs.replace(settings, classes=classes, shape=(1, *shapes.pop())), pieces


def _csv(
    source: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[SourcePiece]]:
    paths = [path_of(str(source), file.name) for file in files]
    columns = tables.csv_columns(paths)
    tables.check_key(settings.key, columns)
    # Finding the start of a row needs everything before it, so a file is one piece.
    return msgspec.structs.replace(settings, columns=columns), [_whole_file(file) for file in files]


def _parquet(
    source: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[SourcePiece]]:
    paths = [path_of(str(source), file.name) for file in files]
    columns = tables.parquet_columns(paths)
    tables.check_key(settings.key, columns)
    pieces = []
    for file, path in zip(files, paths, strict=True):
        for begin, end, size_bytes in tables.row_group_ranges(path, PIECE_BYTES):
            pieces.append(
                SourcePiece(
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
    source: Path, files: Sequence[SourceFile], settings: Settings
) -> tuple[Settings, list[SourcePiece]]:
    pieces = []
    for file in files:
        for begin in range(0, max(1, file.size_bytes), PIECE_BYTES):
            end = min(begin + PIECE_BYTES, file.size_bytes)
            pieces.append(
                SourcePiece(
                    name=_named(f"{file.name}#{begin}"),
                    files=(file.name,),
                    size_bytes=end - begin,
                    stamp=stamp([file], begin, end),
                    begin=begin,
                    end=end,
                )
            )
    return settings, pieces


def _whole_file(file: SourceFile) -> SourcePiece:
    return SourcePiece(
        name=_named(file.name),
        files=(file.name,),
        size_bytes=file.size_bytes,
        stamp=stamp([file]),
    )


def _named(identity: str) -> str:
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:12]
