"""A fresh machine in a container, and everything that flatout and its setup need, in one folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkout import CACHE, ROOT
from containers import Container, Docker, Limits
from progress import Problem

from support.fake_index import add_to_index, make_index

# The Python of the base image.
PYTHON = (3, 11)
HOUSE = CACHE / "containers"
_PLACE = "/house"
_SYSTEMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_DOWNLOAD_S = 900.0

PLAIN = "FROM {base}\nRUN useradd --create-home --shell /bin/bash person\n"
WITH_VENV = (
    PLAIN + "RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv"
    " && rm -rf /var/lib/apt/lists/*\n"
)
# As a company writes it for everybody: its own index in the place of all others.
PIP_CONF = "[global]\nindex-url = {index}\ntrusted-host = {host}\n"


def make_house() -> Path:
    """A folder with install.sh, flatout's wheel, wheels of its dependencies, and an index.

    The index has a real uv and pip, and a JAX that only gives expected answers. Earlier downloads
    are reused.

    Raises:
        Problem: they cannot be built or downloaded.
    """
    HOUSE.mkdir(parents=True, exist_ok=True)
    wheels = HOUSE / "wheels"
    wheel = _build(wheels)
    _download(wheels, [*_needs(wheel), "uv", "pip"])
    shutil.rmtree(HOUSE / "simple", ignore_errors=True)
    make_index(HOUSE, PYTHON, has_pip=False)
    for one in sorted(wheels.glob("*.whl")):
        if not one.name.startswith("torch-"):
            add_to_index(HOUSE / "simple", one)
    shutil.copyfile(ROOT / "install.sh", HOUSE / "install.sh")
    shutil.copyfile(Path(__file__).with_name("slow_index.py"), HOUSE / "slow_index.py")
    _add_uv_archive(wheels)
    return HOUSE


def add_torch() -> None:
    """Adds torch for the CPU to the house: 200 MB.

    Raises:
        Problem: it cannot be downloaded.
    """
    wheels = HOUSE / "wheels"
    known = set(wheels.glob("*.whl"))
    wanted = "torch==2.13.0+cpu"
    try:
        _download(wheels, [wanted])
    except Problem:
        _download(wheels, [wanted], ["--extra-index-url", "https://download.pytorch.org/whl/cpu"])
    for one in sorted({*wheels.glob("torch-*.whl")} | (set(wheels.glob("*.whl")) - known)):
        add_to_index(HOUSE / "simple", one)


def flatout_wheel() -> str:
    """The path of flatout's wheel in a container."""
    return f"{_PLACE}/wheels/{next((HOUSE / 'wheels').glob('flatout-*.whl')).name}"


