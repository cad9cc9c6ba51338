"""The walls of the house: what no module outside the engine may load, and who touches the world."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
HEAVY = ("torch", "numpy", "tensorflow", "paddle", "jax", "ray", "dask")
# An experiment is described, and checked, where there is no torch.
LIGHT_ENGINE = ("flatout.engine", "flatout.engine.experiment")
RICH_USERS = {
    f"flatout/cli/{name}.py"
    for name in (
        "control_characters", "live", "show", "show_cluster", "show_docs", "show_doctor",
        "show_environments", "show_fix",
        "show_groundwork", "show_repair", "show_results", "show_runs",
        "show_setup", "show_tune", "show_upkeep", "tables",
    )
}  # fmt: skip

# "file: what it uses" -> why it may touch the world although it is not in system/.
_COMPLETION = "a shell asks for completions by variables, and waits: nothing else may be loaded"
_TENSOR_FILES = "tensor files are made by safetensors, which needs torch, so not in system/"
_OWN_DATA = "reads its data as a person's own file would"
_RANKS = "variables say which rank a process is, as torchrun has it"
WORLD_EXCEPTIONS: dict[str, str] = {
    "flatout/engine/trial.py: import subprocess": "a trial starts copies of its own process",
    "flatout/engine/nodes_on_ray.py: import subprocess": "starts the script where Ray has put it",
    "flatout/engine/beside.py: import subprocess": "a trial starts a copy of its own process",
    "flatout/engine/aside.py: import subprocess": "asks what could take its process along",
    "flatout/engine/launch/local.py: import subprocess": "starts the ranks of a run",
    "flatout/engine/launch/local.py: os.environ": _RANKS,
    "flatout/engine/launch/job.py: os.environ": _RANKS,
    "flatout/engine/launch/torchrun.py: os.environ": _RANKS,
    "flatout/engine/launch/ray.py: import subprocess": "starts the ranks of a run",
    "flatout/engine/launch/ray.py: open": "the log of a run, on the node of its rank",
    "flatout/engine/launch/ray.py: os.environ": _RANKS,
    "flatout/engine/place.py: os.environ": _RANKS,
    "flatout/engine/listening.py: os.environ": _RANKS,
    "flatout/engine/worker.py: open": "the log of a rank, whoever has started it",
    "flatout/engine/checkpoint.py: open": _TENSOR_FILES,
    "flatout/engine/checkpoint.py: read_bytes": _TENSOR_FILES,
    "flatout/engine/data/texts.py: open": "reads a person's own data, piece by piece",
    "flatout/engine/loading.py: read_bytes": "compares the experiment's file with its checksum",
    "flatout/engine/tensor_file.py: open": _TENSOR_FILES,
    "flatout/cli/main.py: os.environ": _COMPLETION,
    "flatout/cli/completing.py: os.environ": _COMPLETION,
    "flatout/experiments/_pictures.py: read_bytes": _OWN_DATA,
    "flatout/experiments/_prompts.py: read_text": _OWN_DATA,
    "flatout/experiments/bert_large.py: read_bytes": _OWN_DATA,
    "flatout/experiments/charlm.py: read_bytes": _OWN_DATA,
    "flatout/experiments/gpt3_small.py: read_bytes": _OWN_DATA,
    "flatout/experiments/mlp.py: open": _OWN_DATA,
    "flatout/setup/tables.py: open": "its own tables, which the first script reads without msgspec",
}

_REPORT = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
heavy = sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1].split(",")))
print(",".join(heavy))
"""


def module_names() -> list[str]:
    """Every module that must load without a framework."""
    names = [
        ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((SRC / "flatout").rglob("*.py"))
    ]
    behind = ("flatout.engine", "flatout.experiments")
    outside = [name for name in names if not name.startswith(behind)]
    return [*outside, *LIGHT_ENGINE]


