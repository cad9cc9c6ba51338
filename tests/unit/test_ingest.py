"""Shards of small sources: what is in them, who may make them, and what a second time does."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import click
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from flatout.cli.commands.ingest import command
from flatout.engine.ingest import listing
from flatout.engine.ingest.ingestion import ingest
from flatout.engine.ingest.readers import _passages
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.ingest_protocol import (
    Crew,
    Ingested,
    IngestJob,
    IngestRequest,
    Settings,
    ShardManifest,
    SourceKind,
)
from flatout.schema.predict_protocol import Noted
from flatout.system.store.shards import verify


def carried_out(source: Path, dest: Path, **options: Any) -> Ingested:
    """An ingestion by one process: this one."""
    request = IngestRequest(source=str(source), dest=str(dest), **{"workers": 1, **options})
    *_, last = ingest(request)
    assert isinstance(last, Ingested), last
    return last


def rows_of(dest: Path, manifest: ShardManifest, part: str | None = None) -> list[dict[str, Any]]:
    return [
        row
        for shard in manifest.shards
        if part in (None, shard.part)
        for row in pyarrow.parquet.read_table(dest / shard.file).to_pylist()
    ]


def rejected_in(dest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dest / "rejected.jsonl").read_text().splitlines()]


def refused(source: Path, dest: Path, **options: Any) -> FlatoutError:
    with pytest.raises(FlatoutError) as caught:
        carried_out(source, dest, **options)
    return caught.value


def write_images(folder: Path, *, count: int = 6) -> None:
    for number, name in enumerate(("basalt", "marble")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            shade = (number * 100, place * 9, 7)
            Image.new("RGB", (12, 10), shade).save(folder / name / f"{place}.png")


def write_table(path: Path, num_rows: int, *, first: int = 0) -> None:
    lines = [f"{row},{row / 4},name {row}" for row in range(first, first + num_rows)]
    path.write_text("\n".join(["number,share,name", *lines, ""]))


def idx_bytes(shape: tuple[int, ...], content: bytes) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in shape)
    return bytes((0, 0, 8, len(shape))) + sizes + content


def write_idx(folder: Path, name: str, count: int) -> None:
    folder.mkdir(exist_ok=True)
    pixels = bytes((row * 31 + place) % 256 for row in range(count) for place in range(6))
    images = gzip.compress(idx_bytes((count, 2, 3), pixels))
    (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(images)
    labels = bytes(row % 4 for row in range(count))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes((count,), labels))


def test_images_keep_their_bytes_and_their_class(tmp_path: Path) -> None:
    write_images(tmp_path / "stones")
    done = carried_out(tmp_path / "stones", tmp_path / "shards")
    rows = rows_of(tmp_path / "shards", done.manifest)
    assert done.manifest.settings.classes == ("basalt", "marble")
    assert Counter(row["label"] for row in rows) == {0: 6, 1: 6}
    for row in rows:
        assert row["image"] == (tmp_path / "stones" / row["name"]).read_bytes()
    verify(tmp_path / "shards", done.manifest.shards)


def test_images_in_no_class_are_reported(tmp_path: Path) -> None:
    write_images(tmp_path / "stones")
    Image.new("RGB", (12, 10)).save(tmp_path / "stones/loose.png")
    source = listing.scan_source(IngestRequest(source=str(tmp_path / "stones"), dest=""))
    assert source.num_ignored == 1


def test_bad_images_are_kept_aside_with_the_reason(tmp_path: Path) -> None:
    write_images(tmp_path / "stones")
    whole = (tmp_path / "stones/basalt/0.png").read_bytes()
    (tmp_path / "stones/basalt/cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "stones/marble/none.jpg").write_bytes(b"this is no image")
    (tmp_path / "stones/marble/empty.jpg").touch()
    done = carried_out(tmp_path / "stones", tmp_path / "shards", most_rejected=0.5)
    assert sum(done.manifest.counts.values()) == 12
    assert done.manifest.num_rejected == 3
    reported = {one["place"]: one["reason"] for one in rejected_in(tmp_path / "shards")}
    assert reported.keys() == {"basalt/cut.png", "marble/none.jpg", "marble/empty.jpg"}
    assert reported["marble/none.jpg"] == "it is not an image"
    assert reported["marble/empty.jpg"] == "it is empty"


def test_too_many_bad_records_publish_nothing(tmp_path: Path) -> None:
    write_images(tmp_path / "stones", count=1)
    (tmp_path / "stones/marble/none.jpg").write_bytes(b"this is no image")
    error = refused(tmp_path / "stones", tmp_path / "shards")
    assert isinstance(error, RunFailed)
    assert error.rule == "too-many-bad-records"
    assert "none.jpg: it is not an image" in str(error)
    assert not (tmp_path / "shards/manifest.json").exists()


def test_idx_files_have_a_test_part_of_their_own(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits", "train", 40)
    write_idx(tmp_path / "digits", "t10k", 10)
    done = carried_out(tmp_path / "digits", tmp_path / "shards", validation=0.25)
    counts = done.manifest.counts
    assert counts["test"] == 10
    assert counts["train"] + counts["validation"] == 40
    assert 0 < counts["validation"] < 20
    assert done.manifest.settings.shape == (1, 2, 3)
    assert done.manifest.settings.classes == ("0", "1", "2", "3")
    first = rows_of(tmp_path / "shards", done.manifest, "test")[1]
    assert first == {"image": bytes(31 + place for place in range(6)), "label": 1}


@pytest.mark.parametrize(
    ("training", "testing"),
    [("emnist-letters-train", "emnist-letters-test"), ("digits", "Digits-Test"), ("mine", None)],
)
def test_idx_files_are_for_tests_if_their_last_word_says_so(
    training: str, testing: str | None, tmp_path: Path
) -> None:
    write_idx(tmp_path / "digits", training, 40)
    if testing is not None:
        write_idx(tmp_path / "digits", testing, 10)
    done = carried_out(tmp_path / "digits", tmp_path / "shards", validation=0.0)
    assert done.manifest.counts["train"] > 20
    assert sum(done.manifest.counts.values()) == (40 if testing is None else 50)
    assert testing is None or done.manifest.counts["test"] == 10


def test_idx_files_keep_their_order_where_nothing_is_split_off(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits", "train", 40)
    done = carried_out(tmp_path / "digits", tmp_path / "shards", validation=0.0, test=0.0)
    labels = [row["label"] for row in rows_of(tmp_path / "shards", done.manifest, "train")]
    assert labels == [row % 4 for row in range(40)]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("train-images-idx3-ubyte", idx_bytes((3, 2, 2), bytes(11)), "11 bytes of data, not 12"),
        ("train-images-idx3-ubyte", b"\x1f\x8b\x08 not gzip", "cannot be decompressed"),
        ("train-images-idx3-ubyte", b"hello", "not an IDX file"),
        ("train-images-idx3-ubyte", idx_bytes((2, 2, 2), bytes(8)), "2 images and 3 labels"),
    ],
)
def test_idx_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes((3,), bytes(3)))
    (tmp_path / name).write_bytes(content)
    error = refused(tmp_path, tmp_path.with_name("shards"))
    assert error.rule == "source-not-readable"
    assert reason in str(error)


def test_csv_rows_that_do_not_fit_are_left_out_with_their_line(tmp_path: Path) -> None:
    source = tmp_path / "flats.csv"
    source.write_bytes(
        b"area,district,rent\n50,park,900.5\n80,edge\nmany,park,700\n"
        b"60,,800\n,,\n70,\xff\xfe,650\n90,edge,1000\n"
    )
    done = carried_out(source, tmp_path / "shards", most_rejected=0.9, test=0.0, validation=0.0)
    assert rows_of(tmp_path / "shards", done.manifest) == [
        {"area": "50", "district": "park", "rent": 900.5},
        {"area": "many", "district": "park", "rent": 700.0},
        {"area": "60", "district": None, "rent": 800.0},
        {"area": "90", "district": "edge", "rent": 1000.0},
    ]
    reported = [(one["place"], one["reason"]) for one in rejected_in(tmp_path / "shards")]
    assert ("flats.csv: line 3", "it has 2 values, not 3") in reported
    assert any(place == "flats.csv: line 7" and "district" in reason for place, reason in reported)
    assert ("flats.csv", "it has no values") in reported
    assert len(reported) == 3


def test_csv_columns_are_reported_by_all_files_together(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("number,text\n1,2020-01-01\n2,2020-01-02\n")
    (tmp_path / "in/b.csv").write_text("number,text\n1.5,hello\n")
    done = carried_out(tmp_path / "in", tmp_path / "shards")
    types = {column.name: column.type for column in done.manifest.settings.columns}
    assert types == {"number": "double", "text": "string"}


def test_csv_value_that_the_beginning_did_not_announce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The type is told by a file's beginning; here that is a few lines.
    monkeypatch.setattr("flatout.engine.ingest.tables._LOOK_BYTES", 64)
    lines = ["number", *map(str, range(100)), "late text", "7"]
    (tmp_path / "n.csv").write_text("\n".join(lines) + "\n")
    done = carried_out(tmp_path / "n.csv", tmp_path / "shards")
    assert sum(done.manifest.counts.values()) == 101
    (reported,) = rejected_in(tmp_path / "shards")
    assert reported["place"] == "n.csv: line 102"
    assert reported["reason"] == "number: 'late text' is not int64"
    assert reported["content"] == "late text"


def test_parquet_keeps_types_that_csv_does_not_know(tmp_path: Path) -> None:
    table = pyarrow.table(
        {"tags": [["a", "b"], [], ["c"]], "small": pyarrow.array([1, 2, 3], "int8")}
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    done = carried_out(tmp_path / "t.parquet", tmp_path / "shards", test=0.0, validation=0.0)
    assert rows_of(tmp_path / "shards", done.manifest) == table.to_pylist()


def test_parquet_row_group_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pyarrow.table({"x": list(range(1000))})
    pyarrow.parquet.write_table(table, path, row_group_size=100, compression="zstd")
    content = bytearray(path.read_bytes())
    group = pyarrow.parquet.ParquetFile(path).metadata.row_group(3).column(0)
    begin = group.dictionary_page_offset or group.data_page_offset
    content[begin : begin + group.total_compressed_size] = bytes(group.total_compressed_size)
    path.write_bytes(content)
    done = carried_out(path, tmp_path / "shards", most_rejected=0.5)
    assert sum(done.manifest.counts.values()) == 900
    assert done.manifest.num_rejected == 100
    (reported,) = rejected_in(tmp_path / "shards")
    assert reported["place"] == "t.parquet: row group 3"


def test_rows_of_equal_key_stay_together(tmp_path: Path) -> None:
    lines = [f"{row % 20},{row}" for row in range(400)]
    (tmp_path / "p.csv").write_text("\n".join(["person,reading", *lines, ""]))
    done = carried_out(tmp_path / "p.csv", tmp_path / "shards", key="person", validation=0.3)
    parts: dict[int, set[str]] = {}
    for part in done.manifest.counts:
        for row in rows_of(tmp_path / "shards", done.manifest, part):
            parts.setdefault(row["person"], set()).add(part)
    assert len(parts) == 20
    assert all(len(one) == 1 for one in parts.values())
    assert done.manifest.counts["validation"] > 0


def test_text_passages_are_in_one_piece_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = [f"line {number}\n" * (1 + number % 3) for number in range(60)]
    source = tmp_path / "tale.txt"
    source.write_bytes("\n\n".join(passages).replace("\n", "\r\n").encode())
    whole = [passage.rstrip("\n") for passage in passages]
    # Wherever the text is cut, each passage is there once.
    for piece_bytes in (17, 50, 211, 10_000):
        monkeypatch.setattr(listing, "PIECE_BYTES", piece_bytes)
        dest = tmp_path / f"shards{piece_bytes}"
        done = carried_out(source, dest, test=0.0, validation=0.0)
        assert [row["text"] for row in rows_of(dest, done.manifest)] == whole


@pytest.mark.parametrize("piece_bytes", [2**20, 10**8])
def test_passage_that_is_too_long_is_left_out_once(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pieces it goes over, and whether or not it is a single line."""
    monkeypatch.setattr(listing, "PIECE_BYTES", piece_bytes)
    long = b"word " * 700_000 + b"\n" + b"a line of it\n" * 200_000
    source = tmp_path / "t.txt"
    source.write_bytes(b"before\n\n" + long + b"\nafter\n")
    settings = Settings(kind="text", validation=0.0, test=0.0)
    held = []
    for piece in listing.scan_source(IngestRequest(source=str(source), dest="")).pieces:
        job = IngestJob(source=str(source), dest="", settings=settings, versions={})
        held += [(place, len(passage)) for place, passage in _passages(job, piece)]
    assert [place for place, _ in held] == [0, 8, len(long) + 9]
    # No more of it is held than shows that it is too long.
    assert 2**20 < held[1][1] <= 2**21


