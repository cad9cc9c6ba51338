"""What a machine with a GPU may lack, as a folder to carry there: wheels that need no pip.

Such a machine may have torch and no network. Wheels are zip files: those of which it lacks the
package are unpacked beside the checkout, and found by PYTHONPATH.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from checkout import CACHE, ROOT, run
from environment import project_requirements
from progress import Problem, say

PACK = CACHE / "gpu-pack"
LIMIT_BYTES = 60 * 2**20
# What pip calls the systems that the wheels are for: Linux on x86-64, with glibc 2.28 or newer.
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# With what the tests of tests/gpu need; torch is there, since it must fit the driver.
_MORE = ("pytest>=8.3", "hypothesis>=6.112")

_NAMES = """
import importlib.metadata, json
names = {one.metadata["Name"] for one in importlib.metadata.distributions()}
print(json.dumps(sorted(name for name in names if name)))
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


def unpacked(python: str) -> list[str]:
    """Folders for PYTHONPATH: flatout's source, and what was packed and this Python lacks."""
    folders = [str(ROOT / "src")]
    wheels = sorted(PACK.glob("*.whl"))
    if not wheels:
        return folders
    done = subprocess.run([python, "-c", _NAMES], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return folders
    there = {_plain(name) for name in json.loads(done.stdout)}
    missing = [path for path in wheels if _plain(path.name.partition("-")[0]) not in there]
    place = PACK / "unpacked"
    for path in missing:
        mark = place / f".{path.name}"
        if not mark.exists():
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(place)
            mark.touch()
    if missing:
        say("unpacked", ", ".join(path.name.partition("-")[0] for path in missing))
        folders.append(str(place))
    return folders


def _plain(name: str) -> str:
    """As wheels and indexes may write the same name."""
    return name.lower().replace("-", "_").replace(".", "_")
