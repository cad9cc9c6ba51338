"""new -> train -> predict, for all that `flatout new` knows, on files that were not in the data."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from flatout.engine import load
from flatout.engine.predict.worker import ReplyWriter, handle
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.runs.model.new_experiment import DATA_OF, NewExperimentRequest
from flatout.runs.predict_inputs import expand_inputs
from flatout.schema.predict_protocol import (
    AnyReply,
    Counted,
    Loaded,
    Predicted,
    PredictJob,
    Refused,
)
from flatout.system.json_process import JsonLines
from flatout.system.store.run_folder import RunFolder

pytest.importorskip("PIL", reason="needs pillow")
pytest.importorskip("pyarrow", reason="needs pyarrow")

MADE_UP = [(task, kind) for task, kinds in DATA_OF.items() for kind in kinds]
Sources = Callable[[], str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the test's own, in which files are written and found."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def trained(run_of: Callable[..., RunFolder], tmp_path: Path) -> Callable[..., RunFolder]:
    """Writes an experiment and trains it for three steps, as `flatout train FILE` does."""

    def made(**said: Any) -> RunFolder:
        # A name of its own: modules of other tests are loaded already.
        name = f"fresh_{abs(hash(tmp_path))}"
        file = runs_api.write_new(
            runs_api.draft(NewExperimentRequest(name=name, **said)), is_forced=True
        )
        few = {"steps": 3, "batch_size": 16}
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        fixed = {"loader_workers": 0}
        return run_of(name=name, file=str(file), sha256=sha256, parameters=few, fixed=fixed)

    return made


def ask(folder: RunFolder, *texts: str) -> list[AnyReply]:
    """Everything that is said of what was typed behind `flatout predict RUN`."""
    stream = io.BytesIO()
    inputs = expand_inputs(texts)
    handle(
        PredictJob(verb="predict", folder=str(folder.path), inputs=inputs),
        ReplyWriter(JsonLines(stream)),
    )
    decoder = msgspec.json.Decoder(AnyReply)
    said = [decoder.decode(line) for line in stream.getvalue().splitlines()]
    return [one for one in said if not isinstance(one, Counted | Loaded)]


def values(said: list[AnyReply]) -> list[dict[str, Any]]:
    """What was predicted, in order; fails where anything was refused."""
    assert [one for one in said if not isinstance(one, Predicted)] == []
    return [one.values for one in said if isinstance(one, Predicted)]


def write_image(
    path: str, size: tuple[int, int] = (70, 50), mode: str = "RGB", shade: int = 0
) -> str:
    from PIL import Image

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(path)
    return path


def check_made_up(task: str, kind: str, folder: RunFolder) -> None:
    if task == "language-model":
        [reported] = values(ask(folder, "17 and 17 is "))
        assert reported["prediction"].startswith("17 and 17 is ")
        return
    if kind == "images":
        [reported] = values(ask(folder, write_image("new.png")))
        assert reported["label"] in ("rows", "columns")
    elif kind == "huggingface":
        [reported] = values(ask(folder, "number 12345"))
        if task == "classification":
            assert reported["label"] in ("even", "odd")
    else:
        Path("points.csv").write_text("a,b,c,d\n1,2,3,4\n0,0,0,0.5\n")
        save_file({"inputs": torch.randn(2, 4)}, "points.safetensors")
        for file in ("points.csv", "points.safetensors"):
            reported, _ = values(ask(folder, file))
            if task == "classification":
                assert reported["label"] in ("inside", "outside")
        [refused] = ask(folder, write_image("new.npy.png"))
        assert isinstance(refused, Refused)
    if task == "regression":
        assert list(reported) == ["target"] and isinstance(reported["target"], float)


@pytest.mark.parametrize(("task", "kind"), MADE_UP)
def test_what_was_learned_of_made_up_data_is_predicted(
    trained: Callable[..., RunFolder], task: str, kind: str
) -> None:
    check_made_up(task, kind, trained(task=task, data=kind))


def write_images() -> str:
    for number in range(40):
        write_image(f"photos/{('cat', 'dog')[number % 2]}/{number}.png", (30, 20), shade=number)
    return "photos"


def write_csv() -> str:
    rows = [f"{n},{'xyz'[n % 3]},{2 * n},{('no', 'yes')[n % 2]},{250000 + n}" for n in range(40)]
    Path("table.csv").write_text("\n".join(["size,kind,age,sold,price", *rows]))
    return "table.csv"


def write_parquet() -> str:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(write_csv()), "table.parquet")
    return "table.parquet"


def write_text() -> str:
    nights = [f"It was the {number}. dark and stormy night." for number in range(200)]
    Path("book.txt").write_text("\n\n".join(nights))
    return "book.txt"


def write_tensors() -> str:
    save_file({"inputs": torch.randn(40, 3, 2), "targets": torch.arange(40) % 3}, "t.safetensors")
    return "t.safetensors"


def write_huggingface() -> str:
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    numbers = range(40)
    columns = {"text": [f"number {n}" for n in numbers], "label": [n % 2 for n in numbers]}
    kinds = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk("texts")
    return "texts"


def write_idx() -> str:
    Path("digits").mkdir()
    for name, count in (("train", 40), ("t10k", 10)):
        for what, sizes in (("images-idx3", (count, 4, 6)), ("labels-idx1", (count,))):
            head = bytes((0, 0, 8, len(sizes))) + b"".join(one.to_bytes(4, "big") for one in sizes)
            content = bytes(number % 3 for number in range(torch.Size(sizes).numel()))
            Path("digits", f"{name}-{what}-ubyte").write_bytes(head + content)
    return "digits"


def in_shards(write: Sources) -> Sources:
    """The same source, ingested."""

    def made() -> str:
        from flatout.engine.ingest.ingestion import ingest
        from flatout.schema.ingest_protocol import Ingested, IngestRequest

        request = IngestRequest(source=write(), dest="shards", workers=1, validation=0.3, test=0.0)
        *_, last = ingest(request)
        assert isinstance(last, Ingested), last
        return "shards"

    return made


@pytest.mark.parametrize("write", [write_images, in_shards(write_images)], ids=["files", "shards"])
def test_new_images_get_the_names_of_their_classes(
    trained: Callable[..., RunFolder], write: Sources
) -> None:
    folder = trained(path=write())
    write_image("new/wide.jpg", (300, 40))
    write_image("new/grey.png", (9, 9), "L")
    write_image("new/clear.png", (64, 64), "RGBA")
    write_image("new/deep.png", (64, 64), "I;16")
    write_image("new/palette.gif", (64, 64), "P")
    reported = values(ask(folder, "new"))
    assert len(reported) == 5 and {one["label"] for one in reported} <= {"cat", "dog"}
    Path("broken.jpg").write_bytes(Path("new/wide.jpg").read_bytes()[:100])
    Path("list.txt").write_text("cat\n")
    said = ask(folder, "broken.jpg", "list.txt", "missing.png")
    assert [one.finding.rule for one in said if isinstance(one, Refused)] == [
        "image-not-readable", "image-not-readable", "input-not-readable",
    ]  # fmt: skip


TABLES = [write_csv, write_parquet, in_shards(write_csv), in_shards(write_parquet)]
TABLE_NAMES = ["csv", "parquet", "csv-shards", "parquet-shards"]


@pytest.mark.parametrize("write", TABLES, ids=TABLE_NAMES)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_new_rows_are_read_as_those_trained_on(
    trained: Callable[..., RunFolder], write: Sources, task: str
) -> None:
    target = "sold" if task == "classification" else "price"
    other = "price" if task == "classification" else "sold"
    known = "250001" if other == "price" else "no"
    folder = trained(task=task, path=write(), target=target)
    rows = [
        {"size": "7", "kind": "y", "age": "1.5", other: known},
        {"size": "-1", "kind": "x", "age": "0", other: known},
    ]

    def reported_of(names: list[str], rows: list[dict[str, str]] = rows) -> list[AnyReply]:
        lines = [",".join(names), *(",".join(row.get(name, "9") for name in names) for row in rows)]
        Path("new.csv").write_text("\n".join(lines) + "\n")
        return ask(folder, "new.csv")

    first = values(reported_of(["size", "kind", "age", other]))
    assert len(first) == 2
    if task == "classification":
        assert {one["label"] for one in first} <= {"no", "yes"}
    else:
        assert list(first[0]) == ["price"]
    # Neither order nor further columns nor the target itself matter.
    assert values(reported_of([other, "id", "age", target, "kind", "size"])) == first
    names = ["size", "kind", "age", other]
    refusals = [
        (reported_of(["size", "kind", other]), "column-not-found", "`age`"),
        (reported_of(names, [rows[0] | {"kind": "w"}]), "unknown-category", "'w'"),
        (reported_of(names, [rows[0] | {"age": ""}]), "missing-values", "row 1"),
        (
            reported_of(names, [rows[0] | {"age": "old"}]),
            "column-of-unknown-kind",
            "'old' in row 1",
        ),
        (reported_of(names, []), "no-data", "new.csv"),
    ]
    for said, rule, part in refusals:
        [refused] = said
        assert isinstance(refused, Refused) and refused.finding.rule == rule
        finding = refused.finding
        assert part in f"{finding.problem} {finding.because}" and finding.fixes[0].text


def test_a_row_is_predicted_as_it_was_in_the_data(trained: Callable[..., RunFolder]) -> None:
    folder = trained(task="classification", path=write_csv(), target="sold")
    # Only texts that look like numbers, where there were others: codes stay what they were.
    head, *lines = Path("table.csv").read_text().splitlines()
    whole = values(ask(folder, "table.csv"))
    Path("one.csv").write_text(f"{head}\n{lines[7]}\n")
    assert values(ask(folder, "one.csv")) == [whole[7]]


def test_data_beside_the_file_is_found_when_the_file_has_changed(
    trained: Callable[..., RunFolder],
) -> None:
    folder = trained(task="classification", path=write_csv(), target="sold")
    before = values(ask(folder, "table.csv"))
    [file] = Path().glob("fresh_*.py")
    file.write_text(f"{file.read_text()}\n# Changed.\n")
    assert values(ask(folder, "table.csv")) == before


def test_texts_that_look_like_numbers_stay_texts(trained: Callable[..., RunFolder]) -> None:
    rows = [f"{('01', '2', 'x', 'y')[n % 4]},{n},{n % 2}" for n in range(40)]
    Path("table.csv").write_text("\n".join(["zip,size,sold", *rows]))
    folder = trained(path="table.csv", target="sold")
    Path("new.csv").write_text("zip,size\n01,3\n2,4\n")
    assert {one["label"] for one in values(ask(folder, "new.csv"))} <= {"0", "1"}


def forget_module(folder: RunFolder) -> None:
    """As another process sees it, which has read no data yet."""
    sys.modules.pop(json.loads(folder.header.read_text())["spec"]["name"])


WITHOUT_DATA: list[tuple[dict[str, Any], Sources, str]] = [
    ({"target": "sold"}, write_csv, "new.csv"),
    ({"task": "regression", "target": "price"}, write_csv, "new.csv"),
    ({"task": "regression", "target": "price"}, write_parquet, "new.csv"),
    ({"target": "sold"}, in_shards(write_csv), "new.csv"),
    ({}, write_images, "new.png"),
    ({}, in_shards(write_images), "new.png"),
    ({}, in_shards(write_idx), "new.png"),
    ({}, write_tensors, "new.safetensors"),
    ({"task": "regression"}, write_tensors, "new.safetensors"),
    ({"task": "language-model"}, write_text, "It was "),
    ({"task": "classification", "data": "huggingface"}, write_huggingface, "number 7"),
    ({"task": "regression", "data": "huggingface"}, write_huggingface, "number 7"),
]


@pytest.mark.parametrize(("said", "write", "new"), WITHOUT_DATA)
def test_predicting_needs_no_training_data(
    trained: Callable[..., RunFolder], said: dict[str, Any], write: Sources, new: str
) -> None:
    data = Path(write())
    folder = trained(path=str(data), **said)
    row = {"size": "7", "kind": "y", "age": "1.5", "sold": "no", "price": "250001"}
    Path("new.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    save_file({"inputs": torch.ones(2, 3, 2)}, "new.safetensors")
    write_image("new.png")
    before = values(ask(folder, new))
    shutil.rmtree(data) if data.is_dir() else data.unlink()
    forget_module(folder)
    assert values(ask(folder, new)) == before


@pytest.mark.parametrize("target", ["sold", "kind"])
def test_a_changed_table_changes_no_prediction(
    trained: Callable[..., RunFolder], target: str
) -> None:
    folder = trained(task="classification", path=write_csv(), target=target)
    Path("new.csv").write_text("size,kind,age,sold,price\n7,y,1.5,no,250001\n")
    before = values(ask(folder, "new.csv"))
    # As many categories, other codes; other columns first; other numbers.
    rows = [f"{('no', 'yes')[n % 2]},{9 * n},{'axy'[n % 3]},{n},{n}" for n in range(40)]
    Path("table.csv").write_text("\n".join(["sold,age,kind,size,price", *rows]))
    forget_module(folder)
    assert values(ask(folder, "new.csv")) == before
    with pytest.raises(UsageError) as refused:
        load(folder.path).evaluate()
    assert refused.value.rule == "training-data-changed"
    assert "table.csv" in refused.value.problem and "its columns" in str(refused.value.because)


def test_new_categories_are_not_trained_with_the_codes_of_before(
    trained: Callable[..., RunFolder],
) -> None:
    folder = trained(task="classification", path=write_csv(), target="sold")
    table = Path("table.csv")
    table.write_text(table.read_text().replace(",z,", ",a,"))
    forget_module(folder)
    with pytest.raises(UsageError) as refused:
        load(folder.path).evaluate()
    assert refused.value.because == "the values of `kind` differ in 'a', 'z'"


@pytest.mark.parametrize("write", [write_text, in_shards(write_text)], ids=["file", "shards"])
def test_a_text_is_gone_on_with(trained: Callable[..., RunFolder], write: Sources) -> None:
    folder = trained(task="language-model", path=write())
    Path("prompt.txt").write_text("It was ")
    Path("empty.txt").write_text("")
    line, file, refused = ask(folder, "It was a dark night, and naïve", "prompt.txt", "empty.txt")
    assert isinstance(line, Predicted) and isinstance(file, Predicted)
    assert line.values["prediction"].startswith("It was a dark night, and naïve")
    assert file.values["prediction"].startswith("It was ")
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("task", DATA_OF)
def test_texts_of_a_data_set_of_the_hugging_face_library(
    trained: Callable[..., RunFolder], task: str
) -> None:
    folder = trained(task=task, data="huggingface", path=write_huggingface())
    Path("new.txt").write_text("number 77, and much more of it" * 50)
    for reported in values(ask(folder, "number 7", "new.txt")):
        if task == "classification":
            assert reported["label"] in ("bad", "good")
        else:
            assert list(reported) == ["target" if task == "regression" else "prediction"]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_new_tensors(trained: Callable[..., RunFolder], task: str) -> None:
    folder = trained(task=task, path=write_tensors())
    save_file({"inputs": torch.randn(2, 3, 2), "targets": torch.zeros(2)}, "new.safetensors")
    save_file({"inputs": torch.randn(3, 2)}, "one.safetensors")
    save_file({"inputs": torch.randn(2, 5)}, "wrong.safetensors")
    reported = values(ask(folder, "new.safetensors", "one.safetensors"))
    assert len(reported) == 3
    assert task == "regression" or {one["label"] for one in reported} <= {"0", "1", "2"}
    [refused] = ask(folder, "wrong.safetensors")
    assert isinstance(refused, Refused) and "(3, 2)" in str(refused.finding.because)


def test_new_images_of_idx_files(trained: Callable[..., RunFolder]) -> None:
    folder = trained(path=in_shards(write_idx)())
    reported = values(ask(folder, write_image("new.png"), write_image("grey.png", (40, 60), "L")))
    assert {one["label"] for one in reported} <= {"0", "1", "2"}
