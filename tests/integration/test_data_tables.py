"""Tables: CSV and Parquet in memory, and row group by row group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from flatout.engine import data
from flatout.engine.data import tables
from flatout.engine.experiment import Experiment
from flatout.errors import FlatoutError, UsageError

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]

arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
pytest.importorskip("pyarrow.parquet")

ROWS = "x,colour,n,price\n1,red,3,2.5\n2,blue,,3\n3.5,red,4,1\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of this test."""

    def written(content: str | bytes, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.fixture
def parquet_folder(tmp_path: Path) -> Path:
    """Two files of 27 and 23 rows, in groups of 10."""
    folder = tmp_path / "parquet"
    folder.mkdir()
    for name, first, last in (("a", 0, 27), ("b", 27, 50)):
        numbers = list(range(first, last))
        table = arrow.table(
            {
                **{f"x{place}": [(number * (place + 3)) % 7 / 7 for number in numbers]
                   for place in range(6)},
                "row": numbers,
                "kind": [("low", "middle", "high")[number % 3] for number in numbers],
            }
        )  # fmt: skip
        arrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=10)
    return folder


INPUTS = [f"x{place}" for place in range(6)]


def test_csv_becomes_numbers_codes_and_target(write: Any) -> None:
    table = data.csv(write(ROWS), target="price", fill={"n": -1})
    numbers, codes, target = table.tensors
    assert numbers.tolist() == [[1, 3], [2, -1], [3.5, 4]] and numbers.dtype == torch.float32
    assert codes.tolist() == [[1], [0], [1]] and codes.dtype == torch.int64
    assert target.tolist() == [2.5, 3, 1] and target.dtype == torch.float32
    assert (table.numbers, table.categories) == (("x", "n"), ("colour",))
    assert table.vocabularies == {"colour": ("blue", "red")}
    assert len(table) == 3 and table[1][0].tolist() == [2, -1]


def test_csv_target_is_a_class_when_it_is_of_texts_or_whole_numbers(write: Any) -> None:
    path = write("a,b,c\n1.5,yes,4\n2,no,5\n")
    table = data.csv(path, columns=["a"], target="b")
    assert table.tensors[1].tolist() == [1, 0] and table.vocabularies == {"b": ("no", "yes")}
    assert data.csv(path, columns=["a"], target="c").tensors[1].dtype == torch.int64
    assert [one.shape for one in data.csv(path, columns=["c"]).tensors] == [(2, 1)]


def test_csv_codes_whole_numbers_when_asked(write: Any) -> None:
    path = write("zip,price\n80331,1\n10115,2\n80331,3\n")
    table = data.csv(path, target="price", vocabularies={"zip": None})
    assert table.tensors[0].tolist() == [[1], [0], [1]]
    again = data.csv(write("zip,price\n10115,5\n", "b.csv"), vocabularies=table.vocabularies)
    assert again.tensors[1].tolist() == [[0]]


def test_csv_of_a_folder_has_all_its_files(write: Any, tmp_path: Path) -> None:
    write("a,b\n1,x\n", "many/1.csv")
    write("a,b\n2.5,y\n", "many/2.csv")
    table = data.csv(tmp_path / "many", target="b")
    assert table.tensors[0].tolist() == [[1], [2.5]] and table.tensors[1].tolist() == [0, 1]
    write("b,a\n2.5,y\n", "many/3.csv")
    with pytest.raises(UsageError) as caught:
        data.csv(tmp_path / "many")
    assert caught.value.rule == "table-not-readable" and "3.csv" in caught.value.problem


def test_csv_is_read_when_its_beginning_misleads(write: Any) -> None:
    # The first block, of one MB, holds whole numbers only.
    table = data.csv(write("a,b\n" + "1,2\n" * 400_000 + "1.5,2\n"))
    assert table.tensors[0][-1].tolist() == [1.5, 2]