class Guest:
    """A user on a fresh machine: a container with the house mounted as a folder.

    user: `root` or `person`. index: in pip's configuration (default: the house's own).
    """

    def __init__(
        self,
        docker: Docker,
        image: str,
        user: str = "root",
        *,
        limits: Limits | None = None,
        index: str = f"file://{_PLACE}/simple",
    ) -> None:
        self.user = user
        self.home = "/root" if user == "root" else f"/home/{user}"
        self.container: Container = docker.container(image, limits=limits, mounts={HOUSE: _PLACE})
        if user != "root":
            disks = limits.disk if limits else ()
            self.container.run("chown", f"{user}:", self.home, *disks)
        host = index.removeprefix("http://").partition("/")[0].partition(":")[0]
        conf = PIP_CONF.format(index=index, host=host or "localhost")
        self.container.run("sh", "-c", f"cat >/etc/pip.conf <<'END'\n{conf}END")

    def run(
        self, *argv: str, limit_s: float = 300.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program as this user, in a bash without a terminal."""
        return self.container.run(
            *argv, user=self.user, variables=self._variables(variables), limit_s=limit_s
        )

    def start(self, *argv: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a program, whose process id is then in the file `number` of the home folder."""
        line = 'echo $$ >"$HOME/number"; exec "$@"'
        return self.container.start(
            "sh", "-c", line, "sh", *argv, user=self.user, variables=self._variables(variables)
        )

    def kill(self) -> None:
        """kill -9 of the started program, and of nothing else."""
        self.run("sh", "-c", 'kill -9 "$(cat "$HOME/number")"')

    def install(
        self, *arguments: str, script: str = f"{_PLACE}/install.sh", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Installs flatout, as a user does."""
        asked = ("sh", script, "--yes", "--from", flatout_wheel(), *arguments)
        return self.run(*asked, **variables)

    @property
    def flatout(self) -> str:
        """The path of the command."""
        return f"{self.home}/.local/bin/flatout"

    def ask(self, *words: str, limit_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Runs the installed command."""
        return self.run(self.flatout, *words, limit_s=limit_s)

    def names(self, folder: str) -> set[str]:
        """The contents of a folder of the home folder."""
        return set(self.run("ls", "-A", f"{self.home}/{folder}").stdout.split())

    def faults(self, *environments: str) -> list[str]:
        """What is incomplete in flatout's own installation and in these environments."""
        found = []
        app = self.names(".local/share/flatout/app")
        if sum(name.startswith("environment-") for name in app) != 1 or "lock" in app:
            found.append(f"the folder of flatout itself holds {sorted(app)}")
        listed = self.ask("envs", "--json")
        if listed.returncode != 0:
            return [*found, f"flatout envs ended with {listed.returncode}: {listed.stderr[-300:]}"]
        there = [one["name"] for one in json.loads(listed.stdout)]
        if there != sorted(environments):
            found.append(f"the environments are {there}")
        left = self.names(".local/share/flatout/environments")
        if left - {".lock"} != set(environments):
            found.append(f"the folder of environments holds {sorted(left)}")
        for name in environments:
            if "requirements.lock" not in self.names(f".local/share/flatout/environments/{name}"):
                found.append(f"{name} has no lock")
        return found

    def remove(self) -> None:
        """Removes the machine."""
        self.container.remove()

    def _variables(self, more: Mapping[str, str]) -> dict[str, str]:
        return {"HOME": self.home, "SHELL": "/bin/bash", "PIP_NO_COMPILE": "1", **more}


def _build(wheels: Path) -> Path:
    """flatout's wheel; rebuilt if its sources have changed."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("*.*"), *ROOT.glob("src/**/*")]):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    stamp = wheels / ".sources"
    there = list(wheels.glob("flatout-*.whl"))
    if not there or not stamp.exists() or stamp.read_text() != digest.hexdigest():
        for old in there:
            old.unlink()
        _must([sys.executable, "-m", "build", "--wheel", "--outdir", str(wheels), str(ROOT)])
        stamp.write_text(digest.hexdigest())
    return next(wheels.glob("flatout-*.whl"))


def _needs(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [one for one in file.namelist() if one.endswith(".dist-info/METADATA")]
        lines = file.read(name).decode().splitlines()
    needs = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    return [need for need in needs if "extra ==" not in need]


def _download(wheels: Path, wanted: Sequence[str], more: Sequence[str] = ()) -> None:
    """Downloads wheels for the container's Python, unless they were downloaded before."""
    digest = hashlib.sha256("\n".join(sorted(wanted)).encode()).hexdigest()[:16]
    stamp = wheels / f".{digest}"
    if stamp.exists():
        return
    systems = [f"--platform={name}_{platform.machine()}" for name in _SYSTEMS]
    version = f"--python-version={PYTHON[0]}.{PYTHON[1]}"
    _must([sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(wheels), *systems,
           version, "--only-binary=:all:", *more, *wanted])  # fmt: skip
    stamp.touch()


def _add_uv_archive(wheels: Path) -> None:
    """The archive of uv that install.sh downloads, and an install.sh with its checksum."""
    wheel = next(wheels.glob("uv-*.whl"))
    with zipfile.ZipFile(wheel) as file:
        (name,) = [one for one in file.namelist() if one.endswith(".data/scripts/uv")]
        program = file.read(name)
    text = (ROOT / "install.sh").read_text(encoding="utf-8")
    found = re.search(r"^uv_version=(.+)$", text, re.MULTILINE)
    assert found is not None
    folder = HOUSE / "uv" / found[1]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"uv-{platform.machine()}-unknown-linux-musl.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        entry = tarfile.TarInfo("uv-any/uv")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    changed = re.sub(r"sha256=[0-9a-f]{64}", f"sha256={digest}", text)
    (HOUSE / "install-uv.sh").write_text(changed, encoding="utf-8")


def _must(argv: Sequence[str]) -> None:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DOWNLOAD_S,
        check=False, env=dict(os.environ),
    )  # fmt: skip
    if done.returncode != 0:
        raise Problem(
            f"{' '.join(argv[1:4])} failed.",
            because="\n".join((done.stderr or done.stdout).strip().splitlines()[-3:]),
            fix="see that a package index can be reached, and pip install 'flatout[dev]'",
        )
