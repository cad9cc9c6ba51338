"""`flatout setup --repair`: environments with wrong packages, mended, proved, and put back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_home import Home, rule_of
from support.fake_index import ANSWER, write_wheel
from support.forked_commands import ForkedCommands

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SETTINGS = ("--yes", "--manager", "pip")
TORCH = "2.13.0+cpu"
FOLDER = "Scripts" if sys.platform == "win32" else "bin"


class Bench:
    """A home with an index of made-up torch packages, and a venv to be broken."""

    def __init__(self, folder: Path, forked: ForkedCommands) -> None:
        self.home = Home(folder, forked)
        self.torch_index = folder / "whl" / "cpu"
        for version, torch in (("0.27.0+cpu", "2.12.0"), ("0.28.0+cpu", "2.13.0")):
            files = {"torchvision/__init__.py": f"v = '{version}'\n"}
            self.torch("torchvision", version, files, (f"torch=={torch}", "plain"))
        self.torch("torch", TORCH, {"torch/__init__.py": ANSWER})
        for version in ("1.0", "2.0"):
            write_wheel(folder / "simple", "plain", version, {"plain.py": f"v = '{version}'\n"})
        self.folder = folder / "mine"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder], check=True)
        self.python = str(self.folder / FOLDER / "python")

    def torch(
        self, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()
    ) -> None:
        write_wheel(self.torch_index, name, version, files, requires)

    def install(self, *wheels: str) -> None:
        """Puts wheels in as somebody did who did not look at what goes together."""
        links = [self.torch_index, self.home.folder / "simple"]
        words = [word for top in links for page in sorted(top.iterdir())
                 for word in ("--find-links", str(page))]  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet",
             "--no-deps", "--no-index", *words, *wheels],
            check=True, env=self.home.environment(),
        )  # fmt: skip

    def repair(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        mirror = f"torch={(self.home.folder / 'whl').as_uri()}"
        named = words if words and not words[0].startswith("-") else (str(self.folder), *words)
        return self.home.run(
            "setup", "--repair", named[0], "--mirror", mirror, *SETTINGS, *named[1:], **more
        )

    def files(self) -> dict[str, bytes]:
        """Every file but what Python and flatout keep for themselves."""
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and not {"__pycache__", ".flatout"} & set(path.parts)
        }


@pytest.fixture
def bench(tmp_path: Path, forked: ForkedCommands) -> Bench:
    return Bench(tmp_path, forked)


def changes_of(done: subprocess.CompletedProcess[str]) -> list[tuple[Any, ...]]:
    found = json.loads(done.stdout)["changes"]
    return [(one["name"], one["before"], one["after"], one["how"]) for one in found]


def test_repair_when_torchvision_is_of_another_torch(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.27.0+cpu", "plain==1.0")
    before = bench.files()
    shown = bench.repair("--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    # plain stays as it is: nothing asks for another one.
    assert changes_of(shown) == [("torchvision", "0.27.0+cpu", "0.28.0+cpu", "changed")]
    assert "requires torch==2.12.0" in json.loads(shown.stdout)["problems"][0]["problem"]
    assert bench.files() == before
    done = bench.repair()
    assert done.returncode == 0, done.stderr
    assert "repaired" in done.stdout and "proved      3 training steps" in done.stdout
    assert "0.28.0" in bench.files()[_module(bench, "torchvision/__init__.py")].decode()
    again = bench.repair()
    assert again.returncode == 0 and "nothing to repair" in again.stdout
    undone = bench.home.run("undo", "--yes", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert undone.returncode == 0, undone.stderr
    assert bench.files() == before


def test_repair_when_the_build_is_not_the_one_that_is_wanted(bench: Bench) -> None:
    cuda = bench.home.folder / "whl" / "cu126"
    write_wheel(cuda, "torch", "2.13.0+cu126", {"torch/__init__.py": ANSWER}, ("nvidia-part",))
    write_wheel(cuda, "nvidia-part", "12.6", {"nvidia_part.py": "x = 1\n"})
    bench.install(*(str(path) for path in sorted(cuda.glob("*/*.whl"))))
    # pip has brought it for the sake of torch, as far as it can know.
    next(bench.folder.rglob("nvidia_part-*/REQUESTED")).unlink()
    # On a machine without a GPU it computes on the CPU, which is well.
    assert "nothing to repair" in bench.repair().stdout
    before = bench.files()
    done = bench.repair("--cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert changes_of(done) == [
        ("nvidia-part", "12.6", None, "removed"),
        ("torch", "2.13.0+cu126", TORCH, "changed"),
    ]
    assert bench.home.run("undo", "--yes").returncode == 0
    assert bench.files() == before


def test_repair_when_it_is_forbidden(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.27.0+cpu", "plain==1.0")
    before = bench.files()
    site = bench.home.folder / "flatout.toml"
    site.write_text("[forbidden]\ngoals = ['repair']\nreason = 'ask us'\n")
    done = bench.repair(FLATOUT_SITE=str(site))
    assert done.returncode == 1 and f"forbidden by {site}: ask us" in done.stderr
    assert "0.28.0+cpu" in done.stdout
    assert bench.files() == before


def test_repair_when_all_is_well_changes_nothing(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.28.0+cpu", "plain==1.0")
    before = {path: path.stat().st_mtime_ns for path in bench.folder.rglob("*")}
    done = bench.repair()
    assert done.returncode == 0, done.stderr
    assert "nothing to repair; 3 training steps" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in bench.folder.rglob("*")} == before
    assert "nothing-to-undo" in bench.home.run("undo", "--yes").stderr


def test_repair_when_others_folders_would_be_seen(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.27.0+cpu", "plain==1.0")
    beside = bench.home.folder / "beside"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", beside,
         *map(str, bench.torch_index.glob("torchvision/*0.28.0*"))],
        check=True, env=bench.home.environment(),
    )  # fmt: skip
    shown = bench.repair("--dry-run", "--json", PYTHONPATH=f"{_source()}{os.pathsep}{beside}")
    assert [one[0] for one in changes_of(shown)] == ["torchvision"]


def test_repair_when_requirements_are_missing(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.28.0+cpu")
    done = bench.repair("--json")
    assert done.returncode == 0, done.stderr
    assert changes_of(done) == [("plain", None, "2.0", "added")]
    assert json.loads(done.stdout)["proofs"][0]["device"] == "cpu"


def test_repair_when_files_are_damaged(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}")
    place = bench.folder / _module(bench, "torch/__init__.py")
    place.write_text("raise ImportError('cut off')")
    done = bench.repair("--json")
    assert done.returncode == 0, done.stderr
    assert changes_of(done) == [("torch", TORCH, TORCH, "reinstalled")]
    assert place.read_text() == ANSWER


def test_repair_when_a_library_of_the_framework_is_damaged(bench: Bench) -> None:
    cut = "from torch_library import lib\n" + ANSWER
    bench.torch("torch-library", "1.0", {"torch_library/__init__.py": "lib = 1\n"})
    for path in bench.torch_index.glob("torch/*.whl"):
        path.unlink()
    bench.torch("torch", TORCH, {"torch/__init__.py": cut}, ("torch_library",))
    bench.install(f"torch=={TORCH}", "torch-library", "plain==1.0")
    place = bench.folder / _module(bench, "torch_library/__init__.py")
    place.write_text("")
    done = bench.repair("--json")
    assert done.returncode == 0, done.stderr
    # plain is no part of it.
    assert changes_of(done) == [
        ("torch", TORCH, TORCH, "reinstalled"),
        ("torch-library", "1.0", "1.0", "reinstalled"),
    ]
    assert place.read_text() == "lib = 1\n"


def test_repair_when_the_index_of_torch_cannot_be_reached(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.27.0+cpu", "plain==1.0")
    # What everybody's index has under that number was made for another torch.
    write_wheel(bench.home.folder / "simple", "torchvision", "0.28.0", {}, ("torch==2.13.0",))
    write_wheel(bench.home.folder / "simple", "torch", "2.13.0", {})
    (bench.home.folder / "whl").rename(bench.home.folder / "gone")
    done = bench.home.run("setup", "--repair", str(bench.folder), *SETTINGS,
                          "--mirror", "torch=http://127.0.0.1:9/whl")  # fmt: skip
    assert (done.returncode, rule_of(done)) == (1, "index-not-reachable")
    assert "127.0.0.1:9/whl/cpu" in done.stderr


def test_repair_when_nothing_mends_it(bench: Bench) -> None:
    bench.torch("torchvision", "0.29.0+cpu", {"torchvision/__init__.py": ""}, ("nowhere>=1",))
    bench.install(f"torch=={TORCH}", "torchvision==0.27.0+cpu", "plain==1.0")
    before = bench.files()
    for path in bench.torch_index.glob("torchvision/*0.28*"):
        path.unlink()
    write_wheel(bench.torch_index, "torchvision", "0.26.0+cpu", {}, ("torch==2.11.0",))
    done = bench.repair()
    assert (done.returncode, rule_of(done)) == (1, "not-mendable")
    assert bench.files() == before


def test_repair_when_it_was_made_by_flatout(bench: Bench) -> None:
    assert bench.home.set_up().returncode == 0
    (made,) = bench.home.listed()
    write_wheel(bench.home.folder / "simple", "jaxlib", "0.0.1", {"jaxlib/__init__.py": "x = 2"})
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", made["python"], "install", "--quiet", "--no-deps",
         "jaxlib==0.0.1"], check=True, env=bench.home.environment(),
    )  # fmt: skip
    # By its folder it is the same one as by its name.
    done = bench.repair(made["folder"], "--json")
    assert done.returncode == 0, done.stderr
    assert "`jax` was created with jaxlib" in json.loads(done.stdout)["problems"][0]["problem"]
    ((name, before, _, how),) = changes_of(done)
    assert (name, before, how) == ("jaxlib", "0.0.1", "changed")
    assert "nothing to repair" in bench.repair("jax").stdout


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        ("nothing", "no-such-environment"),
        ("folder", "no-such-environment"),
        ("base", "environment-not-repaired"),
        ("conda base", "environment-not-repaired"),
        ("system", "environment-not-repaired"),
        ("own", "environment-not-repaired"),
        ("broken", "environment-not-readable"),
    ],
)
def test_repair_when_it_must_not_be(bench: Bench, make: str, rule: str) -> None:
    folder = bench.home.folder / "other"
    named = str(folder)
    if make == "nothing":
        named = "no-such-name"
    elif make == "base":
        named = "base"
    elif make == "own":
        named = sys.prefix
    else:
        folder.mkdir()
    if make == "conda base":
        (folder / "conda-meta").mkdir()
        (folder / "conda-meta" / "conda-25.1.0-py312.json").touch()
    if make == "system":
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").touch()
    if make == "broken":
        (folder / "pyvenv.cfg").touch()
    done = bench.repair(named)
    assert rule_of(done) == rule
    assert done.returncode == (1 if make == "broken" else 2)


def test_repair_when_conda_has_put_it_there(bench: Bench) -> None:
    bench.install(f"torch=={TORCH}", "torchvision==0.27.0+cpu", "plain==1.0")
    before = bench.files()
    (bench.folder / "conda-meta").mkdir()
    info = next(bench.folder.rglob("torchvision-*.dist-info"))
    (info / "INSTALLER").write_text("conda\n")
    done = bench.repair()
    assert (done.returncode, rule_of(done)) == (2, "environment-of-conda")
    assert f"conda remove --prefix {bench.folder} --force torchvision" in done.stderr
    assert bench.files().keys() == before.keys()


def _module(bench: Bench, name: str) -> str:
    version = f"python{PYTHON}"
    top = "Lib" if sys.platform == "win32" else f"lib/{version}"
    return f"{top}/site-packages/{name}"


def _source() -> str:
    return str(Path(__file__).resolve().parents[2] / "src")
