"""What a machine with a GPU may lack, as a folder to carry there: wheels that need no pip.

Such a machine may have torch and no network. Wheels are zip files: those of which it lacks the
package are unpacked, and found by a virtual environment that finds all that its Python has, too.
So they are found by whatever a test or a benchmark starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from checkout import CACHE, run
from environment import project_requirements
from progress import Problem, say

PACK = CACHE / "gpu-pack"
LIMIT_BYTES = 60 * 2**20
# What pip calls the systems that the wheels are for: Linux on x86-64, with glibc 2.28 or newer.
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# With what the tests of tests/gpu need; torch is there, since it must fit the driver.
_MORE = ("pytest>=8.3", "hypothesis>=6.112")

_FACTS = """
import importlib.metadata, json, site, sysconfig
names = {one.metadata["Name"] for one in importlib.metadata.distributions()}
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
folders = list(dict.fromkeys(folders))
print(json.dumps({"names": sorted(name for name in names if name), "folders": folders}))
"""


def pack(python: str) -> Path:
    """Downloads the wheels for that version of Python on Linux; gives their folder.

    Raises:
        Problem: one cannot be had, or they are too many bytes to be carried.
    """
    PACK.mkdir(parents=True, exist_ok=True)
    for path in PACK.glob("*.whl"):
        path.unlink()
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    done = run(
        "download",
        f"wheels for Linux and Python {python}",
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
            f"--python-version={python}", *platforms, "--dest", PACK,
            *project_requirements(), *_MORE,
        ],
    )  # fmt: skip
    if done.exit_code != 0:
        raise Problem(
            "the wheels could not be downloaded.",
            because=done.last_error(),
            fix="check the network (`pip config list` tells where pip looks), then run this again",
        )
    num_bytes = sum(path.stat().st_size for path in PACK.glob("*.whl"))
    if num_bytes > LIMIT_BYTES:
        raise Problem(
            f"the wheels take {num_bytes / 2**20:.0f} MiB, more than {LIMIT_BYTES >> 20} MiB.",
            fix="see which of them is new, and whether the GPU's tests need it",
        )
    say("packed", f"{len(list(PACK.glob('*.whl')))} wheels, {num_bytes / 2**20:.1f} MiB: {PACK}")
    return PACK


def prepared(python: str) -> str:
    """A Python that has what this one has, and of what was packed what it lacks; maybe itself."""
    wheels = sorted(PACK.glob("*.whl"))
    done = subprocess.run([python, "-c", _FACTS], capture_output=True, text=True, check=False)
    if not wheels or done.returncode != 0:
        return python
    facts = json.loads(done.stdout)
    there = {_plain(name) for name in facts["names"]}
    missing = [path for path in wheels if _plain(path.name.partition("-")[0]) not in there]
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
    """An environment that finds packages in these folders, and needs nothing to be installed."""
    place = PACK / "environment"
    made = subprocess.run(
        [python, "-m", "venv", "--clear", "--without-pip", "--system-site-packages", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise Problem(
            "no environment could be made.",
            because=made.stderr.strip(),
            fix="see whether `python3 -m venv` works here",
        )
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "pack.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    return str(place / "bin" / "python")


def _plain(name: str) -> str:
    """As wheels and indexes may write the same name."""
    return name.lower().replace("-", "_").replace(".", "_")
