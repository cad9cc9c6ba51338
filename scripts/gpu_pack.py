"""A folder of wheels and data for a GPU machine without a network; the wheels need no pip.

Such a machine may have torch but no network. Wheels are zip files: those of missing packages are
unpacked and added to a virtual environment that also sees the packages of its Python. So every
process that a test or a benchmark starts finds them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkout import CACHE, ROOT, run
from environment import project_requirements, requirements_of
from progress import Problem, say

from flatout.schema.versions import numbers

PACK = CACHE / "gpu-pack"
DATA = PACK / "data"
LIMIT_BYTES = 60 * 2**20
# pip's platform tags for the wheels: Linux on x86-64, with glibc 2.28 or newer.
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# Includes what tests/gpu and the models of two goals need, but not torch, which must fit the
# machine's driver.
_MORE = ("pytest>=8.3", "hypothesis>=6.112")
_EXTRAS = ("language",)
_DATA_SETS = ("mnist", "tinyshakespeare")
# Dependencies that are needed only for downloads.
_UNUSED = ("hf_xet",)

_FACTS = """
import importlib.metadata, json, site, sysconfig
held = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
folders = list(dict.fromkeys(folders))
held = {name: version for name, version in held.items() if name}
print(json.dumps({"held": held, "folders": folders}))
"""


def pack(python: str) -> Path:
    """Downloads the wheels for that version of Python on Linux; returns their folder.

    Raises:
        Problem: one is not available, or the pack is too large.
    """
    if PACK.exists():
        # Files unpacked for this machine do not fit the other.
        shutil.rmtree(PACK)
    PACK.mkdir(parents=True)
    for name in _DATA_SETS:
        shutil.copytree(_data_set(name, os.environ), DATA / name, copy_function=shutil.copyfile)
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    done = run(
        "download",
        f"wheels for Linux and Python {python}",
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
            f"--python-version={python}", *platforms, "--dest", PACK,
            *_requirements(),
        ],
    )  # fmt: skip
    if done.exit_code != 0:
        raise Problem(
            "the wheels could not be downloaded.",
            because=done.last_error(),
            fix="check the network (`pip config list` shows the index), then run this again",
        )
    for name in _UNUSED:
        for path in PACK.glob(f"{name}-*.whl"):
            path.unlink()
    num_bytes = sum(path.stat().st_size for path in PACK.rglob("*") if path.is_file())
    if num_bytes > LIMIT_BYTES:
        raise Problem(
            f"the pack takes {num_bytes / 2**20:.0f} MiB, more than {LIMIT_BYTES >> 20} MiB.",
            fix=f"find the new wheel in {PACK}, and check whether the GPU tests need it",
        )
    what = f"{len(list(PACK.glob('*.whl')))} wheels, {len(_DATA_SETS)} data sets"
    say("packed", f"{what}, {num_bytes / 2**20:.1f} MiB: {PACK}")
    return PACK


def lacking(wheels: Sequence[Path], held: Mapping[str, str]) -> list[Path]:
    """The wheels of packages that are missing, or older than required.

    held: names and versions of the installed packages.
    """
    there = {_plain(name): numbers(version) for name, version in held.items()}
    least = {}
    for line in _requirements():
        name, _, version = line.partition(">=")
        least[_plain(name)] = numbers(version)
    names = {path: _plain(path.name.partition("-")[0]) for path in wheels}
    return [
        path
        for path, name in names.items()
        if name not in there or there[name] < least.get(name, ())
    ]


def _requirements() -> list[str]:
    return [*project_requirements(), *_MORE, *requirements_of(_EXTRAS)]


def _data_set(name: str, given: Mapping[str, str]) -> Path:
    """The folder of a data set, where flatout and the tests look for it."""
    home = Path(given.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    named = [Path(given["FLATOUT_DATA"])] if given.get("FLATOUT_DATA") else []
    folders = [*named, ROOT.parent / "shared" / "data", home / "flatout" / "data"]
    for folder in folders:
        if (folder / name).is_dir():
            return folder / name
    raise Problem(
        f"the data set {name} is missing, and a machine without a network cannot download it.",
        fix=f"run flatout data get {name}, then this again",
    )


def prepared(python: str) -> str:
    """A Python with this one's packages plus those it lacks from the pack; may be this one."""
    wheels = sorted(PACK.glob("*.whl"))
    done = subprocess.run([python, "-c", _FACTS], capture_output=True, text=True, check=False)
    if not wheels or done.returncode != 0:
        return python
    facts = json.loads(done.stdout)
    missing = lacking(wheels, facts["held"])
    if not missing:
        return python
    place = PACK / "unpacked"
    for path in missing:
        mark = place / f".{path.name}"
        if not mark.exists():
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(place)
            mark.touch()
    say("unpacked", ", ".join(path.name.partition("-")[0] for path in missing))
    return _environment(python, [str(place), *facts["folders"]])


def _environment(python: str, folders: list[str]) -> str:
    """An environment that finds packages in these folders, without installing anything."""
    place = PACK / "environment"
    made = subprocess.run(
        [python, "-m", "venv", "--clear", "--without-pip", "--system-site-packages", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise Problem(
            "cannot create an environment.",
            because=made.stderr.strip(),
            fix="check whether `python3 -m venv` works here",
        )
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "pack.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    return str(place / "bin" / "python")


def _plain(name: str) -> str:
    """A package name, normalised."""
    return name.lower().replace("-", "_").replace(".", "_")
