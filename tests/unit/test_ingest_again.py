"""Making shards again: what a second time does, what a broken one leaves, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from PIL import Image

from flatout.engine.ingest import listing
from flatout.engine.ingest.ingestion import ingest
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import Finding
from flatout.schema.ingest_protocol import Ingested, IngestRequest, ShardManifest
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.store.shards import ShardFolder, verify


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


def everything_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".ingest" not in path.parts
    }


def refused(source: Path, dest: Path, **options: Any) -> FlatoutError:
    with pytest.raises(FlatoutError) as caught:
        carried_out(source, dest, **options)
    return caught.value


def broken(source: Path, dest: Path) -> Finding:
    *_, last = ingest(IngestRequest(source=str(source), dest=str(dest), workers=1))
    assert isinstance(last, ProcessFailed), last
    return last.finding


def write_images(folder: Path, *, count: int = 6) -> None:
    for number, name in enumerate(("basalt", "marble")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            shade = (number * 100, place * 9, 7)
            Image.new("RGB", (12, 10), shade).save(folder / name / f"{place}.png")


def write_table(path: Path, num_rows: int, *, first: int = 0) -> None:
    lines = [f"{row},{row / 4},name {row}" for row in range(first, first + num_rows)]
    path.write_text("\n".join(["number,share,name", *lines, ""]))


def test_second_time_changes_nothing(tmp_path: Path) -> None:
    write_images(tmp_path / "stones")
    carried_out(tmp_path / "stones", tmp_path / "shards")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*.*")}
    again = carried_out(tmp_path / "stones", tmp_path / "shards")
    assert again.num_made == 0
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*.*")}


def test_equal_sources_give_equal_bytes_whoever_works(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        write_table(tmp_path / f"in/{number}.csv", 200, first=number * 200)
    carried_out(tmp_path / "in", tmp_path / "one")
    carried_out(tmp_path / "in", tmp_path / "many", workers=3)
    assert everything_in(tmp_path / "one") == everything_in(tmp_path / "many")


def test_records_stay_in_their_part_as_data_grows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in/a.csv", 300)
    before = carried_out(tmp_path / "in", tmp_path / "shards")
    parts = {
        row["number"]: part
        for part in before.manifest.counts
        for row in rows_of(tmp_path / "shards", before.manifest, part)
    }
    old_shards = {shard.file for shard in before.manifest.shards}
    write_table(tmp_path / "in/0.csv", 300, first=300)
    after = carried_out(tmp_path / "in", tmp_path / "shards")
    assert after.num_made == 1, "only the new file is read"
    assert old_shards < {shard.file for shard in after.manifest.shards}
    for part in after.manifest.counts:
        for row in rows_of(tmp_path / "shards", after.manifest, part):
            assert parts.get(row["number"], part) == part
    shares = {part: number / 600 for part, number in after.manifest.counts.items()}
    assert abs(shares["validation"] - 0.1) < 0.05
    assert abs(shares["test"] - 0.1) < 0.05


def test_what_the_source_no_longer_has_goes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in/a.csv", 50)
    write_table(tmp_path / "in/b.csv", 50, first=50)
    carried_out(tmp_path / "in", tmp_path / "shards")
    (tmp_path / "in/b.csv").unlink()
    after = carried_out(tmp_path / "in", tmp_path / "shards")
    assert after.num_made == 0
    assert after.num_removed > 0
    files = {path for path in everything_in(tmp_path / "shards") if path.endswith(".parquet")}
    assert files == {shard.file for shard in after.manifest.shards}
    assert sum(after.manifest.counts.values()) == 50


def test_new_image_changes_only_its_own_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "stones", count=40)
    monkeypatch.setattr(listing, "PIECE_BYTES", 700)
    first = carried_out(tmp_path / "stones", tmp_path / "shards")
    assert first.num_pieces >= 8
    Image.new("RGB", (3, 3)).save(tmp_path / "stones/marble/new.png")
    second = carried_out(tmp_path / "stones", tmp_path / "shards")
    assert (second.num_made, second.num_pieces) == (1, first.num_pieces)


def test_broken_off_ingestion_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        write_table(tmp_path / f"in/{number}.csv", 100, first=number * 100)
    request = IngestRequest(source=str(tmp_path / "in"), dest=str(tmp_path / "shards"), workers=1)
    lines = ingest(request)
    # The list, and two pieces.
    for _ in range(3):
        next(lines)
    lines.close()  # type: ignore[attr-defined]
    assert not (tmp_path / "shards/manifest.json").exists()
    (tmp_path / "shards/train/00007-0123456789ab.parquet.part").write_bytes(b"half")
    rest = carried_out(tmp_path / "in", tmp_path / "shards")
    assert rest.num_made == 2
    carried_out(tmp_path / "in", tmp_path / "fresh")
    assert everything_in(tmp_path / "shards") == everything_in(tmp_path / "fresh")


def test_lost_and_damaged_shards_are_reported_and_made_anew(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", 100)
    done = carried_out(tmp_path / "a.csv", tmp_path / "shards")
    path = tmp_path / "shards" / done.manifest.shards[0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFailed) as caught:
        verify(tmp_path / "shards", done.manifest.shards)
    assert caught.value.rule == "damaged-data"
    path.unlink()
    with pytest.raises(RunFailed, match="cannot be used"):
        verify(tmp_path / "shards", done.manifest.shards)
    carried_out(tmp_path / "a.csv", tmp_path / "shards")
    verify(tmp_path / "shards", done.manifest.shards)


def test_folder_is_refused_where_something_else_lies(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", 10)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear reader")
    assert refused(tmp_path / "a.csv", tmp_path / "mine").rule == "folder-not-empty"
    assert refused(tmp_path / "a.csv", tmp_path / "a.csv").rule == "ingest-into-source"
    assert refused(tmp_path, tmp_path / "below").rule == "ingest-into-source"


def test_folder_keeps_its_settings(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", 100)
    carried_out(tmp_path / "a.csv", tmp_path / "shards")
    error = refused(tmp_path / "a.csv", tmp_path / "shards", validation=0.2)
    assert error.rule == "ingested-otherwise"
    assert "validation 0.1 (now: 0.2)" in str(error)


def test_folder_that_somebody_else_works_in(tmp_path: Path) -> None:
    write_table(tmp_path / "a.csv", 10)
    lock = ShardFolder(tmp_path / "shards").open()
    try:
        assert refused(tmp_path / "a.csv", tmp_path / "shards").rule == "ingest-in-progress"
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"validation": 0.6, "test": 0.4}, "bad-share"),
        ({"validation": -0.1}, "bad-share"),
        ({"test": float("nan")}, "bad-share"),
        ({"most_rejected": 2.0}, "bad-share"),
        ({"key": "nmae"}, "column-not-found"),
        ({"kind": "text"}, "no-data"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any], rule: str) -> None:
    write_table(tmp_path / "a.csv", 10)
    error = refused(tmp_path / "a.csv", tmp_path / "shards", **options)
    assert isinstance(error, UsageError)
    assert error.rule == rule


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    write_table(tmp_path / "mixed/a.csv", 10)
    (tmp_path / "mixed/notes.txt").write_text("hello\n")
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "flat/a.png")
    (tmp_path / "uneven").mkdir()
    (tmp_path / "uneven/a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "uneven/b.csv").write_text("x,z\n1,2\n")
    (tmp_path / "none.csv").write_text("x,y\n")
    rules = {
        name: refused(tmp_path / name, tmp_path / "shards" / name.partition(".")[0]).rule
        for name in ("nowhere", "empty", "mixed", "flat", "uneven", "none.csv")
    }
    assert rules == {
        "nowhere": "data-path-not-found", "empty": "no-data", "mixed": "source-of-several-kinds",
        "flat": "no-images", "uneven": "table-not-readable", "none.csv": "no-data",
    }  # fmt: skip


def test_worker_with_other_versions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path / "a.csv", 10)
    monkeypatch.setattr(
        "flatout.engine.ingest.ingestion.versions_for", lambda kind: {"pyarrow": "0.1"}
    )
    request = IngestRequest(
        source=str(tmp_path / "a.csv"), dest=str(tmp_path / "shards"), workers=1
    )
    *_, last = ingest(request)
    assert isinstance(last, ProcessFailed)
    assert last.finding.rule == "nodes-differ"


def test_files_that_a_person_added_stay(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in/a.csv", 50)
    write_table(tmp_path / "in/b.csv", 50, first=50)
    first = carried_out(tmp_path / "in", tmp_path / "shards")
    own = ["notes.txt", "mine.parquet", "mine-0123456789ab.parquet", "folder/deep.txt"]
    for name in own:
        path = tmp_path / "shards/train" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    (tmp_path / "in/b.csv").unlink()
    after = carried_out(tmp_path / "in", tmp_path / "shards")
    gone = {shard.file for shard in first.manifest.shards} - {
        shard.file for shard in after.manifest.shards
    }
    assert after.num_removed == len(gone) > 0
    assert not any((tmp_path / "shards" / file).exists() for file in gone)
    assert all((tmp_path / "shards/train" / name).read_text() == "precious" for name in own)


def test_shards_that_a_killed_ingestion_left_go(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "in/a.csv", 50)
    carried_out(tmp_path / "in", tmp_path / "shards")
    folder = ShardFolder(tmp_path / "shards")
    never_published = folder.write_shard("train", "0123", b"content", 1)
    torn = tmp_path / "shards/train/0123-0123456789ab.parquet.part"
    torn.write_bytes(b"half")
    after = carried_out(tmp_path / "in", tmp_path / "shards")
    assert after.num_removed == 1
    assert not (tmp_path / "shards" / never_published.file).exists()
    assert not torn.exists()


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_stray_quote_is_refused(tmp_path: Path, place: str, is_closed: bool) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in/a.csv"
    write_table(path, 10_000)
    lines = path.read_text().splitlines()
    lines[7] = '"' + lines[7] if place == "first" else lines[7].replace("name", '"name')
    if is_closed:
        lines[9000] = lines[9000].replace("name", '"name') + '"'
    path.write_text("\n".join([*lines, ""]))
    finding = broken(tmp_path / "in", tmp_path / "shards")
    assert finding.rule == "table-not-readable"
    assert "line 8" in str(finding.because)
    assert not (tmp_path / "shards/manifest.json").exists()


def test_truncated_compressed_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_table(tmp_path / "whole.csv", 400_000)
    packed = gzip.compress((tmp_path / "whole.csv").read_bytes())
    (tmp_path / "in/a.csv.gz").write_bytes(packed[: len(packed) - 100])
    finding = broken(tmp_path / "in", tmp_path / "shards")
    assert finding.rule == "table-not-readable"
