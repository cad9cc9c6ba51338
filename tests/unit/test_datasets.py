"""Data sets found, checked and fetched, from a server here that misbehaves on demand."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.errors import RunFailed, UsageError
from flatout.system import download
from flatout.system.atomic_files import FileLock
from flatout.system.paths import data_folders
from flatout.system.store import datasets
from flatout.system.store.datasets import DATA_SETS, DataFile, DataSet, Fetching

PLAIN = bytes(range(256)) * 4000
LABELS = b"0123456789" * 500
SERVED = {"images.gz": gzip.compress(PLAIN, mtime=0), "labels.txt": LABELS}


class Server(http.server.ThreadingHTTPServer):
    """Serves SERVED; `faults` are taken off its front, one for each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.faults: list[str] = []
        self.asked: list[tuple[str, str | None]] = []

    @property
    def mirror(self) -> str:
        """The address that file names are added to."""
        return f"http://127.0.0.1:{self.server_port}/data/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


class Answer(http.server.BaseHTTPRequestHandler):
    """One answer, right or wrong."""

    server: Server

    def do_GET(self) -> None:
        """Answers with a file, a part of it, or the next fault."""
        name, asked = self.path.rpartition("/")[2], self.headers.get("Range")
        self.server.asked.append((name, asked))
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault.isdigit():
            self.send_error(int(fault))
            return
        content = SERVED[name]
        if fault == "damaged":
            content = content[:500] + b"\0\0\0\0" + content[504:]
        elif fault == "other":
            content = b"<html>please log in</html>"
        start = 0
        if asked and fault != "no-ranges":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if fault not in ("no-length", "endless"):
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if fault == "endless":
            self._send_slowly(content * 1000, pause_s=0)
        elif fault == "slow":
            self._send_slowly(content, pause_s=0.01)
        elif fault == "cut":
            self.wfile.write(content[start : start + (len(content) - start) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(content[start:])

    def _send_slowly(self, content: bytes, pause_s: float) -> None:
        step = 16 if pause_s else 65536
        for start in range(0, len(content), step):
            try:
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
            except OSError:
                return  # The client has given up.
            time.sleep(pause_s)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own for each test."""
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where flatout keeps data, empty; and nothing named by FLATOUT_DATA."""
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    for name in ("FLATOUT_DATA", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return data_folders()[-1]


def table(*mirrors: str) -> dict[str, DataSet]:
    """A data set of two files at these mirrors."""
    files = tuple(
        DataFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(plain).hexdigest())
        for (name, content), plain in zip(SERVED.items(), (PLAIN, LABELS), strict=True)
    )
    return {"tiny": DataSet(title="", files=files, licence="", source="", mirrors=mirrors)}


def fetch(sets: dict[str, DataSet]) -> list[Fetching]:
    """Downloads to the end; everything that was told on the way."""
    return list(datasets.fetch("tiny", sets))


def assert_whole(folder: Path) -> None:
    """All files are there as they are served, and nothing else."""
    names = {name for name in os.listdir(folder) if name != ".lock"}
    assert names == set(SERVED)
    assert all((folder / name).read_bytes() == content for name, content in SERVED.items())


def test_fetch_when_all_is_well(server: Server, data: Path) -> None:
    sets = table(server.mirror)
    assert datasets.find("tiny", sets) is None
    steps = fetch(sets)
    assert_whole(data / "tiny")
    assert datasets.find("tiny", sets) == data / "tiny"
    assert datasets.require("tiny", sets) == data / "tiny"
    total_bytes = sum(map(len, SERVED.values()))
    assert [step.done_bytes for step in steps] == sorted(step.done_bytes for step in steps)
    assert {step.total_bytes for step in steps} == {total_bytes}
    assert steps[-1] == Fetching(file="labels.txt", done_bytes=total_bytes, total_bytes=total_bytes)


def test_fetch_asks_for_nothing_when_all_is_there(server: Server, data: Path) -> None:
    fetch(table(server.mirror))
    server.asked.clear()
    assert fetch(table(server.mirror)) == []
    assert server.asked == []


def test_fetch_replaces_only_what_is_damaged(server: Server, data: Path) -> None:
    fetch(table(server.mirror))
    server.asked.clear()
    (data / "tiny" / "labels.txt").write_bytes(b"damaged")
    fetch(table(server.mirror))
    assert server.asked == [("labels.txt", None)]
    assert_whole(data / "tiny")


def test_fetch_goes_on_when_the_connection_is_cut(server: Server, data: Path) -> None:
    server.faults = ["cut", "cut"]
    fetch(table(server.mirror))
    assert_whole(data / "tiny")
    size = len(SERVED["images.gz"])
    assert [asked for name, asked in server.asked if name == "images.gz"] == [
        None, f"bytes={size // 2}-", f"bytes={size // 2 + (size - size // 2) // 2}-"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "left"),
    [
        ([], 1000),
        (["no-ranges"], 1000),
        (["no-length"], 0),
        ([], len(SERVED["images.gz"])),
        ([], len(SERVED["images.gz"]) + 10),
        (["404"], 1000),
        (["damaged"], 0),
        (["other"], 0),
        (["503", "503"], 0),
        (["cut", "no-ranges"], 0),
    ],
)
def test_fetch_when(server: Server, data: Path, faults: list[str], left: int) -> None:
    folder = data / "tiny"
    folder.mkdir(parents=True)
    if left:
        content = SERVED["images.gz"] + b"x" * 10
        (folder / "images.gz.part").write_bytes(content[:left])
    server.faults = faults
    # The same server twice: one mirror that fails, and one that does not.
    fetch(table(server.mirror, server.mirror))
    assert_whole(folder)


def test_fetch_gives_up_a_server_that_sends_without_end(
    server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_MOST_MORE_BYTES", 1000)
    server.faults = ["endless"]
    fetch(table(server.mirror, server.mirror))
    assert_whole(data / "tiny")
    server.faults = ["endless"] * 2
    shutil.rmtree(data / "tiny")
    with pytest.raises(RunFailed, match="larger than"):
        fetch(table(server.mirror))
    assert not list((data / "tiny").glob("*.part"))


def test_fetch_gives_up_a_server_that_is_too_slow(
    server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_SLOW_S", 0.2)
    monkeypatch.setattr(download, "_LEAST_BYTES_PER_S", 100_000)
    server.faults = ["slow"] * 20
    with pytest.raises(RunFailed, match="bytes arrived in"):
        fetch(table(server.mirror))


def test_fetch_writes_through_no_link(server: Server, data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    (data / "tiny").mkdir(parents=True)
    try:
        (data / "tiny/images.gz.part").symlink_to(mine)
    except OSError:
        pytest.skip("needs the right to make links")
    fetch(table(server.mirror))
    assert mine.read_bytes() == b"mine"
    assert_whole(data / "tiny")


def test_fetch_begins_again_when_the_server_gives_no_ranges(server: Server, data: Path) -> None:
    (data / "tiny").mkdir(parents=True)
    (data / "tiny" / "images.gz.part").write_bytes(SERVED["images.gz"][:1000])
    server.faults = ["no-ranges"]
    fetch(table(server.mirror))
    assert_whole(data / "tiny")
    assert [asked for name, asked in server.asked if name == "images.gz"] == ["bytes=1000-"]


def test_fetch_begins_again_when_what_was_left_is_of_another_file(
    server: Server, data: Path
) -> None:
    (data / "tiny").mkdir(parents=True)
    (data / "tiny" / "images.gz.part").write_bytes(b"\0" * 700)
    fetch(table(server.mirror))
    assert_whole(data / "tiny")
    assert [asked for name, asked in server.asked if name == "images.gz"] == ["bytes=700-", None]


def test_fetch_takes_the_next_mirror_when_one_is_not_there(server: Server, data: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    fetch(table(dead, server.mirror))
    assert_whole(data / "tiny")


def test_fetch_asks_the_mirror_of_everything_first(
    server: Server, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(datasets.fetch("tiny", table("http://127.0.0.1:9/"), server.mirror))
    assert_whole(data / "tiny")
    shutil.rmtree(data / "tiny")
    monkeypatch.setenv("FLATOUT_DATA_MIRROR", server.mirror)
    fetch(table("http://127.0.0.1:9/"))
    assert_whole(data / "tiny")


def test_fetch_when_no_mirror_gives_what_is_right(server: Server, data: Path) -> None:
    (data / "tiny").mkdir(parents=True)
    (data / "tiny" / "labels.txt").write_bytes(LABELS)
    server.faults = ["404", "damaged"]
    with pytest.raises(RunFailed) as caught:
        fetch(table(server.mirror + "a/", server.mirror + "b/"))
    assert caught.value.rule == "download-failed"
    assert "images.gz" in caught.value.problem
    assert caught.value.because is not None
    assert "a/images.gz: HTTP 404" in caught.value.because
    assert "b/images.gz: " in caught.value.because
    assert not (data / "tiny" / "images.gz").exists()
    assert (data / "tiny" / "labels.txt").read_bytes() == LABELS


def test_fetch_keeps_what_it_has_when_it_is_interrupted(server: Server, data: Path) -> None:
    server.faults = ["no-length"]
    coming = datasets.fetch("tiny", table(server.mirror))
    assert isinstance(coming, Generator)
    while next(coming).done_bytes == 0:
        pass
    coming.close()
    assert (data / "tiny" / "images.gz.part").stat().st_size > 0
    fetch(table(server.mirror))
    assert_whole(data / "tiny")


def test_fetch_waits_when_another_process_is_at_it(server: Server, data: Path) -> None:
    (data / "tiny").mkdir(parents=True)
    lock = FileLock(data / "tiny" / ".lock")
    assert lock.acquire()
    coming = datasets.fetch("tiny", table(server.mirror))
    assert next(coming).done_bytes == 0
    assert next(coming).done_bytes == 0
    assert server.asked == []
    lock.release()
    assert list(coming)
    assert_whole(data / "tiny")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="needs POSIX and a user who is not root"
)
def test_fetch_when_the_folder_is_read_only(server: Server, data: Path) -> None:
    data.mkdir(parents=True)
    data.chmod(0o500)
    with pytest.raises(UsageError) as caught:
        fetch(table(server.mirror))
    assert caught.value.rule == "folder-not-writable"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of file sizes")
def test_fetch_tells_the_disk_when_there_is_no_room(server: Server, data: Path) -> None:
    # In a child, so that the limit holds for nothing else.
    code = (
        "import resource, signal, sys, msgspec\n"
        "from flatout.errors import RunFailed; from flatout.system.store import datasets\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "sets = msgspec.json.decode(sys.argv[1], type=dict[str, datasets.DataSet])\n"
        "try: list(datasets.fetch('tiny', sets))\n"
        "except RunFailed as error: print(error.rule, '|', error.problem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, msgspec.json.encode(table(server.mirror)).decode()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert done.stdout.startswith("disk-full |"), done.stderr
    assert "images.gz.part" in done.stdout
    assert len(server.asked) == 1, "a full disk is no reason to ask again"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "it is missing"),
        (b"", "expected "),
        (SERVED["images.gz"][:-20], "cannot be decompressed"),
        (b"not gzip at all", "cannot be decompressed"),
        (SERVED["images.gz"][:300] + b"\0\0\0\0\0" + SERVED["images.gz"][305:], ""),
        (gzip.compress(PLAIN[:-1]), "got "),
        (SERVED["images.gz"] + b"trailing rubbish", "cannot be decompressed"),
    ],
)
def test_verify_names_the_file_when_it_is_damaged(
    data: Path, content: bytes | None, reason: str
) -> None:
    folder = data / "tiny"
    folder.mkdir(parents=True)
    (folder / "labels.txt").write_bytes(LABELS)
    if content is not None:
        (folder / "images.gz").write_bytes(content)
    with pytest.raises(RunFailed) as caught:
        datasets.verify("tiny", folder, table())
    assert caught.value.rule == "damaged-data"
    assert str(folder / "images.gz") in caught.value.problem
    assert caught.value.because is not None
    assert reason in caught.value.because
    assert caught.value.fix == "download it again: flatout data get tiny"


def test_verify_when_a_mirror_compressed_anew(data: Path) -> None:
    folder = data / "tiny"
    folder.mkdir(parents=True)
    (folder / "labels.txt").write_bytes(LABELS)
    (folder / "images.gz").write_bytes(gzip.compress(PLAIN, compresslevel=1, mtime=77))
    datasets.verify("tiny", folder, table())


def test_require_when_a_folder_of_the_person_s_own_is_damaged(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_DATA", str(tmp_path / "named"))
    folder = tmp_path / "named" / "tiny"
    folder.mkdir(parents=True)
    for name in SERVED:
        (folder / name).write_bytes(b"damaged")
    with pytest.raises(RunFailed) as caught:
        datasets.require("tiny", table())
    assert caught.value.fix == f"delete {folder / 'images.gz'}, then: flatout data get tiny"


def test_require_when_it_is_not_here(data: Path) -> None:
    with pytest.raises(UsageError) as caught:
        datasets.require("mnist")
    assert caught.value.rule == "data-missing"
    assert caught.value.fix == "flatout data get mnist"
    assert str(data / "mnist") in (caught.value.because or "")


def test_find_when_the_name_is_mistyped() -> None:
    with pytest.raises(UsageError) as caught:
        datasets.find("mnsit")
    assert caught.value.rule == "unknown-data-set"
    assert "`mnist`" in caught.value.fix


def test_data_sets_are_complete() -> None:
    for known in DATA_SETS.values():
        assert known.licence and known.source and known.title and known.mirrors
        assert all(mirror.startswith("https://") for mirror in known.mirrors)
        assert all(mirror.endswith("/") for mirror in known.mirrors)
        assert all(len(file.sha256) == 64 for file in known.files)
    assert DATA_SETS["mnist"].size_bytes == 11_594_722


@pytest.mark.parametrize("name", sorted(DATA_SETS))
def test_require_when_the_real_data_is_here(name: str) -> None:
    if datasets.find(name) is None:
        pytest.skip(f"{name} is not here: flatout data get {name}")
    assert datasets.require(name).name == name


def test_digits_are_the_ones_that_are_described() -> None:
    folder = Path(datasets.__file__).parents[2] / "experiments" / "data"
    content = gzip.decompress((folder / "digits.csv.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() in (folder / "digits.txt").read_text("utf-8")
    rows = [[int(cell) for cell in line.split(",")] for line in content.decode().splitlines()]
    assert len(rows) == 1797
    assert all(len(row) == 65 and min(row) >= 0 and max(row[:64]) <= 16 for row in rows)
    assert {row[64] for row in rows} == set(range(10))
