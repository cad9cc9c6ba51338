"""`flatout doctor --fix` and `flatout undo` as processes, on a truly broken environment."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("pip") is None, reason="needs pip, or uv, to install")

SRC = Path(__file__).parents[2] / "src"
SITE = "Lib/site-packages" if sys.platform == "win32" else "lib/python{}.{}/site-packages"
# Says what torch says, and works once NumPy is the older one.
TORCH = """
import numpy
if numpy.__version__ >= "2":
    raise ImportError("A module that was compiled using NumPy 1.x cannot be run in\\n"
                      f"NumPy {numpy.__version__} as it may crash.")
class ones(int):
    def __new__(self, number, device): return int.__new__(self, number)
    def __mul__(self, other): return ones(int(self) * other, "")
    sum = lambda self: self
    item = lambda self: int(self)
"""


def numpy_files(version: str) -> dict[str, str]:
    """A NumPy of that version, as it lies in site-packages."""
    info = f"numpy-{version}.dist-info"
    files = {
        "numpy/__init__.py": f"__version__ = {version!r}\n",
        f"numpy/only_in_{version[0]}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: numpy\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{name},sha256={digest.decode()},{len(text.encode())}")
    return {**files, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,", ""])}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="\n")


class Broken:
    """An environment whose torch needs an older NumPy than it has, and a folder of wheels."""

    def __init__(self, cli: Any, folder: Path) -> None:
        import venv

        venv.create(folder / "env", with_pip=False, symlinks=sys.platform != "win32")
        programs = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
        self.cli = cli
        self.root = folder / "env"
        self.python = str(self.root / programs)
        self.site = self.root / SITE.format(*sys.version_info)
        info = "torch-2.9.0.dist-info/METADATA"
        write(self.site, {
            **numpy_files("2.0.0"),
            "torch/__init__.py": TORCH, "torch/version.py": "cuda = '13.0'\n",
            info: "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n",
        })  # fmt: skip
        wheels = folder / "wheels"
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "numpy-1.26.4-py3-none-any.whl", "w") as wheel:
            for name, text in numpy_files("1.26.4").items():
                wheel.writestr(name, text)
        self.variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        if sys.platform != "win32":
            # No uv: it reads other variables.
            self.variables["PATH"] = "/usr/bin:/bin"

    def doctor(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = ("doctor", "--deep", "--fix", "--python", self.python, *arguments)
        done: subprocess.CompletedProcess[str] = self.cli.run(*words, **self.variables)
        return done

    def files(self) -> dict[str, bytes]:
        """All files of the environment but compiled Python."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts and ".flatout" not in path.parts
        }

    def numpy(self) -> str:
        return (self.site / "numpy" / "__init__.py").read_text()


@pytest.fixture
def broken(cli: Any, tmp_path: Path) -> Broken:
    """A broken environment."""
    return Broken(cli, tmp_path)


def test_fault_is_mended_and_put_back(broken: Broken) -> None:
    before = broken.files()
    done = broken.doctor("--yes", "--json")
    reported = json.loads(done.stdout)
    assert "numpy-abi-mismatch" in reported["result"]["gone"], done.stderr
    assert [one["how"] for one in reported["outcomes"]] == ["done"]
    assert reported["outcomes"][0]["id"] == "0001"
    assert "1.26.4" in broken.numpy() and not (broken.site / "numpy/only_in_2.py").exists()
    assert reported["machine"]["environments"][0]["can_use_gpu"] is True
    listed = json.loads(broken.cli.run("undo", "--list", "--json").stdout)
    assert [(one["id"], one["status"]) for one in listed] == [("0001", "done")]
    asked = broken.cli.run("undo")
    assert asked.returncode == 1 and "--yes" in asked.stderr
    assert "the packages of" in asked.stdout
    undone = broken.cli.run("undo", "--yes", "--json")
    assert undone.returncode == 0, undone.stderr
    assert json.loads(undone.stdout)["status"] == "undone"
    assert broken.files() == before
    assert not (broken.root / ".flatout").exists()
    nothing = broken.cli.run("undo", "--yes")
    assert nothing.returncode == 2 and "explain nothing-to-undo" in nothing.stderr


def test_nothing_is_changed_without_being_asked(broken: Broken) -> None:
    before = broken.files()
    for arguments in ((), ("--dry-run", "--yes")):
        done = broken.doctor(*arguments)
        assert done.returncode == 1
        assert "nothing was changed" in done.stderr
        assert "the plan" in done.stdout and "pip install 'numpy<2'" in done.stdout
        plan = done.stdout.partition("the plan")[2].partition("by hand")[0].splitlines()
        assert [line for line in plan if len(line) > 80 and str(broken.root) not in line] == []
    assert broken.files() == before
    assert not (broken.cli.state / "changes" / "0001").exists()


def test_failure_is_reported_and_leaves_the_environment(broken: Broken) -> None:
    before = broken.files()
    broken.variables["PIP_FIND_LINKS"] = str(broken.root / "nowhere")
    done = broken.doctor("--yes")
    assert done.returncode == 1
    assert "failed" in done.stderr and "No matching distribution" in done.stderr
    assert "explain step-failed" in done.stderr
    assert broken.files() == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_person_is_asked_on_a_terminal(broken: Broken) -> None:
    import pty

    ours, theirs = pty.openpty()
    cli = broken.cli
    start = f"import sys; sys.path.insert(0, {str(SRC)!r}); import flatout.__main__ as m; m.main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", start, "doctor", "--deep", "--fix", "--python", broken.python],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=cli.environment(**broken.variables), cwd=cli.folder,
    )  # fmt: skip
    os.write(ours, b"y\n" + b"n\n" * 5)
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "Apply safe fixes" in output
    assert "1.26.4" in broken.numpy(), output
    assert "numpy-abi-mismatch" in output.partition("after the fix")[2]


def test_fix_needs_this_machine(cli: Any, tmp_path: Path) -> None:
    for option in (("--from", "x.json"), ("--record", str(tmp_path / "x")), ("--sarif",)):
        done = cli.run("doctor", "--fix", *option)
        assert done.returncode == 2 and "explain fix-needs-this-machine" in done.stderr
    assert not (tmp_path / "x").exists()


def test_undo_says_what_there_is(cli: Any) -> None:
    assert "has changed nothing" in cli.run("undo", "--list").stderr
    assert cli.run("undo").returncode == 2
    assert "no effect" in cli.run("undo", "--list", "--force").stderr
    done = cli.run("undo", "7")
    assert done.returncode == 2 and "explain no-such-change" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a lock is not inherited there")
def test_packages_are_put_back_when_killed_while_they_change(broken: Broken) -> None:
    before = broken.files()
    code = f"""
from flatout.system.changes.apply import apply
from flatout.schema.plan import *
action = InstallPackages(python={broken.python!r}, words=("install", "numpy<2"))
step = PlanStep(text="install", action=action, changes="")
list(apply(Plan(goal="", steps=(step,))))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=broken.cli.environment(PYTHONPATH=str(SRC), **broken.variables),
    )
    kept = broken.root / ".flatout"
    while process.poll() is None and not list(kept.glob("*/manifest.json")):
        time.sleep(0.01)
    # pip may have begun to replace files, or not.
    time.sleep(random.uniform(0, 2))
    process.kill()
    process.wait()
    # It waits for pip, which goes on; not for ever.
    for _ in range(600):
        done = broken.cli.run("undo", "--yes")
        if "explain changes-under-way" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert broken.files() == before
    assert not kept.exists()