def heavy_after_import(names: list[str]) -> str:
    """What of HEAVY a fresh interpreter holds after importing these; an error's end if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", _REPORT, ",".join(HEAVY), *names],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr[-400:]


def test_no_module_outside_the_engine_loads_a_framework() -> None:
    names = module_names()
    assert "flatout.nouns.recipe" in names
    # One interpreter for all is quick; only when it finds something is each asked by itself.
    if heavy_after_import(names):
        found = {name: heavy_after_import([name]) for name in names}
        pytest.fail("\n".join(f"{name}: {text}" for name, text in found.items() if text))


def test_heavy_after_import_when_there_is_something() -> None:
    assert heavy_after_import(["numpy"]) == "numpy"
    assert "No module named 'flatout.nowhere'" in heavy_after_import(["flatout.nowhere"])


def uses(source: str) -> Iterator[str]:
    """What of the world a source file reaches for, and every package it imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {item.name.partition('.')[0]}" for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"import {(node.module or '').partition('.')[0]}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "open":
                yield "open"
        elif isinstance(node, ast.Attribute):
            if node.attr in ("environ", "getenv", "system", "popen") and _is_os(node.value):
                yield f"os.{node.attr}"
            elif node.attr in ("read_text", "read_bytes", "write_text", "write_bytes"):
                yield node.attr


def _is_os(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "os"


_WORLD = {
    "import subprocess", "import time", "open", "os.environ", "os.getenv", "os.system", "os.popen",
    "read_text", "read_bytes", "write_text", "write_bytes",
}  # fmt: skip


@functools.cache
def _used_by_file() -> dict[str, set[str]]:
    return {
        path.relative_to(SRC).as_posix(): set(uses(path.read_text(encoding="utf-8")))
        for path in sorted((SRC / "flatout").rglob("*.py"))
    }


def test_only_what_shows_imports_rich() -> None:
    users = {name for name, used in _used_by_file().items() if "import rich" in used}
    assert users <= RICH_USERS


def test_only_system_touches_the_world() -> None:
    found = {
        f"{name}: {what}"
        for name, used in _used_by_file().items()
        if not name.startswith("flatout/system/")
        for what in used & _WORLD
    }
    assert found - WORLD_EXCEPTIONS.keys() == set()
    assert WORLD_EXCEPTIONS.keys() - found == set(), "an exception that is no longer needed"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("from time import sleep", "import time"),
        ("def f():\n    import subprocess", "import subprocess"),
        ("with open('a') as file: pass", "open"),
        ("import os\nos.environ['A'] = '1'", "os.environ"),
        ("Path('a').read_text()", "read_text"),
        ("from rich.console import Console", "import rich"),
    ],
)
def test_uses_when_a_wall_is_broken(source: str, what: str) -> None:
    assert what in set(uses(source))


def test_the_engine_uses_of_system_what_is_told() -> None:
    graph = grimp.build_graph("flatout", exclude_type_checking_imports=True, cache_dir=None)
    reached = graph.find_upstream_modules("flatout.engine", as_package=True)
    reached |= graph.find_upstream_modules("flatout.experiments", as_package=True)
    prefix = "flatout.system."
    used = {name.removeprefix(prefix) for name in reached if name.startswith(prefix)}
    pages = (SRC.parent / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in pages if line.startswith("| `engine` (beside) |")]
    told = row.rpartition("of system: ")[2].removesuffix(" |").split(", ")
    assert sorted(used) == told


def modules_run_from_anywhere(source: str) -> Iterator[int]:
    """Lines of commands `python -m ...` that would import from the current folder, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple):
            words = [one.value for one in node.elts if isinstance(one, ast.Constant)]
            if "-m" in words and not {"-I", "-P"} & set(words[: words.index("-m")]):
                yield node.lineno


def test_no_module_is_run_with_the_current_folder_on_its_path() -> None:
    # `pip.py` in a folder that somebody has downloaded would be run by `flatout setup` in it.
    found = [
        f"{path.relative_to(SRC).as_posix()}:{line}"
        for path in sorted((SRC / "flatout").rglob("*.py"))
        for line in modules_run_from_anywhere(path.read_text(encoding="utf-8"))
    ]
    # The command of a Jupyter kernel, which Jupyter starts in the notebook's folder, as it does.
    assert [one for one in found if not one.startswith("flatout/setup/export.py")] == []


def test_modules_run_from_anywhere_when_isolated_or_not() -> None:
    assert list(modules_run_from_anywhere("a = [python, '-m', 'pip']\nb = (p, '-I', '-m', 'pip')"))
    assert not list(modules_run_from_anywhere("b = (p, '-P', '-X', 'dev', '-m', 'pip')"))
