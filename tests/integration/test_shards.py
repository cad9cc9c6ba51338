"""Training on shards: what is read is what was ingested, and damage is never trained on."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from support.forked_commands import ForkedCommands

from flatout.engine import data
from flatout.engine.ingest.ingestion import ingest
from flatout.errors import FlatoutError
from flatout.experiments._pictures import read_idx
from flatout.experiments.mnist import experiment
from flatout.schema.ingest_protocol import Ingested, IngestRequest
from flatout.system import atomic_files, clock

SRC = str(Path(__file__).resolve().parents[2] / "src")


def ingested(source: Path, dest: Path, **options: Any) -> data.Shards:
    request = IngestRequest(source=str(source), dest=str(dest), workers=1, **options)
    *_, last = ingest(request)
    assert isinstance(last, Ingested), last
    return data.shards(dest)


def write_idx(folder: Path, *, height: int = 28) -> None:
    """A small MNIST: 50 images to train on, 20 to test."""
    folder.mkdir()
    dice = torch.Generator().manual_seed(3)
    for name, count in (("train", 50), ("t10k", 20)):
        pixels = torch.randint(256, (count, height, 28), generator=dice, dtype=torch.uint8)
        labels = torch.randint(10, (count,), generator=dice, dtype=torch.uint8)
        labels[0] = 9
        for what, tensor in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = bytes((0, 0, 8, tensor.dim()))
            head += b"".join(size.to_bytes(4, "big") for size in tensor.shape)
            content = head + tensor.numpy().tobytes()
            (folder / f"{name}-{what}-ubyte.gz").write_bytes(gzip.compress(content))


def test_idx_files_come_back_in_their_order(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits")
    found = ingested(tmp_path / "digits", tmp_path / "shards", validation=0.0)
    images, labels = found.tensors("train").tensors
    own = read_idx(tmp_path / "digits/train-images-idx3-ubyte.gz")
    assert torch.equal(images, own.unsqueeze(1))
    assert torch.equal(labels, read_idx(tmp_path / "digits/train-labels-idx1-ubyte.gz").long())
    assert found.count("test") == len(found.tensors("test")) == 20
    assert found.classes == tuple("0123456789")


def test_built_in_mnist_trains_on_shards_as_on_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "mnist")
    ingested(tmp_path / "mnist", tmp_path / "shards", validation=0.0)
    monkeypatch.setattr("flatout.experiments.mnist.dataset", lambda name: tmp_path / name)
    own, sharded = experiment(), experiment(shards=str(tmp_path / "shards"))
    for name in ("train_data", "validation_data"):
        for one, other in zip(getattr(own, name)(), getattr(sharded, name)(), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other), "the same tensors, so the same training bit for bit"


def test_images_are_read_as_from_their_folder(tmp_path: Path) -> None:
    for shade, name in enumerate(("basalt", "marble")):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(5):
            colour = (shade * 200, number * 40, 9)
            Image.new("RGB", (30, 20), colour).save(tmp_path / "in" / name / f"{number}.png")
    found = ingested(tmp_path / "in", tmp_path / "shards", validation=0.0, test=0.0)
    samples = found.images("train", size=8)
    plain = data.image_folder(tmp_path / "in", size=8)
    assert len(samples) == len(plain) == 10
    seen = {(tuple(image.flatten().tolist()), label) for image, label in samples}
    assert seen == {(tuple(image.flatten().tolist()), label) for image, label in plain}
    with pytest.raises(IndexError):
        samples[10]


def test_tables_are_read_as_parquet_files_are(tmp_path: Path) -> None:
    lines = [f"{row},{'park' if row % 2 else 'edge'},{row * 2}" for row in range(200)]
    (tmp_path / "f.csv").write_text("\n".join(["area,district,rent", *lines, ""]))
    found = ingested(tmp_path / "f.csv", tmp_path / "shards")
    train = found.table("train", target="rent")
    numbers, codes, rent = train.tensors
    assert train.vocabularies == {"district": ("edge", "park")}
    assert torch.equal(numbers[:, 0].long() * 2, rent)
    assert torch.equal(codes[:, 0], numbers[:, 0].long() % 2)
    rows = list(found.rows("validation", target="rent", columns=["area"]))
    assert len(rows) == found.count("validation") > 0
    assert [int(row[0]) * 2 for row in rows] == [int(row[1]) for row in rows]


def test_text_is_read_as_windows_over_its_passages(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n\n".join(f"passage {number}" for number in range(30)))
    found = ingested(tmp_path / "t.txt", tmp_path / "shards", validation=0.0, test=0.0)
    text = found.text("train", context=16)
    whole = bytes(text.content.tolist()).decode()
    assert whole == "".join(f"passage {number}\n\n" for number in range(30))
    assert text.tensors.shape[1] == 17


def test_damaged_shard_is_never_trained_on(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits")
    found = ingested(tmp_path / "digits", tmp_path / "shards")
    (shard,) = [one for one in found.manifest.shards if one.part == "test"]
    path = tmp_path / "shards" / shard.file
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(FlatoutError) as caught:
        found.tensors("test")
    assert caught.value.rule == "damaged-data"
    assert str(path) in str(caught.value)


def test_shards_that_are_asked_for_what_they_are_not(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits")
    found = ingested(tmp_path / "digits", tmp_path / "shards", validation=0.0)
    asked: list[tuple[str, Any]] = [
        ("shards-of-another-kind", lambda: found.table("train")),
        ("no-data", lambda: found.tensors("validation")),
        ("no-data", lambda: found.tensors("trian")),  # type: ignore[arg-type]
        ("no-shards", lambda: data.shards(tmp_path / "digits")),
        ("data-path-not-found", lambda: data.shards(tmp_path / "nowhere")),
    ]
    for rule, ask in asked:
        with pytest.raises(FlatoutError) as caught:
            ask()
        assert caught.value.rule == rule


def test_command_line_ingests_and_tells_what_came_of_it(
    tmp_path: Path, forked: ForkedCommands
) -> None:
    write_idx(tmp_path / "digits")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return forked.run(
            ("ingest", "digits", "shards", "--workers", "2", *more),
            environment={**os.environ, "PYTHONPATH": SRC}, folder=tmp_path,
        )  # fmt: skip

    first = run()
    assert first.returncode == 0, first.stderr
    assert "records" in first.stdout
    assert "20 test" in first.stdout
    again = run("--json")
    document = json.loads(again.stdout)
    assert document["num_made"] == 0
    assert document["counts"]["test"] == 20
    other = run("--validation", "0.3", "--json")
    assert other.returncode == 2
    assert json.loads(other.stdout)["error"]["rule"] == "ingested-otherwise"
    assert "explain ingested-otherwise" in other.stderr


def test_shards_can_be_read_by_anybody(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits")
    found = ingested(tmp_path / "digits", tmp_path / "shards", validation=0.0)
    tables = [
        pyarrow.parquet.read_table(tmp_path / "shards" / shard.file)
        for shard in found.manifest.shards
        if shard.part == "train"
    ]
    assert pyarrow.concat_tables(tables).num_rows == 50


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_killed_ingestion_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(30):
        rows = [f"{row},{row % 7}" for row in range(number * 4000, number * 4000 + 4000)]
        (tmp_path / f"in/{number:02}.csv").write_text("\n".join(["row,day", *rows, ""]))
    command = [sys.executable, "-m", "flatout", "ingest", "in", "shards", "--workers", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    state = tmp_path / "shards/.ingest"
    until_s = clock.elapsed_s() + 120
    while len(list(state.glob("*.json"))) < 3 and clock.elapsed_s() < until_s:
        clock.sleep_s(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "shards/manifest.json").exists(), "killed too late to tell anything"
    lock = atomic_files.FileLock(state / "lock")
    while lock.is_taken() and clock.elapsed_s() < until_s:
        clock.sleep_s(0.05)
    assert not lock.is_taken(), "the process that ingests has outlived its command line"
    ingested(tmp_path / "in", tmp_path / "shards")
    ingested(tmp_path / "in", tmp_path / "fresh")
    names = ("manifest.json", "rejected.jsonl")
    for name in names:
        assert (tmp_path / "shards" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    left = {path.name for path in (tmp_path / "shards").rglob("*.part")}
    assert not left
