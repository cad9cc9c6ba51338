"""quickstart in a checkout of its own, with a stand-in for the environment's interpreter."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")

INSTALL = "-m pip install --no-compile"
# Writes down what it is asked for. Packages named in the file `missing` cannot be installed.
STAND_IN = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/asked"
case "$*" in
  "-m pip --version") echo "pip 24.0 from here" ;;
  "-m pip install "*)
    for name in $(cat "$here/missing"); do
      case "$*" in "-m pip install --no-compile $name"*) echo "ERROR: no $name"; exit 1 ;; esac
    done ;;
  -c*) [ -f "$here/no-torch" ] && rm "$here/no-torch" && exit 1
       echo "cpu torch computes on the CPU" ;;
  "-m flatout "*) echo "started: $*" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("scripts", "src/flatout/compat", "src/flatout/schema"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "src/flatout/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    (folder / "missing").touch()
    (folder / "no-torch").touch()
    (folder / "python").write_text(STAND_IN)
    (folder / "python").chmod(0o755)
    return tmp_path


def quickstart(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, checkout / "scripts" / "quickstart", "--cpu", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=60,
        check=False,
    )


def asked(checkout: Path) -> list[str]:
    path = checkout / ".venv" / "bin" / "asked"
    lines = path.read_text().splitlines()
    path.unlink()
    return [line for line in lines if line.startswith("-m")]


def test_quickstart_when_all_can_be_had(checkout: Path) -> None:
    done = quickstart(checkout, "--epochs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert asked(checkout) == [
        "-m pip --version",
        f"{INSTALL} --editable .",
        f"{INSTALL} torch==2.13.0+cpu",
        "-m flatout train digits --epochs 2",
    ]
    assert "started: -m flatout train digits --epochs 2" in done.stdout
    # What will be downloaded, and the free disk, before anything is.
    assert done.stdout.index("download") < done.stdout.index("install")


def test_quickstart_when_nothing_changed_since(checkout: Path) -> None:
    quickstart(checkout)
    asked(checkout)
    assert quickstart(checkout).returncode == 0
    assert asked(checkout) == ["-m flatout train digits"]


def test_quickstart_when_a_torch_is_there_that_works(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "no-torch").unlink()
    assert quickstart(checkout).returncode == 0
    assert not any("torch" in line for line in asked(checkout))


def test_quickstart_when_there_is_no_cpu_build(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "missing").write_text("torch==2.13.0+cpu")
    done = quickstart(checkout)
    assert done.returncode == 1
    assert "error: the CPU build of torch could not be installed." in done.stderr
    assert "--allow-cuda-build" in done.stderr
    assert "comes with gigabytes of CUDA packages" in done.stdout
    index = "https://download.pytorch.org/whl/cpu"
    assert asked(checkout)[-1] == f"{INSTALL} torch==2.13.0+cpu --extra-index-url={index}"


def test_quickstart_when_a_large_build_is_allowed(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "missing").write_text("torch==2.13.0+cpu")
    assert quickstart(checkout, "--allow-cuda-build").returncode == 0
    *_, installed, started = asked(checkout)
    assert installed == f"{INSTALL} torch==2.13.0"
    assert started == "-m flatout train digits"


def test_quickstart_when_it_was_cut_short(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "missing").write_text("--editable")
    done = quickstart(checkout)
    assert done.returncode == 1
    assert "flatout could not be installed" in done.stderr
    assert "ERROR: no --editable" in done.stderr
    asked(checkout)
    (checkout / ".venv" / "bin" / "missing").write_text("")
    assert quickstart(checkout).returncode == 0
    assert f"{INSTALL} --editable ." in asked(checkout)


@pytest.mark.parametrize("left_over", ["unfinished", "pyvenv.cfg"])
def test_quickstart_when_the_environment_is_half_made(checkout: Path, left_over: str) -> None:
    venv = checkout / ".venv"
    shutil.rmtree(venv)
    (venv / "lib" / "torn").mkdir(parents=True)
    (venv / left_over).touch()
    with subprocess.Popen(
        [sys.executable, checkout / "scripts" / "quickstart", "--cpu"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert any("recreating it" in line for line in process.stdout)
        until_s = time.monotonic() + 120
        while (venv / "lib" / "torn").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        # Making it takes seconds and is not needed to see that what was torn has gone.
        os.killpg(process.pid, signal.SIGKILL)
    assert not (venv / "lib" / "torn").exists()
    assert (venv / "unfinished").exists()


@pytest.mark.parametrize(
    ("content", "problem"), [("notes", "is not a Python environment"), ("Scripts", "Windows")]
)
def test_quickstart_when_the_folder_is_somebody_elses(
    checkout: Path, content: str, problem: str
) -> None:
    shutil.rmtree(checkout / ".venv")
    (checkout / ".venv" / content).mkdir(parents=True)
    done = quickstart(checkout)
    assert done.returncode == 1
    assert problem in done.stderr
    assert (checkout / ".venv" / content).exists()
