"""CSV files without pyarrow: the same types, values (bit for bit) and refusals."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as some

from flatout.engine.data import tables
from flatout.engine.data.columns import TableOptions, readable
from flatout.engine.data.plain_csv import read_plain
from flatout.engine.data.values import as_values
from flatout.errors import FlatoutError

arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")

# Bits of cells, of which most decisions are made of: what is a number, a date, or missing.
_ODD = ["", "NA", "nan", "null", "-nan", "NaN ", "inf", "-Infinity", "NAN", "0x1F",
        "0xffffffffffffffff", "9223372036854775807", "9223372036854775808",
        "-0x1", "007", "+2", "-3", "1.", ".5", "-.5e+3", "1e5", "1e", "1_0", " 4 ", "\t5", "1e400",
        "5e-324", "-9223372036854775808", "-0", "-0.0",
        "true", "FALSE", "tRue", "1", "0", "x", " x ", "é", "2020-01-01", "2020-02-30", "12:30",
        "23:59:59", "24:00", "2020-01-01 12", "2020-01-01T12:30Z", "2020-01-01 10:00:00.123",
        "2020-01-01 10:00:00+02:00", "2020-01-01 ", "0.1", "3.14159265358979",
        "1e-7", "12345678901.0"]  # fmt: skip
_CELL = some.one_of(
    some.sampled_from(_ODD),
    some.integers().map(str),
    some.floats().map(repr),
    some.text(some.characters(codec="utf-8", exclude_characters='",\r\n'), max_size=6),
    some.text("0123456789.+-eExX: \tTZnaif", max_size=6),
    some.datetimes().map(str),
    some.dates().map(str),
)
_QUOTED = some.text('a1"\n, ', max_size=4).map(lambda text: '"' + text.replace('"', '""') + '"')


@some.composite
def csv_texts(draw: Any) -> str:
    """A CSV file: columns of one sort each, with other cells strewn in, quoted or not."""
    num_columns = draw(some.integers(1, 3))
    sorts = [draw(some.lists(some.one_of(_CELL, _QUOTED), min_size=1, max_size=3))
             for _ in range(num_columns)]  # fmt: skip
    rows = [
        [draw(some.sampled_from(cells)) for cells in sorts]
        for _ in range(draw(some.integers(1, 5)))
    ]
    end = draw(some.sampled_from(["\n", "\r\n", "\r"]))
    names = [f"c{number}" for number in range(num_columns)]
    text = end.join(",".join(row) for row in [names, *rows])
    # An empty cell at the very end pyarrow takes for quoted where the one before it is.
    return text + (end if rows[-1][-1] == "" else draw(some.sampled_from(["", end])))


def reported(table: Any, fields: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All that training sees of a table."""
    found: list[tuple[Any, ...]] = []
    for field in fields:
        values = as_values(table[field.name])
        row: tuple[Any, ...] = (field.name, field.kind, field.because)
        if field.kind != "other":
            texts = sorted(values.texts())
            row += (values.is_missing(), texts, values.codes(texts, None).tolist())
        if field.kind not in ("other", "text"):
            for fill in (-1.0, 0.5):
                numbers = values.numbers(fill)
                row += (numbers.dtype, bytes(numbers.contiguous().view(torch.uint8).numpy()))
        found.append(row)
    return found


def read_both(files: list[Path]) -> tuple[Any, Any]:
    """What pyarrow and what Python makes of files: all of it, or the rule of what was refused."""
    name = str(files[0])
    options = TableOptions(name=name, target=None, columns=None, vocabularies=None, fill=None)
    answers: list[Any] = []
    for is_plain in (False, True):
        try:
            if is_plain:
                with readable(name):
                    table: Any = read_plain(files, ",")
                fields: Any = table.fields
            else:
                table, fields = tables._read_by_arrow(options, files)
            answers.append(reported(table, fields))
        except FlatoutError as error:
            answers.append(error.rule)
    return answers[0], answers[1]


@given(text=csv_texts())
@example(text='a\n""\n')
@example(text='a,b\n"x"y,2\n')
@example(text="a\n1\n2.5\nNA\n")
@settings(max_examples=400, deadline=None)
def test_python_reads_a_csv_file_as_pyarrow_does(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "drawn.csv"
    file.write_bytes(text.encode())
    by_arrow, by_python = read_both([file])
    assert by_python == by_arrow


@pytest.mark.parametrize(
    "content",
    [b"", b"a\n", b"a,b\n1\n", b"a,b\n1,2,3\n", b"a\ncaf\xe9\n", b"\xef\xbb\xbfa\n1\n",
     b"a,a\n1,2\n", b"a,b\n\n1,2\n\n", b'a\n"x\n'],
)  # fmt: skip
def test_python_refuses_what_pyarrow_refuses(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    by_arrow, by_python = read_both([tmp_path / "a.csv"])
    assert by_python == by_arrow


@pytest.mark.parametrize(
    "contents", [("1", "2.5"), ("", "3"), ("x", "1"), ("true", "1"), ("true", "2"), ("NA", "NA")]
)
def test_files_of_a_folder_are_merged_as_by_pyarrow(
    tmp_path: Path, contents: tuple[str, str]
) -> None:
    files = [tmp_path / "1.csv", tmp_path / "2.csv"]
    for file, content in zip(files, contents, strict=True):
        file.write_text(f"a,b\n{content},1\n")
    by_arrow, by_python = read_both(files)
    assert by_python == by_arrow


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n"))
    by_arrow, by_python = read_both([tmp_path / "a.csv.gz"])
    assert by_python == by_arrow


_WITHOUT = """
import sys
sys.modules["pyarrow"] = None
from flatout.engine import data
table = data.csv("t.csv", target="price")
print([one.tolist() for one in table.tensors], table.vocabularies)
print([one.tolist() for one in data.rows("new.csv", like=table)])
data.parquet("t.parquet")
"""


def test_a_csv_file_needs_nothing_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("area,kind,price\n1,x,2.5\n2,y,3\n")
    (tmp_path / "new.csv").write_text("kind,area\ny,7\n")
    (tmp_path / "t.parquet").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], cwd=tmp_path, capture_output=True, text=True,
        check=False, env=os.environ,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "[[[1.0], [2.0]], [[0], [1]], [2.5, 3.0]] {'kind': ('x', 'y')}",
        "[[[7.0]], [[1]]]",
    ], done.stderr
    # Works in a checkout and in an environment of one's own, with pip and with uv's.
    assert f"{sys.executable} -m pip install pyarrow" in done.stderr


@pytest.mark.parametrize("has_arrow", [True, False])
@pytest.mark.parametrize("kept", [5, 300, -4])
def test_compressed_file_that_ends_too_early_is_refused_by_name(
    has_arrow: bool, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gzip.compress(("n,t\n" + "".join(f"{n},{n % 3}\n" for n in range(2000))).encode())
    file = tmp_path / "cut.csv.gz"
    file.write_bytes(whole[:kept])
    if not has_arrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FlatoutError, match="cut.csv.gz cannot be read as a table") as reported:
        tables.csv(file, target="t")
    assert reported.value.rule == "table-not-readable"
