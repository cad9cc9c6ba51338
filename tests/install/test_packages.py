"""The wheel and the source archive, installed as people do it: pip, uv tool, pipx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatout import __version__

if TYPE_CHECKING:
    from conftest import Person

BIN = "Scripts" if sys.platform == "win32" else "bin"
LIMIT_S = 300


def run(*argv: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Runs a program without input to its end."""
    return subprocess.run(
        [str(one) for one in argv], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=LIMIT_S, check=False, **more,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


@pytest.mark.parametrize("ending", [".whl", ".tar.gz"])
def test_package_when_installed_into_a_fresh_environment(
    built: Path, tmp_path: Path, ending: str
) -> None:
    folder = tmp_path / "environment"
    assert run(sys.executable, "-m", "venv", folder).returncode == 0
    package = next(built.glob(f"flatout-*{ending}"))
    pip = [folder / BIN / "python", "-m", "pip", "--quiet", "install", "--no-index"]
    done = run(*pip, "--find-links", built, package)
    assert done.returncode == 0, done.stderr
    flatout = folder / BIN / "flatout"
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": ""}
    done = run(flatout, "--version", env=environment, cwd=tmp_path)
    assert done.stdout == f"flatout {__version__}\n"
    done = run(flatout, "doctor", "--json", env=environment, cwd=tmp_path)
    assert json.loads(done.stdout)["report_version"] == 1
    reported = json.loads(run(flatout, "self", "--json", env=environment, cwd=tmp_path).stdout)
    assert reported["way"] == "pip" and reported["folder"] == str(folder)


@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_package_when_installed_as_a_tool(
    built: Path, person: Person, wheel: Path, tool: str
) -> None:
    program = shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"needs {tool}")
    environment = person.environment(
        UV_NO_INDEX="1", UV_FIND_LINKS=str(built), UV_OFFLINE="1", PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(built), UV_PYTHON=os.path.realpath(sys.executable),
        PIPX_DEFAULT_PYTHON=os.path.realpath(sys.executable),
    )  # fmt: skip
    environment["PATH"] = f"{Path(program).parent}:{environment['PATH']}"
    words = ("tool", "install") if tool == "uv" else ("install",)
    done = run(program, *words, wheel, env=environment, cwd=person.home)
    assert done.returncode == 0, done.stderr
    reported = json.loads(run(person.launcher, "self", "--json", env=environment).stdout)
    assert reported["way"] == tool
    done = run(person.launcher, "self", "remove", "--yes", env=environment)
    assert done.returncode == 0, done.stderr
    assert not person.launcher.exists()
