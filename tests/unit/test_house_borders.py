"""What no module outside the engine may load, and which files use the outside world."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
HEAVY = ("torch", "numpy", "tensorflow", "paddle", "jax", "keras", "ray", "dask")
# An experiment is described, and checked, where there is no torch.
LIGHT_ENGINE = ("flatout.engine", "flatout.engine.experiment")
RICH_USERS = "flatout/cli/render/"

# "file: what it uses" -> why it may touch the world although it is not in system/.
_COMPLETION = "a shell asks for completions by variables, and waits: nothing else may be loaded"
_TENSOR_FILES = "tensor files are made by safetensors, which needs torch, so not in system/"
_OWN_DATA = "reads its data as a person's own file would"
_TEMPLATE = "a template that belongs to the package"
_HOOK = "runs in a program's own Python, without flatout"
_RANKS = "variables say which rank a process is, as torchrun has it"
# Files of other packages whose purpose is a part of the outside world, as in system/.
WORLD_FILES: dict[str, str] = {
    "flatout/cluster/compose/cluster_folder.py": "a cluster's folder",
    "flatout/cluster/compose/docker.py": "docker and docker compose",
    "flatout/cluster/compose/node_report.py": "runs inside a node, and reports about it",
    "flatout/cluster/node_end.py": "runs inside a node, and waits for processes to end",
    "flatout/cluster/node_job.py": "docker exec",
    "flatout/cluster/node_processes.py": "the processes of a script on several nodes",
    "flatout/cluster/ray_jobs.py": "Ray's Jobs API",
    "flatout/cluster/ray_script_nodes.py": "Ray's Jobs API",
    "flatout/runs/experiment_source.py": "experiment files",
    "flatout/runs/scaffold/inspect_data.py": "the first bytes of a person's data",
    "flatout/setup/flatout/installation.py": "how flatout was installed",
    "flatout/setup/packages/flatout_wheel.py": "flatout's own files",
    "flatout/setup/packages/installed_packages.py": "an environment's metadata",
    "flatout/setup/packages/installers.py": "uv, pip and conda",
    "flatout/setup/packages/micromamba.py": "the micromamba that was downloaded",
    "flatout/setup/packages/uv.py": "uv, as pip downloads it",
    "flatout/setup/packages/wheel_store.py": "downloaded wheels",
}
WORLD_EXCEPTIONS: dict[str, str] = {
    "flatout/engine/serve/program_model.py: os.environ": "torch's switch against unpickling",
    "flatout/engine/launch/ray_script_nodes.py: import subprocess": "the script of a node",
    "flatout/engine/launch/local.py: import subprocess": "starts the ranks of a run",
    "flatout/engine/launch/local.py: os.environ": _RANKS,
    "flatout/engine/launch/job.py: os.environ": _RANKS,
    "flatout/engine/launch/torchrun.py: os.environ": _RANKS,
    "flatout/engine/launch/ray.py: import subprocess": "starts the ranks of a run",
    "flatout/engine/launch/ray.py: open": "the log of a run, on the node of its rank",
    "flatout/engine/launch/ray.py: os.environ": _RANKS,
    "flatout/engine/ranks/rank_env.py: os.environ": _RANKS,
    "flatout/engine/ranks/listen_socket.py: os.environ": _RANKS,
    "flatout/engine/training/worker.py: open": "the log of a rank, whoever has started it",
    "flatout/engine/profile/hook/sitecustomize.py: open": _HOOK,
    "flatout/engine/profile/hook/sitecustomize.py: os.environ": _HOOK,
    "flatout/engine/training/checkpoints.py: open": _TENSOR_FILES,
    "flatout/engine/training/checkpoints.py: read_bytes": _TENSOR_FILES,
    "flatout/engine/data/texts.py: open": "reads a person's own data, piece by piece",
    "flatout/engine/session/load_experiment.py: read_bytes": "compares the file with its checksum",
    "flatout/engine/tensors/safetensors_file.py: open": _TENSOR_FILES,
    "flatout/cli/main.py: os.environ": _COMPLETION,
    "flatout/cli/shell_completion.py: os.environ": _COMPLETION,
    "flatout/experiments/_pictures.py: read_bytes": _OWN_DATA,
    "flatout/experiments/_prompts.py: read_text": _OWN_DATA,
    "flatout/experiments/bert_large.py: read_bytes": _OWN_DATA,
    "flatout/experiments/charlm.py: read_bytes": _OWN_DATA,
    "flatout/experiments/gpt3_small.py: read_bytes": _OWN_DATA,
    "flatout/experiments/mlp.py: open": _OWN_DATA,
    "flatout/bench/report.py: read_text": _TEMPLATE,
    "flatout/engine/bench/programs/training_program.py: import time": "runs without flatout",
    "flatout/runs/profile_page.py: read_text": _TEMPLATE,
    "flatout/serve/load_generator.py: open": "a record of every request, between two of them",
    "flatout/serve/load_report.py: read_text": _TEMPLATE,
    "flatout/web/texts.py: read_text": _TEMPLATE,
    "flatout/runs/scaffold/piece.py: read_text": _TEMPLATE,
    "flatout/setup/host/windows_script.py: read_text": _TEMPLATE,
    "flatout/compat/tables.py: open": "tables, read before msgspec is there",
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
    assert "flatout.schema.recipe" in names
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
    assert not [name for name in users if not name.startswith(RICH_USERS)]


def test_only_the_edge_touches_the_world() -> None:
    touching = {
        name: used & _WORLD
        for name, used in _used_by_file().items()
        if used & _WORLD and not name.startswith("flatout/system/")
    }
    assert WORLD_FILES.keys() - touching.keys() == set(), "an exception that is no longer needed"
    found = {
        f"{name}: {what}"
        for name, used in touching.items()
        if name not in WORLD_FILES
        for what in used
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
def test_uses_when_a_rule_is_broken(source: str, what: str) -> None:
    assert what in set(uses(source))


def test_no_package_of_the_engine_hides_a_public_function() -> None:
    # `flatout.engine.train` is a function: a package of that name would take its place.
    packages = {path.name for path in (SRC / "flatout" / "engine").iterdir() if path.is_dir()}
    assert (
        packages & {"train", "tune", "load", "dry_run", "schedules", "dataset", "confusion"}
        == set()
    )


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
    assert [one for one in found if not one.startswith("flatout/setup/env/export.py")] == []


def test_modules_run_from_anywhere_when_isolated_or_not() -> None:
    assert list(modules_run_from_anywhere("a = [python, '-m', 'pip']\nb = (p, '-I', '-m', 'pip')"))
    assert not list(modules_run_from_anywhere("b = (p, '-P', '-X', 'dev', '-m', 'pip')"))
