"""Ray and Dask make the same shards as this machine's own processes, byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
LIMIT_S = 240


def ingest(folder: Path, dest: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", "ingest", "in", dest, "--workers", "2", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def write_tables(folder: Path) -> None:
    (folder / "in").mkdir()
    for file in range(3):
        rows = [f"{row},{row % 7}" for row in range(file * 100, file * 100 + 100)]
        (folder / f"in/{file}.csv").write_text(
            "\n".join(["row,day", *rows, "one too many,1,2", ""])
        )


def everything_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".ingest" not in path.parts
    }


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_shards_are_the_same_whoever_makes_them(
    engine: str, package: str, tmp_path: Path, interpreter_with: Callable[[str], str]
) -> None:
    python = interpreter_with(package)
    write_tables(tmp_path)
    here = ingest(tmp_path, "here", "--python", python)
    assert here.returncode == 0, here.stderr
    there = ingest(tmp_path, "there", "--on", engine, "--python", python)
    assert there.returncode == 0, there.stderr
    assert everything_in(tmp_path / "here") == everything_in(tmp_path / "there")
    assert "3 rejected" in there.stderr


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_head_that_does_not_answer(
    engine: str, package: str, tmp_path: Path, interpreter_with: Callable[[str], str]
) -> None:
    python = interpreter_with(package)
    write_tables(tmp_path)
    # Port 1 is nobody's.
    done = ingest(
        tmp_path, "out", "--on", engine, "--python", python, "--address", "127.0.0.1:1", "--json"
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["error"]["rule"] == "scheduler-not-reachable"


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_environment_without_the_engine(engine: str, package: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    probe = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True)
    if probe.returncode == 0:
        pytest.skip(f"{package} is here; this is about an environment without it")
    done = ingest(tmp_path, "out", "--on", engine)
    assert done.returncode == 2
    assert f"pip install 'flatout[{engine}]'" in done.stderr