def test_text_that_is_none_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"fine\n\nbro\xff\xfeken\n\nze\0ro\n\nalso fine\n")
    done = carried_out(
        tmp_path / "t.txt", tmp_path / "shards", most_rejected=0.9, test=0.0, validation=0.0
    )
    assert [row["text"] for row in rows_of(tmp_path / "shards", done.manifest)] == [
        "fine", "also fine",
    ]  # fmt: skip
    assert [one["place"] for one in rejected_in(tmp_path / "shards")] == [
        "t.txt: byte 6", "t.txt: byte 16",
    ]  # fmt: skip


def test_settings_without_effect_are_warned_of(tmp_path: Path) -> None:
    write_idx(tmp_path / "digits", "train", 10)
    write_idx(tmp_path / "digits", "t10k", 10)
    (tmp_path / "digits/readme.html").write_text("about")
    request = IngestRequest(
        source=str(tmp_path / "digits"), dest=str(tmp_path / "shards"), workers=1, test=0.3,
        address="somewhere:1",
    )  # fmt: skip
    reported = [line.finding for line in ingest(request) if isinstance(line, Noted)]
    assert [(one.rule, one.severity) for one in reported] == [
        ("option-without-effect", "warning"), ("option-without-effect", "warning"),
        ("files-left-out", "note"),
    ]  # fmt: skip


