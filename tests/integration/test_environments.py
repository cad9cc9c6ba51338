"""Environments from a made-up index: made, found, used again, removed, and whole after a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
from support.fake_home import SETTINGS, Home, rule_of
from support.fake_index import jax_version, make_index, write_wheel
from support.forked_commands import ForkedCommands

from flatout.errors import FlatoutError
from flatout.setup.packages import uv
from flatout.system.paths import tools_folder
from flatout.system.store import environments

LINUX = pytest.mark.skipif(sys.platform == "win32", reason="needs what only POSIX has")


@pytest.fixture
def home(tmp_path: Path, forked: ForkedCommands) -> Home:
    return Home(tmp_path, forked)


def test_setup_when_all_goes_well(home: Home) -> None:
    done = home.set_up()
    assert done.returncode == 0, done.stderr
    assert "made        jax · jax" in done.stdout and "proved      3 training steps" in done.stdout
    (one,) = home.listed()
    assert (one["name"], one["version"], one["cuda"]) == ("jax", jax_version(), "cpu")
    assert {pin["name"] for pin in one["pins"]} == {"jax", "jaxlib", "pip"}
    folder = Path(one["folder"])
    assert f"jax=={jax_version()}" in (folder / "requirements.lock").read_text()
    # Nothing but the environment is left in it.
    assert not [path for path in folder.iterdir() if path.name.startswith(".wheels")]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = home.set_up("jax", "--cuda", "12.6")
    assert again.returncode == 0 and "exists, complete" in again.stdout
    assert "note        --cuda has no effect with --cpu" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    gone = home.run("setup", "--remove", "jax", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert home.listed() == [] and not folder.exists()


def test_setup_when_nothing_is_agreed_to(home: Home) -> None:
    settings = [word for word in SETTINGS if word != "--yes"]
    done = home.run("setup", "jax", *settings)
    assert done.returncode == 1 and "nothing was changed" in done.stderr
    file = home.folder / "environment.yml"
    file.write_text("dependencies: [cudatoolkit=11.8]\n")
    shown = home.run("setup", "jax", *settings, "-r", str(file), "--dry-run", "--json")
    (plan,) = json.loads(shown.stdout)["plans"]
    assert plan["notes"][0] == "skipped, since only conda has it: cudatoolkit=11.8"
    assert plan["choice"]["version"] == jax_version()
    assert [step["needs_root"] for step in plan["steps"]] == [False] * 4
    assert not home.environments.exists() or not list(home.environments.iterdir())


def test_setup_when_another_wish_has_the_name(home: Home) -> None:
    assert home.set_up().returncode == 0
    other = home.set_up("jax", "--with", "jaxlib")
    assert (other.returncode, rule_of(other)) == (2, "environment-differs")
    assert home.set_up("jax", "--with", "jaxlib", "--name", "second").returncode == 0
    assert [one["name"] for one in home.listed()] == ["jax", "second"]


def test_setup_when_the_index_is_behind_takes_the_next_build(home: Home) -> None:
    older = jax_version(versions=f"<{jax_version()}")
    shutil.rmtree(home.folder / "simple")
    make_index(home.folder, version=older)
    done = home.set_up()
    assert done.returncode == 0, done.stderr
    assert home.listed()[0]["version"] == older
    assert "for the CPU: not in its package index" in done.stdout
    # An index without any of them is no reason to install something else.
    shutil.rmtree(home.folder / "simple")
    make_index(home.folder, version="0.0.1")
    none = home.set_up("jax", "--name", "other", "--json")
    assert (none.returncode, rule_of(none)) == (1, "nothing-fits")
    assert json.loads(none.stdout)["error"]["rule"] == "nothing-fits"


def test_setup_in_a_folder_of_ones_own(home: Home) -> None:
    folder = home.folder / "mine"
    assert home.set_up("jax", "--in", str(folder)).returncode == 0
    assert home.listed()[0]["folder"] == str(folder)
    assert "exists, complete" in home.set_up("jax", "--in", str(folder)).stdout
    assert home.run("setup", "--remove", "jax", "--yes").returncode == 0
    assert not folder.exists()
    full = home.folder / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("years")
    refused = home.set_up("jax", "--in", str(full))
    assert (refused.returncode, rule_of(refused)) == (2, "folder-not-empty")
    assert [path.name for path in full.iterdir()] == ["thesis.txt"]


def test_setup_from_a_lock_and_from_a_bundle(home: Home) -> None:
    bundle = home.folder / "bundle"
    done = home.set_up("jax", "--bundle", str(bundle))
    assert done.returncode == 0, done.stderr
    assert home.listed() == []
    (home.folder / "simple").rename(home.folder / "gone")
    for path in sorted((home.cache / "wheels").rglob("*.whl")):
        path.unlink()
    settings = ("--yes", "--manager", "pip")
    offline = home.run("setup", "--offline", "--from", str(bundle), *settings)
    assert offline.returncode == 0, offline.stderr
    lock = Path(home.listed()[0]["folder"]) / "requirements.lock"
    assert lock.read_text() == (bundle / "requirements.lock").read_text()
    again = home.run("setup", "--from", str(lock), "--name", "again", "--offline", *settings)
    assert again.returncode == 0, again.stderr
    first, second = (one["pins"] for one in home.listed())
    assert [pin["sha256"] for pin in first] == [pin["sha256"] for pin in second]


def test_bundle_holds_uv_for_a_machine_without_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "#!/bin/sh\necho uv 0.9.0\n"
    write_wheel(home.folder / "simple", "uv", "0.9.0", {"uv-0.9.0.data/scripts/uv": program})
    bundle = home.folder / "bundle"
    done = home.set_up("jax", "--bundle", str(bundle))
    assert done.returncode == 0, done.stderr
    (wheel,) = (bundle / "tools").glob("*/uv-0.9.0-*.whl")
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(home.folder / "there"))
    uv.unpack_bundled(bundle)
    unpacked = tools_folder() / "uv" / "bin" / "uv"
    assert unpacked.read_text() == program and os.access(unpacked, os.X_OK)
    # A wheel that is not what its folder says is not taken.
    unpacked.unlink()
    wheel.write_bytes(wheel.read_bytes() + b"x")
    uv.unpack_bundled(bundle)
    assert not unpacked.exists()


def test_setup_when_the_index_has_another_file_than_the_lock(home: Home) -> None:
    assert home.set_up().returncode == 0
    lock = home.folder / "copy.lock"
    lock.write_text((Path(home.listed()[0]["folder"]) / "requirements.lock").read_text())
    write_wheel(home.folder / "simple", "jaxlib", jax_version(), {"jaxlib/other.py": ""})
    for path in (home.cache / "wheels").rglob("jaxlib*.whl"):
        path.unlink()
    words = ("setup", "--from", str(lock), "--name", "x", "--yes", "--manager", "pip")
    done = home.run(*words)
    assert (done.returncode, rule_of(done)) == (1, "lock-differs")
    assert [one["name"] for one in home.listed()] == ["jax"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("kaffe",), "unknown-framework"),
        (("jax", "--with", "jaxlib==0.0.1"), "no-such-packages"),
        (("jax", "-r", "nowhere.txt"), "requirements-not-readable"),
        (("jax", "--name", "../up"), "bad-environment-name"),
        (("jax", "torch", "--in", "x"), "options-exclude-each-other"),
        (("jax", "--in", "simple/jax/index.html"), "folder-not-empty"),
        (("jax", "--offline"), "wheels-not-here"),
    ],
)
def test_setup_when_it_cannot_be(home: Home, words: tuple[str, ...], rule: str) -> None:
    done = home.set_up(*words)
    assert rule_of(done) == rule
    assert done.returncode in (1, 2)
    assert home.listed() == []
    left = list(home.environments.iterdir()) if home.environments.exists() else []
    assert [path.name for path in left if path.name != ".lock"] == []


def test_setup_when_the_steps_do_not_run(home: Home) -> None:
    broken = {"jax/__init__.py": "raise ImportError('libcuda.so.1 is gone')"}
    write_wheel(home.folder / "simple", "jax", jax_version(), broken, ("jaxlib",))
    done = home.set_up()
    assert (done.returncode, rule_of(done)) == (1, "training-step-failed")
    assert "libcuda.so.1 is gone" in done.stderr
    assert home.listed() == []
    assert not (home.environments / "jax").exists()


def test_setup_when_the_driver_is_another(home: Home) -> None:
    assert home.set_up().returncode == 0
    record = Path(home.listed()[0]["folder"], "flatout-environment.json")

    def move_elsewhere() -> None:
        reported = json.loads(record.read_text())
        record.write_text(json.dumps({**reported, "machine": "driver 1"}))

    move_elsewhere()
    number = record.parent.stat().st_ino
    again = home.set_up()
    assert "verify it here" in again.stdout and "download" not in again.stdout, again.stderr
    assert record.parent.stat().st_ino == number
    assert json.loads(record.read_text())["machine"] != "driver 1"
    # Other packages, which do not run: the one that was proved is there as before.
    move_elsewhere()
    broken = {"jax/__init__.py": "raise ImportError('libcuda.so.1 is gone')"}
    write_wheel(home.folder / "simple", "jax", jax_version(), broken, ("jaxlib",))
    done = home.set_up()
    assert (done.returncode, rule_of(done)) == (1, "training-step-failed")
    assert "aside: it was created for another driver" in done.stdout
    assert record.parent.stat().st_ino == number and len(home.listed()) == 1
    assert {path.name for path in home.environments.iterdir()} == {".lock", "jax"}


def test_setup_when_another_is_under_way(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_ENVIRONMENTS", str(home.environments))
    with environments.locked():
        done = home.set_up()
    assert (done.returncode, rule_of(done)) == (2, "setup-in-progress")


@LINUX
def test_setup_when_killed_is_whole_or_not_there(home: Home) -> None:
    dice = random.Random(0)
    began = time.monotonic()
    assert home.set_up().returncode == 0
    whole_s = time.monotonic() - began
    for _ in range(4):
        assert home.run("setup", "--remove", "jax", "--yes").returncode == 0
        process = home.start("setup", "jax", *SETTINGS)
        time.sleep(dice.uniform(0.3, 1.0) * whole_s)
        # The whole group: a killed command line's installer would go on by itself.
        os.killpg(process.pid, 9)
        process.communicate()
        for one in home.listed():
            assert Path(one["folder"], "requirements.lock").exists()
        assert home.set_up().returncode == 0
        names = {path.name for path in home.environments.iterdir()}
        assert names == {".lock", "jax"}
        assert not list((home.environments / "jax").glob("flatout-half-made*"))


def test_name_of_an_environment_leads_to_its_interpreter(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.set_up().returncode == 0
    monkeypatch.setenv("FLATOUT_ENVIRONMENTS", str(home.environments))
    python = environments.requested_python(None, "jax")
    assert python == home.listed()[0]["python"]
    with pytest.raises(FlatoutError) as caught:
        environments.requested_python(None, "jaks")
    assert caught.value.rule == "unknown-environment" and "jax" in caught.value.fix
    with pytest.raises(FlatoutError) as both:
        environments.requested_python("python", "jax")
    assert both.value.rule == "python-and-environment"
    wrong = home.run("train", "digits", "--env", "jaks")
    assert (wrong.returncode, rule_of(wrong)) == (2, "unknown-environment")
