"""What a command says, and ends with, where its output or its folder is gone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.cli import main as cli_main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

_FLATOUT = f'"{sys.executable}" -m flatout'


def ended(line: str, tmp_path: Path) -> tuple[int, str]:
    """Exit code and standard error of a line for the shell."""
    own = {"HOME": str(tmp_path), "FLATOUT_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env={**os.environ, **own}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "own fault" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["--help", "data list", "docs", "data list --json"])
def test_full_disk_behind_standard_output_is_reported(command: str, tmp_path: Path) -> None:
    code, reported = ended(f"{_FLATOUT} {command} >/dev/full", tmp_path)
    assert code == 1
    assert "error: cannot write to standard output." in reported
    assert "No space left on device" in reported


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(closed: str, tmp_path: Path) -> None:
    assert ended(f"{_FLATOUT} data list {closed}", tmp_path) == (0, "")


@pytest.mark.parametrize("command", ["docs", "data list --json", "--help"])
def test_reader_that_has_seen_enough_ends_a_command_as_it_ends_git(
    command: str, tmp_path: Path
) -> None:
    assert ended(f"{_FLATOUT} {command} | true", tmp_path) == (141, "")


@pytest.mark.parametrize(
    ("number", "code", "reported"),
    [
        (errno.ENOSPC, 1, "error: no space left to write a file."),
        (errno.EIO, 3, "error: this is a bug in flatout"),
        (errno.EFBIG, 3, "error: this is a bug in flatout"),
    ],
)
def test_file_that_cannot_be_written_is_not_taken_for_standard_output(
    number: int, code: int, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        print("{}")
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setattr(cli_main.main, "main", fail)
    write = sys.stdout.write
    assert cli_main.run(["runs"]) == code
    assert reported in capsys.readouterr().err
    assert sys.stdout.write == write


def test_deleted_current_folder_is_reported(tmp_path: Path) -> None:
    line = f"mkdir gone && cd gone && rmdir ../gone && {_FLATOUT}"
    code, reported = ended(f"{line} runs", tmp_path)
    assert code == 2
    assert "error: the current folder no longer exists." in reported
    assert ended(f"{line} --version", tmp_path) == (0, "")