BAD_CSV: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "Row #3: Expected 2 columns, got 1": ("a,b\n1,2\n3\n", {}, "table-not-readable"),
    "Empty CSV file": ("", {}, "table-not-readable"),
    "has no rows": ("a,b\n", {}, "no-data"),
    "duplicate field": ("a,a\n1,2\n", {}, "table-not-readable"),
    "date32": ("a,b\n2020-01-01,1\n", {}, "column-of-unknown-kind"),
    "not UTF-8": ("a,b\n1,caf\xe9\n".encode("latin-1"), {}, "column-of-unknown-kind"),
    "it is empty": ("a,b\n1,\n", {}, "column-of-unknown-kind"),
    "mixes numbers and text": ("a,b\n1,1\n2,2\n?,3\n4,4\n", {}, "column-of-unknown-kind"),
    "1 in `n`": (ROWS, {}, "missing-values"),
    "did you mean `colour`": (ROWS, {"target": "color"}, "column-not-found"),
    "no column `m`": (ROWS, {"columns": ["x", "m"]}, "column-not-found"),
    "two columns `x`": (ROWS, {"columns": ["x", "x"]}, "column-of-unknown-kind"),
    "'none' for the column `n`": (ROWS, {"fill": {"n": "none"}}, "bad-data-option"),
    "None for the column `n`": (ROWS, {"fill": {"n": None}}, "bad-data-option"),
    "None for the column `colour`, which holds strings": (
        ROWS, {"fill": {"n": 0, "colour": None}}, "bad-data-option",
    ),
    "1000000": (ROWS, {"fill": {"n": 10**400}}, "bad-data-option"),
    "`fill` is an int": (ROWS, {"fill": 0}, "bad-data-option"),
    "the value 'blue'": (
        ROWS, {"columns": ["colour"], "vocabularies": {"colour": ["red"]}}, "unknown-category",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", list(BAD_CSV))
def test_csv_is_refused(write: Any, part: str) -> None:
    content, options, rule = BAD_CSV[part]
    with pytest.raises(UsageError) as caught:
        data.csv(write(content), **options)
    assert caught.value.rule == rule and part in str(caught.value)


def test_missing_text_is_refused_and_filled(write: Any) -> None:
    path = write('country\nFrance\nNA\n"NA"\n')
    with pytest.raises(UsageError) as caught:
        data.csv(path)
    assert caught.value.rule == "missing-values" and "1 in `country`" in caught.value.problem
    table = data.csv(path, fill={"country": "unknown"})
    assert table.vocabularies["country"] == ("France", "NA", "unknown")
    assert table.tensors[0].flatten().tolist() == [0, 2, 1]


def test_parquet_is_the_same_table(parquet_folder: Path) -> None:
    table = data.parquet(parquet_folder, columns=[*INPUTS, "row"], target="kind")
    numbers, target = table.tensors
    assert numbers[:, -1].tolist() == list(range(50))
    assert table.vocabularies["kind"] == ("high", "low", "middle")
    assert target.tolist() == [(1, 2, 0)[row % 3] for row in range(50)]


def test_parquet_refuses_nan_other_columns_and_no_parquet(parquet_folder: Path) -> None:
    odd = arrow.table({"x0": [1.0, float("nan")]})
    arrow.parquet.write_table(odd, parquet_folder.parent / "nan.parquet")
    arrow.parquet.write_table(odd, parquet_folder / "c.parquet")
    (parquet_folder.parent / "bad.parquet").write_bytes(b"PAR1 not really")
    for path, rule in (
        (parquet_folder.parent / "nan.parquet", "missing-values"),
        (parquet_folder, "table-not-readable"),
        (parquet_folder.parent / "bad.parquet", "table-not-readable"),
        (parquet_folder.parent / "none.parquet", "data-path-not-found"),
    ):
        with pytest.raises(UsageError) as caught:
            data.parquet(path)
        assert caught.value.rule == rule
    filled = data.parquet(parquet_folder.parent / "nan.parquet", fill={"x0": 0})
    assert filled.tensors[0].tolist() == [[1], [0]]


def test_table_that_does_not_fit_is_refused(
    parquet_folder: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MEMORY_SHARE", 1e-12)
    for call in (lambda: data.parquet(parquet_folder), lambda: data.csv(write(ROWS))):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.rule == "table-too-large" and "parquet_rows" in caught.value.fix


def test_filled_classes_stay_whole_numbers(write: Any) -> None:
    rows = write("a,kind\n1,0\n2,\n3,2\n")
    _, kinds = data.csv(rows, target="kind", fill={"kind": 1}).tensors
    assert kinds.dtype == torch.int64 and kinds.tolist() == [0, 1, 2]
    _, kinds = data.csv(rows, target="kind", fill={"kind": 0.5}).tensors
    assert kinds.dtype == torch.float32 and kinds.tolist() == [0, 0.5, 2]


def test_one_stream_for_training_and_validation_is_refused(
    lab: Lab, plain: Plain, parquet_folder: Path
) -> None:
    rows = data.parquet_rows(parquet_folder, columns=INPUTS, target="kind")
    experiment = plain(train_data=lambda: rows, validation_data=lambda: rows)
    with pytest.raises(UsageError) as caught:
        lab.run(experiment)
    assert caught.value.rule == "bad-experiment" and "ParquetRows" in caught.value.problem


def test_parquet_rows_are_the_rows_of_the_table(parquet_folder: Path) -> None:
    options: dict[str, Any] = {"columns": [*INPUTS, "row"], "target": "kind"}
    table = data.parquet(parquet_folder, **options)
    rows = list(data.parquet_rows(parquet_folder, **options, shuffle=False))
    assert torch.equal(torch.stack([numbers for numbers, _ in rows]), table.tensors[0])
    assert torch.equal(torch.stack([target for _, target in rows]), table.tensors[1])
    source = data.parquet_rows(parquet_folder, **options)
    orders = [[int(numbers[-1]) for numbers, _ in source] for _ in range(2)]
    assert all(sorted(order) == list(range(50)) for order in orders) and len(source) == 50
    assert orders[0] != orders[1] != list(range(50))


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "table": (data.parquet, {}),
    "rows": (data.parquet_rows, {}),
    "rows in micro-batches": (data.parquet_rows, {"micro_batch_size": 3}),
    "rows by workers": (data.parquet_rows, {"loader_workers": 2}),
}


@pytest.mark.parametrize("name", list(SOURCES))
def test_resumed_run_is_identical_on_a_table(
    lab: Lab, tell: Tell, plain: Plain, parquet_folder: Path, name: str
) -> None:
    source, use = SOURCES[name]
    experiment = plain(
        train_data=lambda: source(parquet_folder, columns=INPUTS, target="kind"),
        validation_data=lambda: data.split(
            data.parquet(parquet_folder, columns=INPUTS, target="kind"), 0.3
        )[1],
    )
    whole = lab.run(experiment, **use)
    # In the first epoch, at its very end, and in the second.
    for stops in ((3,), (7, 1), (9,)):
        parts = lab.new(**use)
        for stop in stops:
            lab.go_on(parts, experiment, stop_after=stop)
        lab.go_on(parts, experiment)
        assert tell.traces(parts) == tell.traces(whole)
    is_replayed = "iterable-is-replayed" in tell.rules(whole)
    assert is_replayed == (name == "rows by workers")


def test_missing_value_is_reported_when_its_group_is_read(
    lab: Lab, tell: Tell, plain: Plain, tmp_path: Path
) -> None:
    table = arrow.table({"x": [1.0] * 40 + [None] * 10, "y": [1.0] * 50})
    arrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    experiment = plain(
        model=lambda: nn.Linear(1, 1),
        loss=lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square().mean(),
        train_data=lambda: data.parquet_rows(tmp_path / "t.parquet", target="y"),
        validation_data=None,
    )
    for num_workers in (0, 1):
        run = lab.new(loader_workers=num_workers)
        with pytest.raises(FlatoutError) as caught:
            lab.go_on(run, experiment)
        assert caught.value.rule == "missing-values" and "10 in `x`" in caught.value.problem


def test_torch_tensor_dataset_is_sliced_like_its_tensors(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    inputs, labels = plain().train_data()
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    run = lab.run(plain(train_data=lambda: dataset))
    assert tell.traces(run)["weights"] == tell.traces(lab.run(plain()))["weights"]
    # Who collates wants the samples.
    collated = plain(train_data=lambda: dataset, collate=torch.utils.data.default_collate)
    other = lab.run(collated, loader_workers=0)
    assert tell.traces(other)["weights"] == tell.traces(run)["weights"]


def test_split_is_the_same_each_time_and_leaves_nothing_out(write: Any) -> None:
    table = data.csv(write("a,b\n" + "".join(f"{n},{n}\n" for n in range(100))), target="b")
    train, validation = data.split(table, 0.2, seed=3)
    again, _ = data.split(table, 0.2, seed=3)
    other, _ = data.split(table, 0.2, seed=4)
    assert (len(train), len(validation)) == (80, 20)
    assert torch.equal(train.tensors[0], again.tensors[0])
    assert not torch.equal(train.tensors[0], other.tensors[0])
    both = torch.cat([train.tensors[1], validation.tensors[1]])
    assert both.sort().values.tolist() == list(range(100))
    first, second = data.split({"x": torch.arange(10)}, 0.3)
    assert (len(first["x"]), len(second["x"])) == (7, 3)


@pytest.mark.parametrize(
    ("dataset", "share"), [(range(10), 0.0), (range(10), 1.0), (range(3), 0.01), (iter(()), 0.5)]
)
def test_split_is_refused(dataset: Any, share: float) -> None:
    with pytest.raises(UsageError) as caught:
        data.split(dataset, share)
    assert caught.value.rule == "bad-data-option"
