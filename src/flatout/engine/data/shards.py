"""Shards from `flatout ingest`, each verified by its SHA-256 before use."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flatout.engine.data.columns import TableOptions, Value
from flatout.engine.data.pictures import Cut
from flatout.engine.data.row_groups import ParquetRows, open_row_groups, rows_of
from flatout.engine.data.tables import Table, table_of
from flatout.engine.data.texts import Text
from flatout.engine.feed.datasets import TensorData
from flatout.errors import UsageError, nearest
from flatout.schema.ingest_protocol import PARTS, Part, ShardManifest, SourceKind
from flatout.schema.units import bytes_text, counted_text
from flatout.system.source_path import existing, library
from flatout.system.store.shards import MANIFEST, ShardFolder, verify

# Share of the free memory for data; the training needs the rest.
_MEMORY_SHARE = 0.5

# The method that reads each kind of shards.
_READERS: dict[SourceKind, str] = {
    "idx": "tensors", "images": "images", "csv": "table", "parquet": "table", "text": "text",
}  # fmt: skip


def shards(folder: str | Path) -> Shards:
    """The shards that `flatout ingest` made in a folder.

    Raises:
        UsageError: data-path-not-found, no-shards, ingested-otherwise.
    """
    path = existing(folder)
    manifest = ShardFolder(path).read_manifest() if path.is_dir() else None
    if manifest is None:
        raise UsageError(
            "no-shards",
            f"{path} contains no shards.",
            because=f"it has no {MANIFEST}, which is written when all shards are complete",
            fix=f"run flatout ingest SOURCE {path}",
        )
    return Shards(path, manifest)


class Shards:
    """The parts of a data set: `train`, `validation` and `test`.

    classes: class names, in the order of their numbers; empty if there are no classes.
    manifest: describes the shards.
    """

    def __init__(self, folder: Path, manifest: ShardManifest) -> None:
        self.manifest = manifest
        self.classes = manifest.settings.classes
        self._folder = folder

    def count(self, part: Part) -> int:
        """Number of records in a part."""
        return self.manifest.counts[part]

    def tensors(self, part: Part) -> TensorData:
        """Images of IDX files: bytes (images, channels, height, width), and labels (images,).

        Raises:
            UsageError: shards-of-another-kind, no-data, shards-too-large.
            RunFailed: damaged-data.
        """
        files = self._files(part, "tensors")
        shape = self.manifest.settings.shape
        self._check_memory(part, self.count(part) * torch.Size(shape).numel())
        images, labels = [], []
        for file in files:
            table = _read(file)
            for chunk in table["image"].chunks:
                size = chunk.type.byte_width
                pixels = torch.frombuffer(bytearray(chunk.buffers()[1]), dtype=torch.uint8)
                begin = chunk.offset * size
                images.append(pixels[begin : begin + len(chunk) * size].view(-1, *shape))
            labels.append(torch.tensor(table["label"].to_pylist()))
        return TensorData((torch.cat(images), torch.cat(labels)))

    def images(
        self,
        part: Part,
        *,
        size: int = 224,
        random_crop: float | None = None,
        flip: bool = False,
    ) -> ShardedImages:
        """Images of a folder: samples like those of `image_folder`, from files held in memory.

        Args:
            part: `train`, `validation` or `test`.
            size, random_crop, flip: as for `image_folder`.

        Raises:
            UsageError: shards-of-another-kind, no-data, shards-too-large, bad-data-option.
            RunFailed: damaged-data.
        """
        cut = Cut(size, random_crop, flip)
        cut.check()
        files = self._files(part, "images")
        library("PIL.Image", package="Pillow")
        self._check_memory(part, sum(file.stat().st_size for file in files))
        contents, lengths, labels = [], [], []
        for file in files:
            table = _read(file)
            for value in table["image"]:
                buffer = value.as_buffer()
                contents.append(bytearray(buffer))
                lengths.append(len(contents[-1]))
            labels += table["label"].to_pylist()
        return ShardedImages(
            torch.frombuffer(bytearray().join(contents), dtype=torch.uint8),
            torch.tensor(lengths).cumsum(0),
            torch.tensor(labels),
            cut,
        )

    def table(
        self,
        part: Part,
        *,
        target: str | None = None,
        columns: Sequence[str] | None = None,
        vocabularies: Mapping[str, Sequence[str] | None] | None = None,
        fill: Mapping[str, Value] | None = None,
    ) -> Table:
        """Rows of a table in memory; see `csv` for the arguments and the result.

        Raises:
            UsageError: shards-of-another-kind; as `csv`.
            RunFailed: damaged-data.
        """
        files = self._files(part, "table")
        name = f"{self._folder}/{part}"
        options = TableOptions(
            name=name, target=target, columns=columns, vocabularies=vocabularies, fill=fill
        )
        return table_of(options, open_row_groups(name, files))

    def rows(
        self,
        part: Part,
        *,
        target: str | None = None,
        columns: Sequence[str] | None = None,
        vocabularies: Mapping[str, Sequence[str] | None] | None = None,
        fill: Mapping[str, Value] | None = None,
    ) -> ParquetRows:
        """Rows of a table that may be larger than memory; shuffled for the part `train`.

        Raises:
            UsageError: shards-of-another-kind; as `parquet_rows`.
            RunFailed: damaged-data.
        """
        files = self._files(part, "table")
        name = f"{self._folder}/{part}"
        options = TableOptions(
            name=name, target=target, columns=columns, vocabularies=vocabularies, fill=fill
        )
        return rows_of(options, open_row_groups(name, files), part == "train")

    def text(self, part: Part, *, context: int, stride: int | None = None) -> Text:
        """Windows of bytes over the passages of a part, with an empty line after each.

        Args:
            part: `train`, `validation` or `test`.
            context, stride: as for `text`.

        Raises:
            UsageError: shards-of-another-kind, no-data, shards-too-large, text-too-short,
                bad-data-option.
            RunFailed: damaged-data.
        """
        step = context if stride is None else stride
        if context < 1 or step < 1:
            raise UsageError(
                "bad-data-option",
                f"`context={context}`, `stride={stride}`: one of them is invalid.",
                fix="both must be at least 1",
            )
        files = self._files(part, "text")
        self._check_memory(part, sum(file.stat().st_size for file in files))
        whole = bytearray()
        for file in files:
            for passage in _read(file)["text"].to_pylist():
                whole += f"{passage}\n\n".encode()
        content = torch.frombuffer(whole, dtype=torch.uint8)
        return Text(content, context, step, f"{self._folder}/{part}")

    def _files(self, part: Part, reader: str) -> list[Path]:
        """The shards of a part, after verifying each."""
        own = _READERS[self.manifest.settings.kind]
        if own != reader:
            raise UsageError(
                "shards-of-another-kind",
                f"{self._folder} holds {self.manifest.settings.kind}.",
                because=f"`{reader}` reads shards of another kind",
                fix=f"read them with .{own}({part!r}, ...)",
            )
        if part not in PARTS:
            raise UsageError("no-data", f"there is no split `{part}`.", fix=nearest(part, PARTS))
        shards = [shard for shard in self.manifest.shards if shard.part == part]
        if not shards:
            there = [name for name, number in self.manifest.counts.items() if number]
            raise UsageError(
                "no-data",
                f"{self._folder} has no records for {part}.",
                because=f"it has records for {', '.join(there)}",
                fix=f"ingest the source into another folder, with a fraction for {part}",
            )
        verify(self._folder, shards)
        return [self._folder / shard.file for shard in shards]

    def _check_memory(self, part: Part, num_bytes: int) -> None:
        free = psutil.virtual_memory().available
        if num_bytes > _MEMORY_SHARE * free:
            raise UsageError(
                "shards-too-large",
                f"{part} of {self._folder} would take {bytes_text(num_bytes)} of memory; "
                f"{bytes_text(free)} is free.",
                because=f"data may take {_MEMORY_SHARE:.0%} of the free memory",
                fix="ingest part of the source; read tables in pieces with .rows(...)",
            )


class ShardedImages(Dataset[tuple[Tensor, int]]):
    """Image files in memory, decoded sample by sample.

    Args:
        content: all files concatenated, in one piece of memory that loader workers share.
        ends: where each file ends.
        labels: the class number of each file.
        cut: how a sample is made from an image.
    """

    def __init__(self, content: Tensor, ends: Tensor, labels: Tensor, cut: Cut) -> None:
        self._content = content
        self._ends = ends
        self._labels = labels
        self._cut = cut

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: {counted_text(len(self), 'image')}")
        index %= len(self)
        begin = int(self._ends[index - 1]) if index else 0
        file = self._content[begin : int(self._ends[index])].numpy().tobytes()
        return self._cut.read(io.BytesIO(file)), int(self._labels[index])


def _read(file: Path) -> Any:
    return library("pyarrow.parquet", package="pyarrow").read_table(file)
