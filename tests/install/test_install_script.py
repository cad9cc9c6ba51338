"""install.sh on machines with hardly anything: with and without Python, broken off, offline."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatout import __version__

if TYPE_CHECKING:
    from conftest import Person

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="install.ps1 is Windows' script")

BLOCK = "# >>> flatout >>>"


def test_install_when_there_is_python(person: Person, wheel: Path) -> None:
    done = person.install("--from", wheel, "--offline")
    assert done.returncode == 0, done.stderr
    assert person.flatout("--version").stdout == f"flatout {__version__}\n"
    assert person.launcher.resolve().is_relative_to(person.app)
    # Nothing but what it says it makes.
    left = {path.relative_to(person.home).as_posix() for path in person.home.iterdir()}
    assert left <= {".local", ".cache"}


def test_install_changes_nothing_when_run_again(person: Person, wheel: Path) -> None:
    person.install("--from", wheel, "--offline")
    before = {path: path.lstat().st_mtime_ns for path in person.home.rglob("*")}
    began = time.monotonic()
    done = person.install("--from", wheel, "--offline")
    assert time.monotonic() - began < 10
    assert done.returncode == 0 and f"{__version__} is installed" in done.stdout
    after = {path: path.lstat().st_mtime_ns for path in person.home.rglob("*")}
    # The lock comes and goes in this folder.
    both = before.keys() | after.keys()
    assert {path for path in both if before.get(path) != after.get(path)} <= {person.app}


def test_install_mends_a_launcher_that_is_gone(person: Person, wheel: Path) -> None:
    person.install("--from", wheel, "--offline")
    person.launcher.unlink()
    assert person.install().returncode == 0
    assert person.flatout("--version").returncode == 0


@pytest.mark.parametrize("moment_s", [0.3, 3.0])
def test_install_ends_whole_when_it_was_killed(
    person: Person, wheel: Path, moment_s: float
) -> None:
    process = subprocess.Popen(
        ["/bin/sh", ROOT / "install.sh", "--from", wheel, "--offline"],
        env=person.environment(), cwd=person.home, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(moment_s)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = person.install("--from", wheel, "--offline")
    assert done.returncode == 0, done.stderr
    assert person.flatout("--version").returncode == 0
    assert len(person.environments()) == 1
    assert not (person.app / "lock").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs what Linux tells of processes")
def test_install_when_another_install_runs(person: Person, wheel: Path) -> None:
    (person.app / "lock").mkdir(parents=True)
    began = Path("/proc/self/stat").read_text().split(" ")[21]
    (person.app / "lock/pid").write_text(f"{os.getpid()}\n{began}\n")
    done = person.install("--from", wheel, "--offline")
    assert done.returncode == 1 and "another process is installing" in done.stderr


def test_install_when_another_process_has_the_number_of_one_that_died(
    person: Person, wheel: Path
) -> None:
    (person.app / "lock").mkdir(parents=True)
    (person.app / "lock/pid").write_text(f"{os.getpid()}\n17\n")
    assert person.install("--from", wheel, "--offline").returncode == 0
    assert not (person.app / "lock").exists()


def test_install_refuses_when_another_flatout_is_there(person: Person, wheel: Path) -> None:
    person.launcher.parent.mkdir(parents=True)
    person.launcher.write_text("#!/bin/sh\necho somebody else's\n")
    done = person.install("--from", wheel, "--offline")
    assert done.returncode == 1 and "contains another flatout" in done.stderr
    assert person.launcher.read_text().endswith("else's\n")


def test_install_replaces_another_version(person: Person, wheel: Path, tmp_path: Path) -> None:
    person.install("--from", wheel, "--offline")
    first = person.environments()
    other = tmp_path / "other"
    shutil.copytree(wheel.parent, other)
    with open(other / wheel.name, "ab") as file:
        file.write(b"\0")  # After the end of the archive, where nobody reads.
    done = person.install("--from", other / wheel.name, "--offline")
    assert done.returncode == 0, done.stderr
    assert person.environments() != first and len(person.environments()) == 1


# The profile.


def test_install_edits_no_profile_when_nobody_agrees(person: Person, wheel: Path) -> None:
    done = person.install("--from", wheel, "--offline")
    assert "is not on PATH" in done.stdout and "not added" in done.stdout
    assert not (person.home / ".bashrc").exists()


PROFILES = {
    "/bin/bash": ".bashrc", "/usr/bin/zsh": ".zshrc", "/bin/sh": ".profile",
    "/usr/bin/fish": ".config/fish/conf.d/flatout.fish",
}  # fmt: skip


def test_install_edits_the_profile_once_when_reported(person: Person, wheel: Path) -> None:
    for shell, profile in PROFILES.items():
        path = person.home / profile
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# mine, without an end")
        for _ in range(2):
            done = person.install("--yes", "--from", wheel, "--offline", SHELL=shell)
            assert done.returncode == 0, done.stderr
        text = path.read_text()
        assert text.startswith("# mine, without an end\n") and text.count(BLOCK) == 1
        if not shell.endswith("fish"):
            reported = subprocess.run(
                ["/bin/sh", "-c", f". '{path}'; command -v flatout"], env=person.environment(),
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            assert reported.strip() == str(person.launcher)
    removed = person.flatout("self", "remove", "--yes")
    assert removed.returncode == 0, removed.stderr
    for profile in PROFILES.values():
        assert (person.home / profile).read_text() == "# mine, without an end"


# Removal and update.


def test_remove_leaves_only_runs(person: Person, wheel: Path) -> None:
    person.install("--from", wheel, "--offline")
    run_folder = person.home / ".local/state/flatout/runs/mine-0001"
    run_folder.mkdir(parents=True)
    (run_folder / "run.json").write_text("{}")
    (person.home / ".local/state/flatout/recipes").mkdir()
    (person.home / ".local/state/flatout/recipes/a.json").write_text("{}")
    asked = person.flatout("self", "remove")
    assert asked.returncode == 1 and person.launcher.exists()
    done = person.flatout("self", "remove", "--yes")
    assert done.returncode == 0, done.stderr
    files = [path for path in (person.home / ".local").rglob("*") if not path.is_dir()]
    assert files == [run_folder / "run.json"]
    assert not person.app.exists()


def test_update_from_a_file(person: Person, wheel: Path) -> None:
    person.install("--from", wheel, "--offline")
    reported = person.flatout("self", "--json").stdout
    assert '"way": "script"' in reported
    done = person.flatout("self", "update", "--from", str(wheel))
    assert done.returncode == 1 and "pip install --upgrade" in done.stderr
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    done = subprocess.run(
        [person.launcher, "self", "update", "--yes", "--from", wheel],
        env=person.environment(**offline), capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"flatout is {__version__}, unchanged" in done.stderr


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--nonsense"], "no option --nonsense"),
        (["--from"], "needs a value"),
        (["--from", "nowhere.whl"], "does not exist"),
        (["--from", "/"], "is not a source folder"),
        (["--from", "/bin/sh"], "neither wheel nor source archive"),
        (["--version", "1; rm -rf /"], "is not a version"),
        (["--version", "1.0", "--from", "a.whl"], "cannot be combined with"),
        (["--offline"], "needs --from"),
    ],
)
def test_install_refuses_bad_input(person: Person, arguments: list[str], problem: str) -> None:
    done = person.install(*arguments)
    assert done.returncode == 1 and problem in done.stderr and "fix:" in done.stderr
    assert list(person.home.iterdir()) == []


def test_script_that_comes_through_a_pipe_takes_no_folder_for_its_own(
    person: Person, tmp_path: Path
) -> None:
    checkout = tmp_path / "anybodys"
    (checkout / "src/flatout").mkdir(parents=True)
    (checkout / "src/flatout/__init__.py").write_text('__version__ = "9.9"\n')
    (checkout / "pyproject.toml").write_text("[project]\nname = 'flatout'\nversion = '9.9'\n")
    script = ROOT / "install.sh"
    shutil.copy(script, checkout)
    # Where nothing is reached, what it would have installed is told all the same.
    unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    with open(script) as piped:
        done = subprocess.run(
            ["/bin/sh"], stdin=piped, env=person.environment(**unreachable), cwd=checkout,
            capture_output=True, text=True, timeout=LIMIT_S, check=False, start_new_session=True,
        )  # fmt: skip
    assert done.returncode != 0
    assert "install   flatout\n" in done.stdout
    assert str(checkout) not in done.stdout + done.stderr


def test_install_says_so_when_home_cannot_be_written(person: Person, wheel: Path) -> None:
    if os.geteuid() == 0:
        (person.home / ".local").write_text("a file where a folder is to be")
    else:
        person.home.chmod(0o500)
    done = person.install("--from", wheel, "--offline")
    assert done.returncode == 1 and "cannot write" in done.stderr


def test_install_leaves_nothing_when_packages_are_missing(
    person: Person, wheel: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(wheel, alone)
    done = person.install("--from", alone / wheel.name, "--offline")
    assert done.returncode == 1 and "cannot install flatout" in done.stderr
    assert person.environments() == [] and not person.launcher.exists()


# The other script.


def test_install_ps1_has_no_error_of_syntax() -> None:
    shell = shutil.which("pwsh") or shutil.which("powershell")
    if shell is None:
        pytest.skip("needs PowerShell: install.ps1 is not checked")
    ask = (
        "$errors = $null; [void][System.Management.Automation.Language.Parser]::ParseFile("
        f"'{ROOT / 'install.ps1'}', [ref]$null, [ref]$errors); $errors; exit $errors.Count"
    )
    done = subprocess.run(
        [shell, "-NoProfile", "-NonInteractive", "-Command", ask],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_both_scripts_bring_the_same_uv() -> None:
    texts = [(ROOT / name).read_text() for name in ("install.sh", "install.ps1")]
    found = [re.findall(r"[Uu][Vv]_?[Vv]ersion ?= ?'?([0-9.]+)", text) for text in texts]
    assert found[0][:1] == found[1][:1] != []
