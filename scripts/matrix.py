"""Environments at the ends of the supported range of Python and torch, and their tests.

Each has the build of torch that pip installs by default, on Linux a CUDA build, which also runs on
a CPU. They are created once, in `.cache/matrix`, and reused.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkout import CACHE, LOG, ROOT, run
from disk import show_and_check
from environment import project_requirements, requirements_of
from progress import Problem, bytes_text, say

from flatout.compat.tables import shipped_tables
from flatout.compat.torch_builds import disk_bytes
from flatout.schema.versions import numbers

PLACE = CACHE / "matrix"
OLDEST_TORCH = "2.11.0"
# What the tests need from the `dev` extra, without the tools of the static checks.
_TOOLS = ("pytest", "pytest-xdist", "hypothesis", "pillow", "pyarrow", "matplotlib")
# Files that import torch or the engine but are not run, with reasons.
LEFT_OUT = {
    "test_busy_machine.py": "measures time",
    "test_data_csv.py": "reads files",
    "test_data_images.py": "reads files",
    "test_data_samples.py": "reads files",
    "test_data_tables.py": "reads files",
    "test_data_texts.py": "reads files",
    "test_huggingface.py": "needs transformers",
    "test_measuring.py": "measures time",
    "test_new.py": "writes experiments from templates",
    "test_new_predict.py": "writes experiments from templates",
    "test_ranks.py": "starts and kills processes for minutes",
    "test_trial.py": "measures time",
    "test_tune.py": "measures time",
    "test_tune_bad_input.py": "measures time",
    "test_tune_memory.py": "measures time",
}
# Tests to run from files that are left out.
MORE = ("test_ranks.py::test_ranks_give_what_one_gives",)

_FIND = """
import json, sys
from flatout.system.pythons import find_python
from flatout.setup.packages.uv import find_uv
print(json.dumps({"python": find_python(sys.argv[1]), "uv": find_uv()}))
"""
_PROOF = """
import torch
assert (torch.ones(8) * 2).sum().item() == 16
print(torch.__version__)
"""
# A download speed that most connections reach, and the time for unpacking.
_BYTES_PER_S = 20e6
_UNPACKING_S = 60


@dataclass(frozen=True, kw_only=True)
class End:
    """An end of the range. python: like `3.12`; torch: like `2.11.0`."""

    python: str
    torch: str

    @property
    def name(self) -> str:
        """Its name in `--matrix=` and of its folder."""
        return f"py{self.python.replace('.', '')}-torch{self.torch}"

    @property
    def folder(self) -> Path:
        """The folder of its environment."""
        return PLACE / self.name

    @property
    def interpreter(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def ends() -> tuple[End, ...]:
    """Every supported Python: older ones with the oldest torch, newer ones with the newest."""
    newest = newest_torch()
    return (
        End(python="3.11", torch=OLDEST_TORCH),
        End(python="3.12", torch=OLDEST_TORCH),
        End(python="3.13", torch=newest),
        End(python="3.14", torch=newest),
    )


def newest_torch() -> str:
    """The newest release in flatout's tables."""
    found = {
        one.version
        for one in shipped_tables().builds
        if one.framework == "torch" and not one.is_nightly
    }
    return max(found, key=numbers)


def chosen(text: str) -> tuple[End, ...]:
    """The ends named in a text like `py312-torch2.11,py313-torch2.15.0`; all, if it is empty.

    Raises:
        Problem: a word names no Python and torch.
    """
    found = []
    for word in filter(None, text.split(",")):
        named = re.fullmatch(r"py3(\d+)-torch(\d+\.\d+(?:\.\d+)?)", word)
        if named is None:
            raise Problem(
                f"`{word}` does not name a Python and a torch.",
                fix=f"name them as in --matrix={ends()[0].name},{ends()[-1].name}",
            )
        near = [end for end in ends() if f"{end.name}.".startswith(f"{word}.")]
        found += near or [End(python=f"3.{named[1]}", torch=named[2])]
    return tuple(dict.fromkeys(found)) or ends()


def tests() -> list[str]:
    """Files in tests/integration that import torch or the engine, without LEFT_OUT, plus MORE."""
    folder = ROOT / "tests" / "integration"
    files = [
        path.name
        for path in sorted(folder.glob("test_*.py"))
        if path.name not in LEFT_OUT and _imports_the_engine(path)
    ]
    return [f"tests/integration/{name}" for name in (*files, *MORE)]


def find_interpreters(wanted: Sequence[End], asked: Path) -> dict[End, str | Problem]:
    """For each end its own Python, or one to create its environment with, or why there is none.

    asked: the Python in which flatout is installed, which finds interpreters.
    """
    found: dict[str, str | Problem] = {}
    for end in wanted:
        if end.python not in found and not _is_made(end):
            try:
                found[end.python] = _find_interpreter(end.python, asked)
            except Problem as problem:
                found[end.python] = problem
    return {end: str(end.interpreter) if _is_made(end) else found[end.python] for end in wanted}


