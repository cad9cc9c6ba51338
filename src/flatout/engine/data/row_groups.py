"""Parquet files larger than memory: rows group by group, in an order that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from flatout.engine.data.columns import Arrow, Columns, TableOptions, Value, columns_of, readable
from flatout.engine.data.values import fields_of
from flatout.errors import UsageError
from flatout.system.source_path import columns_text, files_in, library

_UNBOUND_ROWS = 4096


def parquet_rows(
    path: str | Path,
    *,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    vocabularies: Mapping[str, Sequence[str] | None] | None = None,
    fill: Mapping[str, Value] | None = None,
    shuffle: bool = True,
) -> ParquetRows:
    """Rows of a Parquet file or a folder of them, with one row group in memory at a time.

    Args:
        path: of the file or folder.
        target, columns, vocabularies, fill: as for `csv`.
        shuffle: new order of the groups, and of the rows in each group, in every epoch.

    Returns:
        An iterable of one (numbers, codes, target) per row, without parts that the table does
        not have. It can be stopped and resumed at any row.

    Raises:
        UsageError: data-path-not-found, table-not-readable, column-not-found, no-data,
            column-of-unknown-kind, data-package-not-installed; missing-values and
            unknown-category when the row group that has them is read.
    """
    options = TableOptions(
        name=str(path), target=target, columns=columns, vocabularies=vocabularies, fill=fill
    )
    return rows_of(options, open_row_groups(options.name, files_in(path, ".parquet")), shuffle)


def rows_of(options: TableOptions, groups: RowGroups, shuffle: bool) -> ParquetRows:
    """The rows of these groups, read with these options.

    Raises:
        UsageError: as `parquet_rows`.
    """
    if not groups.num_rows:
        raise UsageError(
            "no-data", f"{groups.name} has no rows.", fix="check that it is the right file"
        )
    return ParquetRows(
        groups, columns_of(options, fields_of(groups.schema), groups.column), shuffle
    )


@dataclass(frozen=True)
class RowGroups:
    """All row groups of some Parquet files with the same columns.

    locations: file and number within it, for each group; sizes: rows of each.
    """

    name: str
    schema: Arrow
    locations: tuple[tuple[str, int], ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.locations)

    @property
    def num_rows(self) -> int:
        """Rows of all groups."""
        return sum(self.sizes)

    def read(self, group: int, names: list[str]) -> Arrow:
        """Some columns of a group."""
        reader = library("pyarrow.parquet", package="pyarrow")
        file, number = self.locations[group]
        # Opened each time: an object sent to a loader worker must not hold an open file.
        with readable(file), reader.ParquetFile(file) as opened:
            return opened.read_row_group(number, columns=names)

    def column(self, name: str) -> Iterator[Arrow]:
        """The values of a column, group by group."""
        for group in range(len(self)):
            yield self.read(group, [name])[name]


def open_row_groups(name: str, files: Sequence[Path]) -> RowGroups:
    """Reads the metadata of Parquet files, not their rows. name: of the table, for messages.

    Raises:
        UsageError: table-not-readable, data-package-not-installed.
    """
    reader = library("pyarrow.parquet", package="pyarrow")
    locations, sizes, schema = [], [], None
    for file in files:
        with readable(str(file)), reader.ParquetFile(file) as opened:
            columns = opened.schema_arrow.remove_metadata()
            for number in range(opened.num_row_groups):
                locations.append((str(file), number))
                sizes.append(opened.metadata.row_group(number).num_rows)
        if schema is not None and columns != schema:
            raise UsageError(
                "table-not-readable",
                f"{file} has different columns from the files before it.",
                because=f"{columns_text(columns)}; before: {columns_text(schema)}",
                fix="give all files in the folder the same columns with the same types",
            )
        schema = columns
    return RowGroups(name, schema, tuple(locations), tuple(sizes))


class ParquetRows(IterableDataset[tuple[Tensor, ...]]):
    """Rows of all groups, one group in memory at a time. Loader workers divide the groups.

    numbers, categories, vocabularies, columns: as of a Table.
    """

    def __init__(self, groups: RowGroups, columns: Columns, shuffle: bool) -> None:
        self.numbers = columns.numbers
        self.categories = columns.categories
        self.vocabularies = columns.vocabularies
        self._groups = groups
        self.columns = columns
        self._is_shuffled = shuffle
        self._seed = 0
        self._num_given = 0
        self._is_taken_up = False

    def __len__(self) -> int:
        return self._groups.num_rows

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if not self._is_taken_up:
            self._seed = int(torch.randint(2**62, ()))
            self._num_given = 0
        self._is_taken_up = False
        skipped = self._num_given
        generator = torch.Generator().manual_seed(self._seed)
        for group in self._own_groups(generator):
            size = self._groups.sizes[group]
            # Drawn for skipped groups too, so that later groups get the same numbers.
            order = torch.randperm(size, generator=generator) if self._is_shuffled else None
            if skipped >= size:
                skipped -= size
                continue
            tensors = self.columns.tensors(self._groups.read(group, self.columns.names))
            if order is not None:
                tensors = tuple(tensor[order] for tensor in tensors)
            # A tensor for each row takes more memory than the row, so only a few at a time.
            pieces = zip(
                *(tensor[skipped:].split(_UNBOUND_ROWS) for tensor in tensors), strict=True
            )
            for piece in pieces:
                for row in zip(*(tensor.unbind() for tensor in piece), strict=True):
                    self._num_given += 1
                    yield row
            skipped = 0

    def _own_groups(self, generator: torch.Generator) -> list[int]:
        info = get_worker_info()
        own = list(range(len(self._groups)))
        if info is not None:
            own = own[info.id :: info.num_workers]
        if self._is_shuffled:
            own = [own[index] for index in torch.randperm(len(own), generator=generator).tolist()]
        return own

    def state_dict(self) -> dict[str, int]:
        """The seed of its order, and how many rows were given."""
        return {"seed": self._seed, "num_given": self._num_given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration continues after the rows that were given."""
        self._seed = state["seed"]
        self._num_given = state["num_given"]
        # At the end or beginning of an epoch there is nothing to resume.
        self._is_taken_up = 0 < self._num_given < len(self)
