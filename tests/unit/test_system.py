"""Running programs and reading files: what fails is a value with its reason."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from flatout.system.host_system import LocalSystem, RecordedSystem, System, SystemRecording, Unread

PYTHON = sys.executable


def test_run_when_it_ends() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    done = LocalSystem().run([PYTHON, "-c", code], 30)
    assert (done.stdout, done.stderr, done.exit_code, done.reason) == ("out\n", "err\n", 7, None)


def test_run_when_the_output_is_not_utf8() -> None:
    code = "import sys; sys.stdout.buffer.write(b'a\\xff\\xfeb')"
    assert LocalSystem().run([PYTHON, "-c", code], 30).stdout == "a\ufffd\ufffdb"


def test_run_gives_no_input_when_the_program_asks_for_it() -> None:
    done = LocalSystem().run([PYTHON, "-c", "print(repr(input()))"], 30)
    assert "EOFError" in done.stderr


def test_run_when_there_is_no_such_program() -> None:
    done = LocalSystem().run(["/nowhere/nvidia-smi"], 1)
    assert done.exit_code is None
    assert done.reason


def test_run_when_it_is_not_a_program(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no program", encoding="utf-8")
    assert LocalSystem().run([str(tmp_path / "file")], 1).reason


def test_run_kills_all_that_was_started_when_it_hangs(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    grandchild = "import time; time.sleep(600)"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "print('so far', flush=True)\n"
        "time.sleep(600)\n"
    )
    began = time.perf_counter()
    LocalSystem().run([PYTHON, "-c", "pass"], 60)
    # By then it has started the other one, even beside other programs.
    limit_s = max(2, round(20 * (time.perf_counter() - began)))
    began = time.perf_counter()
    done = LocalSystem().run([PYTHON, "-c", code], limit_s)
    assert time.perf_counter() - began < limit_s + 30
    assert done.exit_code is None
    assert done.reason == f"no answer within {limit_s} s"
    pid = int(note.read_text(encoding="utf-8"))
    end = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Whether a process still works; one that only waits to be collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_read_when_there_is_a_file_or_none(tmp_path: Path) -> None:
    system = LocalSystem()
    (tmp_path / "file").write_bytes(b"caf\xe9\n")
    assert system.read(str(tmp_path / "file")) == "caf\ufffd\n"
    missing = system.read(str(tmp_path / "none"))
    assert isinstance(missing, Unread)
    assert missing.reason.startswith(str(tmp_path / "none"))
    assert isinstance(system.read(str(tmp_path)), Unread)
    assert isinstance(system.read("nul\0byte"), Unread)


def test_exists_and_list_folder_when_here(tmp_path: Path) -> None:
    system = LocalSystem()
    for name in ("b", "a"):
        (tmp_path / name).touch()
    assert system.exists(str(tmp_path / "a"))
    assert not system.exists(str(tmp_path / "c"))
    assert system.list_folder(str(tmp_path)) == ("a", "b")
    assert system.list_folder(str(tmp_path / "c")) == ()


def test_calls_when_here() -> None:
    calls = LocalSystem().calls()
    assert calls.python_version == ".".join(map(str, sys.version_info[:3]))
    assert 1 <= calls.num_threads <= (os.cpu_count() or 1)


def test_packages_are_the_same_when_read_by_a_child() -> None:
    system = LocalSystem()
    names = ["msgspec", "torch", "no-such-package"]
    here = system.packages(PYTHON, names)
    # The same interpreter under another spelling is not known to be this one.
    folder, name = os.path.split(PYTHON)
    there = system.packages(os.path.join(folder, ".", name), names)
    assert isinstance(here, str)
    assert isinstance(there, str)
    assert json.loads(there) == json.loads(here)
    assert "msgspec" in json.loads(here)["packages"]


def test_packages_when_a_file_in_the_working_folder_is_called_like_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder, name = os.path.split(PYTHON)
    reported = LocalSystem().packages(os.path.join(folder, ".", name), ["msgspec"])
    assert isinstance(reported, str)


def test_packages_when_the_interpreter_fails(tmp_path: Path) -> None:
    reported = LocalSystem().packages(str(tmp_path / "python"), ["torch"])
    assert isinstance(reported, Unread)
    assert reported.reason.startswith(str(tmp_path / "python"))


def test_recorded_system_when_something_was_not_recorded() -> None:
    calls = LocalSystem().calls()
    files: dict[str, str | None] = {"/etc/a": "text", "/etc/b/c": None}
    system: System = RecordedSystem(SystemRecording(platform="linux", calls=calls, files=files))
    assert system.read("/etc/a") == "text"
    assert system.read("/etc/b/c") == Unread("/etc/b/c: Permission denied")
    assert system.read("/etc/d") == Unread("/etc/d: No such file or directory")
    assert system.exists("/etc/b")
    assert not system.exists("/et")
    assert system.list_folder("/etc") == ("a", "b")
    assert system.run(["ls"], 1).reason == "No such file or directory"
    assert isinstance(system.packages("/usr/bin/python3", ["torch"]), Unread)
