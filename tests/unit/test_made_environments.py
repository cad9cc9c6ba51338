"""Environments by their records: whose a folder is, and none lost where its making fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.made_environments import PIN, put_environment

from flatout.cli.main import run
from flatout.errors import UsageError
from flatout.schema.environment import MadeEnvironment
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.machine import Machine
from flatout.schema.run import RunHeader
from flatout.setup.env import manage
from flatout.setup.env.existing import lacking, state_of
from flatout.setup.env.location import location_for
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import bundles
from flatout.system import atomic_files
from flatout.system.host_system import LocalSystem
from flatout.system.paths import environments_folder, runs_folder
from flatout.system.probes.machine import probe
from flatout.system.store import environment_folder, environments, run_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    environments_folder().mkdir()
    return tmp_path


def put(name: str, folder: Path | None = None) -> MadeEnvironment:
    return put_environment(name, "jax", folder)


def refused(name: str, folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        environments.folder_for(name, str(folder))
    with pytest.raises(UsageError):
        environments.begin(name, folder)
    assert caught.value.rule == "folder-not-empty"
    return caught.value.because or ""


def test_folder_of_another_environment_is_not_taken(home: Path) -> None:
    put("torch", home / "e")
    assert "it contains the environment `torch`" in refused("jax", home / "e")
    (home / "e").rename(home / "moved")
    assert "a copy" in refused("torch", home / "moved")
    assert (home / "moved/file").read_text() == "torch"


@pytest.mark.parametrize("is_asked", [False, True])
def test_folder_of_a_person_is_not_taken(home: Path, is_asked: bool) -> None:
    own = environments_folder() / "torch"
    own.mkdir()
    (own / "thesis.py").write_text("mine")
    with pytest.raises(UsageError, match="not flatout's"):
        environments.folder_for("torch", str(own) if is_asked else None)
    with pytest.raises(UsageError, match="not flatout's"):
        environments.begin("torch", own)
    assert [path.name for path in own.iterdir()] == ["thesis.py"]
    own.rename(home / "away")
    own.write_text("a file")
    assert "it is a file" in refused("torch", own)


def test_file_of_a_person_is_not_overwritten_by_what_leads_to_a_folder(home: Path) -> None:
    own = environments_folder() / "torch.json"
    own.write_text('{"folder": "/tmp", "mine": 1}')
    assert "torch.json" in refused("torch", home / "elsewhere")
    put("torch")
    manage.remove("torch")
    assert "mine" in own.read_text()


def test_sweep_leaves_what_is_not_of_flatout(home: Path) -> None:
    top = environments_folder()
    names = ("torch", ".torch.before", ".mine.before", ".old.removed-2019", "plain")
    for name in names:
        (top / name).mkdir()
        (top / name / "thesis.py").write_text("mine")
    (top / "mine").mkdir()
    for name in ("keys.json", "place.json"):
        (top / name).write_text('{"folder": "/nowhere", "secret": 1}')
    (top / "torn.json").write_text("")
    (home / "target").mkdir()
    (home / "target" / environment_folder.RECORD).write_text("{}")
    (top / ".link.removed-5").symlink_to(home / "target")
    before = {str(path) for path in home.rglob("*")}
    environments.sweep()
    environments.sweep()
    assert {str(path) for path in home.rglob("*")} == before


def test_sweep_when_the_place_of_one_before_is_taken_keeps_both(home: Path) -> None:
    made = Path(put("torch").folder)
    environment_folder.set_aside(made)
    made.mkdir()
    (made / "thesis.py").write_text("mine")
    environments.sweep()
    assert [path.name for path in made.iterdir()] == ["thesis.py"]
    assert (made.with_name(".torch.before") / "file").exists()


def test_sweep_ends_a_removal_wherever_it_was_cut_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path(put("torch").folder)
    with monkeypatch.context() as killed:
        killed.setattr(environment_folder, "remove_tree", lambda _: None)
        manage.remove("torch")
    (gone,) = environments_folder().glob(".torch.removed-*")
    with monkeypatch.context() as held_open:
        held_open.setattr(Path, "unlink", unlink_but_of("file", Path.unlink))
        environments.sweep()
    assert {path.name for path in gone.iterdir()} == {"file", environment_folder.NOTE}
    environments.sweep()
    assert not gone.exists() and not made.exists()


def unlink_but_of(name: str, unlink: Callable[..., None]) -> Callable[..., None]:
    """How Windows deletes while a program has a file of that name open."""

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path.name == name:
            raise PermissionError
        unlink(path, missing_ok=missing_ok)

    return unlinked


def test_one_before_that_is_half_removed_is_not_put_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path(put("torch").folder)
    with monkeypatch.context() as killed:
        killed.setattr(environment_folder, "remove_tree", lambda _: None)
        again = put("torch")
    assert (made.with_name(".torch.before") / "file").exists()
    environment_folder.restore(made)
    assert environments.read_environment("torch") == again
    environments.sweep()
    assert [path.name for path in environments_folder().iterdir()] == ["torch"]


def test_record_in_a_copied_folder_is_not_believed(home: Path) -> None:
    made = put("torch")
    copied = environments_folder() / "backup"
    copied.mkdir()
    record = Path(made.folder, environment_folder.RECORD)
    (copied / record.name).write_bytes(record.read_bytes())
    assert [one.name for one in manage.list_environments()] == ["torch"]
    with pytest.raises(UsageError) as caught:
        manage.remove("backup")
    assert caught.value.rule == "unknown-environment" and (record.parent / "file").exists()


@pytest.mark.parametrize("is_killed", [False, True])
def test_making_again_when_it_fails_leaves_the_one_before(home: Path, is_killed: bool) -> None:
    made = put("jax")
    folder = Path(made.folder)
    environments.begin("jax", folder)
    (folder / "half").write_text("")
    assert environments.read_environment("jax") is None
    if is_killed:
        environments.sweep()
    else:
        environment_folder.restore(folder)
    assert environments.read_environment("jax") == made
    assert {path.name for path in folder.iterdir()} == {
        "file", "requirements.lock", environment_folder.RECORD}  # fmt: skip
    assert [path.name for path in environments_folder().iterdir()] == ["jax"]


def test_making_again_when_killed_before_the_folder_is_there(home: Path) -> None:
    made = put("jax")
    environment_folder.set_aside(Path(made.folder))
    environments.sweep()
    assert environments.read_environment("jax") == made


def test_making_again_when_it_is_whole_forgets_the_one_before(home: Path) -> None:
    put("jax")
    put("jax")
    assert [path.name for path in environments_folder().iterdir()] == ["jax"]


def test_folder_that_is_empty_stays_in_its_place(home: Path) -> None:
    folder = home / "disk"
    folder.mkdir()
    number = folder.stat().st_ino
    environments.begin("jax", folder)
    assert folder.stat().st_ino == number


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_folder_that_must_keep_its_name_is_emptied(home: Path) -> None:
    folder = home / "above" / "disk"
    put("jax", folder)
    folder.parent.chmod(0o555)
    try:
        if folder.parent.stat().st_uid == 0:
            environment_folder._empty(folder)  # Permissions do not hold for root.
        else:
            manage.remove("jax")
        assert list(folder.iterdir()) == []
    finally:
        folder.parent.chmod(0o755)


def test_sweep_when_a_disk_is_not_there_keeps_what_leads_to_it(home: Path) -> None:
    put("jax", home / "disk" / "jax")
    (home / "disk").rename(home / "away")
    environments.sweep()
    (home / "away").rename(home / "disk")
    assert environments.read_environment("jax") is not None


def test_environment_in_which_a_run_is_trained_is_left(home: Path) -> None:
    made = put("jax")
    header = RunHeader(
        id="digits-0001", created_at=0.0, flatout_version="0.1.0",
        spec=ExperimentSpec(name="digits"), python=str(Path(made.folder, "bin", "python")),
    )  # fmt: skip
    lock = run_folder.create_run(header, runs_folder()).lock()
    assert lock.acquire()
    try:
        with pytest.raises(UsageError) as caught:
            manage.remove("jax")
        assert caught.value.rule == "environment-in-use"
        assert "digits-0001" in (caught.value.because or "")
        manage.require_unused("other", str(environments_folder() / "other"))
    finally:
        lock.release()
    manage.remove("jax")


def test_remove_when_dry_removes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put("jax")
    assert run(["setup", "--remove", "jax", "--dry-run", "--yes"]) == 0
    assert "0.9.0" in capsys.readouterr().out
    assert run(["setup", "--remove", "jax", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["removed"] is None
    assert environments.read_environment("jax") is not None
    assert run(["setup", "--remove", "jax", "--json", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == "jax"
    assert environments.read_environment("jax") is None


def test_bundle_when_it_was_cut_off_is_gone_on_with(home: Path) -> None:
    folder = bundles.bundle_folder(str(home / "bundle"))
    bundles.put_wheels(folder, "jax", ())
    assert bundles.bundle_folder(str(folder)) == folder
    bundles.finish(folder, "lock")
    assert {path.name for path in folder.iterdir()} == {"wheels", "requirements.lock"}
    # While wheels are replaced, no lock says that they are those of before.
    bundles.put_wheels(folder, "jax", ())
    assert not (folder / "requirements.lock").exists()
    with pytest.raises(UsageError):
        bundles.bundle_folder(str(Path(put("jax", home / "e").folder)))


def test_bundle_is_no_matter_of_an_environment_of_that_name(home: Path) -> None:
    put("jax")
    place = location_for(EnvironmentRequest(bundle=str(home / "bundle")), "jax")
    assert (place.folder, place.there) == (home / "bundle", None)
    assert place.state((PIN,), "3.12", machine()) == "bundle"


def test_state_by_what_is_there_and_what_was_decided(home: Path) -> None:
    there, here = put("jax"), machine()
    newer = msgspec.structs.replace(PIN, version="0.9.1")
    assert state_of(None, (PIN,), "3.12", here) == "new"
    # An address with a password is kept without it: the hash is what counts.
    moved = msgspec.structs.replace(PIN, url="https://me:secret@example.org/jax.whl")
    assert state_of(there, (moved,), "3.12", here) == "same-packages"
    assert state_of(there, (newer,), "3.12", here) == "other-machine"
    same = msgspec.structs.replace(there, machine=machine_words(here))
    assert state_of(same, (newer,), "3.12", here) == "other-packages"


def test_packages_that_are_lacking_by_name_or_version() -> None:
    asked = ("jax>=0.9.1", "jax>=0.8", "numpy", "pywin32; sys_platform == 'none'")
    assert lacking(asked, (PIN,)) == ["jax>=0.9.1", "numpy"]


def machine() -> Machine:
    return probe(LocalSystem(), sys.executable)


def machine_words(here: Machine) -> str:
    from flatout.setup.env.context import machine_text

    return machine_text(here)


def test_folder_whose_note_was_half_written_is_used_again(home: Path) -> None:
    folder = environments_folder() / "jax"
    folder.mkdir(parents=True)
    atomic_files.part_path(folder / environment_folder.NOTE).write_text("{")
    assert environments.folder_for("jax", None) == folder
    put("jax")
    assert environments.read_environment("jax") is not None


def test_whole_environment_loses_the_note_of_its_making(home: Path) -> None:
    folder = environments_folder() / "jax"
    put("jax")
    atomic_files.write_json(folder / environment_folder.NOTE, environment_folder.note("jax"))
    environment_folder.forget_note(folder)
    assert not (folder / environment_folder.NOTE).exists()
    half = environments_folder() / "half"
    half.mkdir()
    atomic_files.write_json(half / environment_folder.NOTE, environment_folder.note("half"))
    environment_folder.forget_note(half)
    assert (half / environment_folder.NOTE).exists()