def show_sizes(wanted: Sequence[End]) -> None:
    """Shows what must still be downloaded for these ends, and how long it takes.

    Raises:
        Problem: there is not enough disk space.
    """
    todo = [end for end in wanted if not _is_made(end)]
    if todo:
        download_bytes = sum(_download_bytes(end) for end in todo)
        minutes = (download_bytes / _BYTES_PER_S + len(todo) * _UNPACKING_S) / 60
        say("matrix", f"creating {', '.join(end.name for end in todo)}")
        say("", f"about {minutes:.0f} min at {bytes_text(_BYTES_PER_S)}/s; once, in {_shown()}")
        show_and_check(download_bytes, disk_bytes(download_bytes))


def make(end: End, python: str) -> str:
    """Creates its environment with that Python unless it exists; returns its torch's version.

    Raises:
        Problem: it cannot be created, or its torch does not run.
    """
    if not _is_made(end):
        _stamp(end).unlink(missing_ok=True)
        bare = run(
            "matrix", f"{end.name}: bare environment", [python, "-m", "venv", "--clear", end.folder]
        )
        install = ["-m", "pip", "install", "--no-compile", *_wanted(end)]
        done = (
            run("matrix", f"{end.name}: packages", [end.interpreter, *install])
            if bare.exit_code == 0
            else bare
        )
        if done.exit_code != 0:
            raise Problem(
                f"cannot create the environment {end.name}.",
                because=done.last_error(),
                fix=f"see {LOG}, fix the cause, then run this again",
            )
    proof = run("matrix", f"{end.name}: torch computes", [end.interpreter, "-c", _PROOF])
    if proof.exit_code != 0:
        raise Problem(
            f"the torch of {end.name} does not run.",
            because=proof.last_error(),
            fix=f"see {LOG}; or delete {end.folder} and run this again",
        )
    _stamp(end).write_text(json.dumps(_wanted(end)), encoding="utf-8")
    return proof.output.strip().splitlines()[-1]


def held_text() -> str:
    """The folder of the environments, and their size."""
    num_bytes = sum(
        path.lstat().st_size for path in PLACE.rglob("*") if path.is_file() or path.is_symlink()
    )
    return f"{_shown()} takes {bytes_text(num_bytes)}; deleted environments are recreated"


def _find_interpreter(version: str, asked: Path) -> str:
    def ask() -> dict[str, str | None]:
        done = run("python", version, [asked, "-c", _FIND, version])
        found: dict[str, str | None] = json.loads(done.output) if done.exit_code == 0 else {}
        return found

    found = ask()
    python, uv = found.get("python"), found.get("uv")
    if python is None and uv is not None:
        done = run("python", f"{version} by uv", [uv, "python", "install", version])
        named = run("python", f"{version} by uv", [uv, "python", "find", version])
        if named.exit_code == 0:
            return named.output.strip().splitlines()[-1]
        raise Problem(
            f"Python {version} is not installed, and uv could not download it.",
            because=done.last_error(),
            fix="install it",
        )
    if python is None:
        raise Problem(
            f"Python {version} is not installed, and there is no uv to download it.",
            fix="install it, or uv: python3 -m pip install uv",
        )
    return python


def _imports_the_engine(path: Path) -> bool:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return any(f"{name}.".startswith(("torch.", "flatout.engine.")) for name in names)


def _wanted(end: End) -> list[str]:
    """The packages for pip; flatout itself from this checkout, so that this code is tested."""
    tools = [line for line in requirements_of(["dev"]) if re.split(r"[^\w-]", line)[0] in _TOOLS]
    return [f"--editable={ROOT}", f"torch=={end.torch}", *project_requirements(), *tools]


def _is_made(end: End) -> bool:
    stamp = _stamp(end)
    return (
        end.interpreter.exists()
        and stamp.exists()
        and stamp.read_text(encoding="utf-8") == json.dumps(_wanted(end))
    )


def _stamp(end: End) -> Path:
    return end.folder / "flatout.json"


def _download_bytes(end: End) -> int:
    known = [
        one.download_bytes or 0
        for one in shipped_tables().builds
        if one.framework == "torch" and numbers(one.version) == numbers(end.torch)
    ]
    # One that is not in the tables is assumed to be as large as the largest one.
    return max(known, default=0) or max(
        one.download_bytes or 0 for one in shipped_tables().builds if one.framework == "torch"
    )


def _shown() -> str:
    return str(PLACE.relative_to(ROOT))
