"""What `flatout new` writes trains: every made-up one, and every source with data of its kind."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.engine import Experiment, train
from flatout.runs import api as runs_api
from flatout.runs.model.new_experiment import DATA_OF, NewExperimentRequest
from flatout.schema.ingest_protocol import Ingested, IngestRequest

MADE_UP = [(task, kind) for task, kinds in DATA_OF.items() for kind in kinds]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the test's own, in which files are written and found."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("fresh", None)


def trained_metrics(**said: str) -> dict[str, float | None]:
    """Writes an experiment, trains it for three steps, gives what it was validated with."""
    runs_api.write_new(runs_api.draft(NewExperimentRequest(name="fresh", **said)), is_forced=True)
    importlib.invalidate_caches()
    made = importlib.import_module("fresh").experiment(steps=3, batch_size=16)
    assert isinstance(made, Experiment)
    return train(made, use={"num_threads": 1, "loader_workers": 0}, is_quiet=True).metrics


@pytest.mark.parametrize(("task", "kind"), MADE_UP)
def test_made_up_experiment_trains(task: str, kind: str) -> None:
    metrics = trained_metrics(task=task, data=kind)
    expected = {"classification": "accuracy", "regression": "mae"}.get(task, "bits_per_byte")
    assert {"loss", expected} <= metrics.keys()


def write_images() -> str:
    if find_spec("PIL") is None:
        pytest.skip("needs pillow: pip install 'flatout[data]'")
    from PIL import Image

    for number in range(40):
        file = Path("photos", "ab"[number % 2], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), (number, 0, 0)).save(file)
    return "photos"


def write_csv() -> str:
    rows = [f"{n},{'xyz'[n % 3]},{n % 3}" for n in range(40)]
    Path("table.csv").write_text("\n".join(["size,kind,target", *rows]))
    return "table.csv"


def write_parquet() -> str:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatout[data]'")
    import pyarrow.parquet

    columns = {"kind": list("xyzx") * 10, "target": [0, 1, 2, 0] * 10}
    pyarrow.parquet.write_table(arrow.table(columns), "table.parquet")
    return "table.parquet"


def write_text() -> str:
    Path("book.txt").write_text("It was a dark and stormy night. " * 400)
    return "book.txt"


def write_tensors() -> str:
    from safetensors.torch import save_file

    save_file({"inputs": torch.randn(40, 3, 2), "targets": torch.arange(40) % 3}, "t.safetensors")
    return "t.safetensors"


def write_huggingface() -> str:
    datasets = pytest.importorskip("datasets", reason="needs datasets: pip install datasets")
    numbers = range(40)
    columns = {"text": [f"number {n}" for n in numbers], "label": [n % 3 for n in numbers]}
    datasets.Dataset.from_dict(columns).save_to_disk("texts")
    return "texts"


def write_shards(kind: str) -> str:
    pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'flatout[data]'")
    from flatout.engine.ingest.ingestion import ingest

    source = {"csv": write_csv, "images": write_images, "text": write_passages, "idx": write_idx}[
        kind
    ]()
    *_, last = ingest(
        IngestRequest(source=source, dest="shards", workers=1, validation=0.3, test=0.0)
    )
    assert isinstance(last, Ingested), last
    return "shards"


def write_passages() -> str:
    passages = [f"The night was {number} times as dark as it was stormy. " for number in range(60)]
    Path("book.txt").write_text("\n\n".join(passages))
    return "book.txt"


def write_idx() -> str:
    Path("digits").mkdir()
    for name, count in (("train", 40), ("t10k", 10)):
        for what, sizes in (("images-idx3", (count, 4, 4)), ("labels-idx1", (count,))):
            head = bytes((0, 0, 8, len(sizes))) + b"".join(one.to_bytes(4, "big") for one in sizes)
            content = bytes(number % 3 for number in range(math.prod(sizes)))
            Path("digits", f"{name}-{what}-ubyte").write_bytes(head + content)
    return "digits"


@pytest.mark.parametrize("kind", ["csv", "images", "text", "idx"])
def test_experiment_on_shards_trains(kind: str) -> None:
    metrics = trained_metrics(path=write_shards(kind))
    assert metrics["loss"] is not None


@pytest.mark.parametrize(
    ("task", "write"),
    [
        ("classification", write_images),
        ("classification", write_csv),
        ("regression", write_csv),
        ("classification", write_parquet),
        ("language-model", write_text),
        ("classification", write_tensors),
        ("regression", write_tensors),
        ("classification", write_huggingface),
        ("regression", write_huggingface),
        ("language-model", write_huggingface),
    ],
)
def test_experiment_with_data_trains(task: str, write: Any) -> None:
    said = {"data": "huggingface"} if write is write_huggingface else {}
    metrics = trained_metrics(task=task, path=write(), **said)
    assert metrics["loss"] is not None
