"""WSL's libcuda as three copies in a folder of its own, and the loader of this system.

All of the system is seen through an overlay, in which the plan is carried out by flatout itself.
That WSL's files are copies with one name inside is told by microsoft/WSL#8587 and #11229.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The shell that has the overlay: $1 is a folder, $2 the root to be, $3 a script for it.
_ENTER = """set -e
mount -t tmpfs none "$1"
mkdir "$1/up" "$1/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$2"
# Folders that are mounts of their own are not in the overlay of the root.
for folder in /proc /dev /tmp /var/tmp "$4"; do
    mkdir -p "$2$folder" && mount --rbind "$folder" "$2$folder"
done
exec chroot "$2" sh -e -c "$3"
"""
_LAY = """
folder=/usr/lib/wsl/lib
mkdir -p $folder
for name in libcuda.so.1.1 libcuda.so.1 libcuda.so; do cp {library} $folder/$name; done
echo $folder >/etc/ld.so.conf.d/ld.wsl.conf
ldconfig 2>/dev/null
"""
_OPENS = """{python} -c 'import ctypes; ctypes.CDLL("{name}")' 2>/dev/null && echo {name} opens \
|| echo {name} is not found
"""
_PLAN = """
import sys
from flatout.system.changes import api as changes_api
from flatout.schema.machine import Host, Machine
from flatout.schema.plan import Plan
from flatout.schema.wsl import Wsl
from flatout.system.probes.libraries import probe_libraries
from flatout.setup.host.loader_path import plan_loader_path
from flatout.compat.tables import shipped_tables
from flatout.system.host_system import LocalSystem

def plan():
    libraries, unread = probe_libraries(LocalSystem(), None)
    machine = Machine(host=Host(os="linux", wsl=2), libraries=libraries, wsl=Wsl())
    steps = plan_loader_path(machine, shipped_tables()).steps[:-1]  # But for nvidia-smi.
    return Plan(goal="g", steps=steps)

for outcome in changes_api.apply(plan()):
    print(outcome.step, outcome.how, outcome.problem.problem if outcome.problem else "")
print("left to do:", len(plan().steps))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library that calls itself libcuda.so.1, as NVIDIA's does."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None or shutil.which("unshare") is None:
        pytest.skip("needs Linux, a C compiler called cc and unshare")
    source = ROOT / "tests" / "cases" / "driver" / "cuda.c"
    file = tmp_path / "library.so"
    argv = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(file), str(source)]
    subprocess.run(argv, check=True, timeout=60)
    return file


def run_inside(tmp_path: Path, script: str) -> list[str]:
    """What a script prints that runs as root of an overlay over this system."""
    upper, root = tmp_path / "upper", tmp_path / "root"
    upper.mkdir()
    root.mkdir()
    place = os.path.commonpath([ROOT, sys.prefix])
    argv = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", upper, root, script, place]
    home = tmp_path / "home"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode != 0 and ("mount" in done.stderr or "unshare" in done.stderr):
        pytest.skip(f"needs root and mounts of its own: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_libcuda_is_opened_by_its_bare_name(tmp_path: Path, library: Path) -> None:
    python = sys.executable
    (tmp_path / "plan.py").write_text(_PLAN, encoding="utf-8")
    opens = [_OPENS.format(python=python, name=name) for name in ("libcuda.so.1", "libcuda.so")]
    undo = f"{python} -P -m flatout undo --yes >/dev/null"
    script = "\n".join([
        _LAY.format(library=library), *opens, f"{python} -P {tmp_path / 'plan.py'}", *opens,
        undo, *opens, "ldconfig -p | grep -c 'libcuda.so '  || true",
    ])  # fmt: skip
    assert run_inside(tmp_path, script) == [
        "libcuda.so.1 opens", "libcuda.so is not found",
        "0 done ", "1 done ", "left to do: 0",
        "libcuda.so.1 opens", "libcuda.so opens",
        "libcuda.so.1 opens", "libcuda.so is not found", "0",
    ]  # fmt: skip
