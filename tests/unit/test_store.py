"""Files that survive a crash, a full disk and a second process."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.system import atomic_files


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line as short as can be."""

    step: int
    text: str = ""


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this: writing behaves as on a disk that becomes full."""
    if sys.platform == "win32":
        pytest.skip("Windows has no limit of file sizes")
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_write_atomically_when_all_is_well(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_files.write_atomically(path, b"first")
    atomic_files.write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomically_keeps_the_old_file_when_there_is_no_room(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_files.write_atomically(path, b"old")
    with largest_file(1000), pytest.raises(RunFailed):
        atomic_files.write_atomically(path, b"x" * 100_000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "the half of a file takes room"


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="mounting a small disk needs Linux and root",
)
def test_write_atomically_when_a_real_disk_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "flatout-test", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this root may not mount")
    try:
        atomic_files.write_atomically(disk / "file", b"old")
        with pytest.raises(RunFailed) as caught:
            atomic_files.write_atomically(disk / "file", b"x" * 200_000)
        assert caught.value.rule == "disk-full"
        assert (disk / "file").read_bytes() == b"old"
        lines = atomic_files.Lines(disk / "lines.jsonl")
        with pytest.raises(RunFailed):
            for step in range(1000):
                lines.append(Line(step=step, text="x" * 1000))
        lines.close()
        written = atomic_files.read_lines(disk / "lines.jsonl", Line)
        assert [line.step for line in written] == list(range(len(written)))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_write_atomically_when_the_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        atomic_files.write_atomically(tmp_path / "gone" / "file", b"x")
    assert caught.value.rule == "file-not-accessible"


@pytest.mark.parametrize(
    ("number", "kind", "rule"),
    [
        (errno.ENOSPC, RunFailed, "disk-full"),
        (errno.EFBIG, RunFailed, "disk-full"),
        (errno.EROFS, UsageError, "folder-not-writable"),
        (errno.EACCES, UsageError, "folder-not-writable"),
        (errno.EIO, RunFailed, "file-not-accessible"),
    ],
)
def test_mapped_os_errors_when(number: int, kind: type[FlatoutError], rule: str) -> None:
    with pytest.raises(kind) as caught, atomic_files.mapped_os_errors(Path("/a/file")):
        raise OSError(number, os.strerror(number))
    assert caught.value.rule == rule
    assert str(Path("/a/file")) in caught.value.problem
    assert isinstance(caught.value.__cause__, OSError)


def test_read_json_when_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "line.json"
    atomic_files.write_json(path, Line(step=3))
    assert atomic_files.read_json(path, Line) == Line(step=3)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RunFailed) as caught:
        atomic_files.read_json(path, Line)
    assert caught.value.rule == "damaged-file"
    assert str(path) in caught.value.problem


LINES = st.lists(
    st.builds(Line, step=st.integers(0, 100), text=st.text(max_size=8)), min_size=1, max_size=6
)


@given(LINES, st.data())
def test_lines_when_torn_at_any_byte(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Line], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "lines.jsonl"
    encoded = [msgspec.json.encode(line) + b"\n" for line in lines]
    whole = b"".join(encoded)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    num_whole = sum(len(b"".join(encoded[: index + 1])) <= cut for index in range(len(lines)))
    assert atomic_files.read_lines(path, Line) == lines[:num_whole]
    # Who writes on does so behind the last whole line.
    file = atomic_files.Lines(path)
    file.append(Line(step=7))
    file.close()
    assert atomic_files.read_lines(path, Line) == [*lines[:num_whole], Line(step=7)]


@given(LINES, st.data())
def test_cut_back_when_lines_came_after(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Line], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "lines.jsonl"
    num_kept = data.draw(st.integers(0, len(lines)))
    file = atomic_files.Lines(path)
    sizes = [0]
    for line in lines:
        file.append(line)
        sizes.append(file.size_bytes())
    file.close()
    atomic_files.cut_back(path, sizes[num_kept])
    assert atomic_files.read_lines(path, Line) == lines[:num_kept]


def test_cut_back_when_the_file_is_shorter_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    atomic_files.cut_back(path, 10)
    assert not path.exists()
    path.write_bytes(b'{"step":1}\n')
    atomic_files.cut_back(path, 400)
    assert path.read_bytes() == b'{"step":1}\n'


@pytest.mark.parametrize("line", [b"rubbish\n", b"\xff\xfe\n", b'{"step":"one"}\n', b"\0\0\0\n"])
def test_read_lines_when_a_line_in_the_middle_is_damaged(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"step":1}\n' + line + b'{"step":2}\n')
    with pytest.raises(RunFailed) as caught:
        atomic_files.read_lines(path, Line)
    assert caught.value.rule == "damaged-file"
    assert str(path) in caught.value.problem


def test_lines_append_leaves_no_half_line_when_there_is_no_room(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = atomic_files.Lines(path)
    lines.append(Line(step=1))
    with largest_file(path.stat().st_size + 10), pytest.raises(RunFailed):
        lines.append(Line(step=2, text="x" * 100))
    lines.append(Line(step=3))
    lines.close()
    assert [line.step for line in atomic_files.read_lines(path, Line)] == [1, 3]


def test_read_lines_from_when_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert atomic_files.read_lines_from(path, 0, Line) == ([], 0)
    path.write_bytes(b'{"step":1}\n{"st')
    lines, offset = atomic_files.read_lines_from(path, 0, Line)
    assert ([line.step for line in lines], offset) == ([1], 11)
    path.write_bytes(b'{"step":1}\n{"step":2}\n')
    lines, offset = atomic_files.read_lines_from(path, offset, Line)
    assert ([line.step for line in lines], offset) == ([2], 22)
    assert atomic_files.read_lines_from(path, offset, Line) == ([], 22)


@pytest.mark.parametrize(
    "now", [b'{"step":5}\n', b'{"step":5}\n' + b'{"step":6,"text":"longer than it was"}\n']
)
def test_read_lines_from_when_the_file_was_cut_and_grew_again(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(now)
    lines, offset = atomic_files.read_lines_from(path, 30, Line)
    assert lines[0].step == 5
    assert offset == len(now)


HOLD = """
import sys, time
from pathlib import Path
from flatout.system.atomic_files import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
{then}
time.sleep(60)
"""


@contextmanager
def holder(path: Path, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(then=then), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_lock_when_another_process_holds_it_and_dies(tmp_path: Path) -> None:
    lock = atomic_files.FileLock(tmp_path / "lock")
    with holder(tmp_path / "lock") as process:
        assert lock.is_taken()
        assert not lock.acquire()
        process.kill()
        process.wait()
        assert not lock.is_taken()
        assert lock.acquire()
    lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_lock_is_free_when_its_owner_was_killed_and_a_forked_child_lives_on(tmp_path: Path) -> None:
    then = "import os\nif os.fork() == 0: print(os.getpid(), flush=True); time.sleep(60)"
    with holder(tmp_path / "lock", then) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert atomic_files.FileLock(tmp_path / "lock").is_taken()
            process.kill()
            process.wait()
            assert atomic_files.FileLock(tmp_path / "lock").acquire()
        finally:
            os.kill(child, signal.SIGKILL)


def test_lock_when_asked_before_it_was_ever_taken(tmp_path: Path) -> None:
    assert not atomic_files.FileLock(tmp_path / "lock").is_taken()
    assert not (tmp_path / "lock").exists(), "asking must not change the folder"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no shared locks here")
def test_lock_is_not_taken_when_somebody_else_is_asking_too(tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / "lock", "wb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not atomic_files.FileLock(tmp_path / "lock").is_taken()
        assert not atomic_files.FileLock(tmp_path / "lock").acquire()


def test_lock_when_others_keep_asking(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    asking = (
        "import sys; from pathlib import Path; from flatout.system.atomic_files import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); print('on', flush=True)\n"
        "while True: lock.is_taken()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", asking, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "on\n"
        for _ in range(50):
            lock = atomic_files.FileLock(path)
            assert not lock.is_taken()
            assert lock.acquire()
            lock.release()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_lock_twice_in_one_process_is_refused(tmp_path: Path) -> None:
    first, second = (
        atomic_files.FileLock(tmp_path / "lock"),
        atomic_files.FileLock(tmp_path / "lock"),
    )
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