def test_part_of_a_key_follows_the_shares() -> None:
    settings = Settings(kind="text", validation=0.25, test=0.25)
    keys = {"test": b"\x00" * 8, "validation": b"\x40" + b"\x00" * 7, "train": b"\x80" * 8}
    assert {part: settings.part_of(key) for part, key in keys.items()} == {
        part: part for part in keys
    }


def test_image_that_is_whole_is_reported_from_one_that_is_not() -> None:
    from flatout.engine.ingest.readers import _what_is_wrong

    stream = io.BytesIO()
    Image.linear_gradient("L").save(stream, "JPEG")
    whole = stream.getvalue()
    assert _what_is_wrong(whole) is None
    assert "truncated" in (_what_is_wrong(whole[: len(whole) // 2]) or "")


def test_options_name_every_kind_and_crew() -> None:
    # Written out in the command, because --help does not load what defines them.
    choices = {
        one.name: tuple(one.type.choices)
        for one in command.params
        if isinstance(one.type, click.Choice)
    }
    assert choices["kind"] == get_args(SourceKind)
    assert choices["on"] == (*get_args(Crew), "cluster")


def test_ingestion_does_without_torch() -> None:
    # It takes seconds in each process of a pool, and with pyarrow aborts now and then at the end.
    code = "import sys, flatout.engine.ingest.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
