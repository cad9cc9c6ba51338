"""A package index of small fake wheels in a folder, and a JAX that only gives expected answers."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from flatout.compat.fit import BuildRequest, Target
from flatout.compat.solve import solve
from flatout.compat.tables import shipped_tables
from flatout.schema.versions import Pair
from flatout.setup.env.smoke_test import EXPECTED

# Stands for a framework: it answers in its place as soon as it is imported.
ANSWER = f"""
import json, os, sys
sys.stdin.read()
print(json.dumps({{"version": "made up", "cpu": {list(EXPECTED)}}}), flush=True)
os._exit(0)
"""


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()
) -> Path:
    """Writes a wheel for every system, with a page of its own in the index."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{file},{_record(text)},{len(text.encode())}\n" for file, text in contents.items()]
    page = folder / name
    page.mkdir(parents=True, exist_ok=True)
    path = page / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(lines) + f"{info}/RECORD,,\n")
    _write_page(page)
    return path


def add_to_index(folder: Path, wheel: Path) -> None:
    """Adds a real wheel to its page of an index, without a copy if possible."""
    name = re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
    page = folder / name
    page.mkdir(parents=True, exist_ok=True)
    (page / wheel.name).unlink(missing_ok=True)
    try:
        os.link(wheel, page / wheel.name)
    except OSError:
        shutil.copyfile(wheel, page / wheel.name)
    _write_page(page)


def _write_page(page: Path) -> None:
    links = "".join(
        f'<a href="{one.name}#sha256={_sha256(one)}">{one.name}</a>\n'
        for one in sorted(page.glob("*.whl"))
    )
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")


def make_index(
    folder: Path, python: Pair | None = None, *, version: str | None = None, has_pip: bool = True
) -> str:
    """An index with the JAX that is chosen for a CPU, and what every environment needs.

    Args:
        folder: its subfolder `simple` becomes the index.
        python: the Python to choose for (default: that of the tests).
        version: of that JAX (default: the chosen one).
        has_pip: include a fake pip.
    """
    index = folder / "simple"
    version = version or jax_version(python)
    filler = {f"jaxlib/part_{number}.py": "x = 1\n" * 500 for number in range(40)}
    write_wheel(index, "jax", version, {"jax/__init__.py": ANSWER}, ("jaxlib",))
    write_wheel(index, "jaxlib", version, {"jaxlib/__init__.py": "", **filler})
    if has_pip:
        write_wheel(index, "pip", "99.0", {"pip/__init__.py": ""})
    return index.as_uri()


def jax_version(python: Pair | None = None, versions: str = "") -> str:
    """The version of JAX that the tables choose for a Python (default: that of the tests)."""
    python = python or (sys.version_info[0], sys.version_info[1])
    target = Target(os="linux", machine=platform.machine())
    wish = BuildRequest(framework="jax", versions=versions, python=python, is_cpu=True)
    answer = solve(target, wish, shipped_tables())
    assert answer.choice is not None
    return answer.choice.version


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
