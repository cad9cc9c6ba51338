"""What the doctor is given to read, and where it is told to write: names that are none, too."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

LOG = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
# No file may have such a name: Linux' limit is 255 bytes.
TOO_LONG = "RuntimeError:" * 40


@pytest.mark.parametrize("subject", [LOG * 10, TOO_LONG, ""])
def test_text_in_the_place_of_a_name_is_reported(cli: Any, subject: str) -> None:
    done = cli.run("explain", subject)
    assert done.returncode == 2 and "explain nothing-to-explain" in done.stderr
    assert len(done.stderr) < 400
    assert ("pipe text in" in done.stderr) == (subject == LOG * 10)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_pipe_with_a_name_is_read(cli: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(LOG,))
    writer.start()
    done = cli.run("explain", str(pipe))
    writer.join()
    assert "no kernels for the GPU" in done.stdout


@pytest.mark.parametrize("name", ["no/such/folder.json", TOO_LONG])
def test_recording_that_cannot_be_written_is_not_said_to_be(cli: Any, name: str) -> None:
    done = cli.run("doctor", "--record", name)
    assert done.returncode == 1 and "explain file-not-accessible" in done.stderr
    assert "written to" not in done.stdout + done.stderr


def test_recording_takes_no_place_and_tells_where_it_is(cli: Any) -> None:
    place = Path(cli.folder) / "machine.json"
    assert f"written to {place}" in cli.run("doctor", "--record", str(place)).stderr
    before = place.read_bytes()
    done = cli.run("doctor", "--record", str(place))
    assert done.returncode == 2 and "explain recording-exists" in done.stderr
    assert place.read_bytes() == before


def test_recording_of_another_version_is_refused(cli: Any) -> None:
    place = Path(cli.folder) / "newer.json"
    place.write_text('{"recording_version": 2, "machine": {}}')
    done = cli.run("doctor", "--from", str(place))
    assert done.returncode == 2 and "this flatout reads 1" in done.stderr


def test_id_behind_see_is_explained(cli: Any) -> None:
    wrong = cli.run("explain", "wrong-usge")
    assert wrong.returncode == 2 and "did you mean `wrong-usage`?" in wrong.stderr
    # Only as alike as any two names.
    for unlike in ("cuda-error", "run-log.txt"):
        assert "did you mean" not in cli.run("explain", unlike).stderr
    done = cli.run("explain", "nothing-to-explain")
    assert done.returncode == 0 and done.stdout.startswith("nothing-to-explain\n\n**Meaning.**")
    # What it links to is not to be had in a terminal.
    assert "](" not in done.stdout


def test_recording_of_nothing_is_not_said_to_be_well(cli: Any) -> None:
    place = Path(cli.folder) / "empty.json"
    place.write_text('{"recording_version": 1, "machine": {}}')
    done = cli.run("doctor", "--from", str(place))
    assert " ok" not in done.stdout and "not read" in done.stdout
    assert "not everything could be read" in done.stdout


def test_reasons_are_no_wider_than_a_page(cli: Any) -> None:
    shown = cli.run("doctor", "-v").stdout
    assert "not read" in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []
