"""What flatout keeps on the disk: counted, and freed but for what is at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from flatout.cluster.node_processes import NodeCommand, NodeProcesses, log_path
from flatout.errors import UsageError
from flatout.schema.environment import EnvironmentSpec, MadeEnvironment, SmokeTestResult
from flatout.setup.flatout import disk_usage
from flatout.setup.model.disk_use import STATE_KINDS, DiskUse
from flatout.system import atomic_files
from flatout.system.paths import StateName
from flatout.system.store import environments
from flatout.system.store.environment_folder import NOTE

SRC = Path(__file__).parents[2] / "src"
# Where a file is that makes a folder one of flatout's; any other file elsewhere.
_FILES = {
    "runs": "a-0001/run.json", "sweeps": "a-0001/sweep.json", "tunes": "a-0001/run.json",
    "watched": "a-0001/watch.json", "monitor": "2026-11-01.jsonl", "interpreters.txt": "",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of flatout's own, and none of the person's."""
    for name in ("FLATOUT_DATA", "XDG_STATE_HOME", "XDG_CACHE_HOME", "FLATOUT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("FLATOUT_ENVIRONMENTS", str(tmp_path / "environments"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "share"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def kept(home: Path, kind: str) -> DiskUse:
    return next(use for use in disk_usage.disk_use() if use.kind == kind)


def write(path: Path, num_bytes: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(num_bytes))
    return path


def test_disk_use_when_there_is_nothing(home: Path) -> None:
    uses = disk_usage.disk_use()
    assert [use.num_items for use in uses] == [0] * len(uses)
    assert disk_usage.free(uses) == 0
    # Asking makes no folders.
    assert list(home.iterdir()) == []


def test_size_counts_what_is_linked_twice_once(tmp_path: Path) -> None:
    first = write(tmp_path / "a/file", 100_000)
    alone = disk_usage.size_of(tmp_path / "a", set())
    os.link(first, tmp_path / "a/link")
    assert alone >= 100_000
    assert disk_usage.size_of(tmp_path / "a", set()) - alone < 10_000


def test_size_follows_no_link_to_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "far/file", 100_000)
    (tmp_path / "near").mkdir()
    try:
        (tmp_path / "near/link").symlink_to(tmp_path / "far")
    except OSError:
        pytest.skip("needs the right to make links")
    assert disk_usage.size_of(tmp_path / "near", set()) < 100_000
    disk_usage.delete(tmp_path / "near")
    assert (tmp_path / "far/file").exists()


def test_free_deletes_what_is_asked_and_nothing_else(home: Path) -> None:
    recipe = write(home / "state/recipes/a.json", 1000)
    text = write(home / "share/flatout/data/tinyshakespeare/input.txt", 100_000)
    (text.parent / ".lock").touch()
    num_bytes = disk_usage.free([kept(home, "data")])
    assert num_bytes >= 100_000 and recipe.exists()
    assert not text.parent.exists()


@pytest.mark.parametrize("name", ["mine/file", "mnist/notes.txt", "mnist-shards/train/0.parquet"])
def test_free_leaves_what_a_person_put_among_the_data_sets(home: Path, name: str) -> None:
    mine = write(home / "share/flatout/data" / name, 1000)
    text = write(home / "share/flatout/data/tinyshakespeare/input.txt", 1000)
    digits = write(home / "share/flatout/data/mnist/t10k-labels-idx1-ubyte.gz", 1000)
    assert set(kept(home, "data").freeable) == {str(text), str(digits)}
    disk_usage.free(disk_usage.disk_use())
    assert mine.exists() and not text.exists() and not digits.exists()


def test_data_of_the_person_is_never_freed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = write(home / "mine/mnist/file", 1000)
    monkeypatch.setenv("FLATOUT_DATA", str(home / "mine"))
    assert kept(home, "data").num_items == 0
    disk_usage.free(disk_usage.disk_use())
    assert mine.exists()


def test_environments_made_elsewhere_are_counted_and_forgotten(home: Path) -> None:
    top, elsewhere = home / "environments", home / "elsewhere/mine"
    here = write(top / "torch/lib/file", 50_000)
    write(top / "torch/flatout-half-made.json", 10)
    own = write(top / "own/lib/file", 1000)
    write(elsewhere / "bin/python", 100_000)
    proof = SmokeTestResult(device="cpu", version="2.13.0", losses=(1.0, 0.5), deviation=0.0,
                  tolerance=0.1, at="2026-01-01T00:00:00Z")  # fmt: skip
    made = MadeEnvironment(
        name="mine", folder=str(elsewhere), python=str(elsewhere / "bin/python"),
        python_version="3.12", version="2.13.0", cuda="cpu", index=None, installer="pip",
        spec=EnvironmentSpec(framework="torch"), machine="", pins=(), size_bytes=1,
        made_at="2026-01-01T00:00:00Z", proof=proof,
    )  # fmt: skip
    atomic_files.write_json(elsewhere / "flatout-environment.json", made)
    pointer = top / "mine.json"
    pointer.write_text(json.dumps({"folder": str(elsewhere)}))
    found = kept(home, "environments")
    assert set(found.freeable) == {str(top / "torch"), str(elsewhere)}
    assert disk_usage.free([found]) >= 150_000
    assert not here.exists() and not elsewhere.exists() and not pointer.exists()
    assert own.exists()


def test_environments_are_not_freed_while_one_is_made(home: Path) -> None:
    file = write(home / "environments/torch/flatout-half-made.json", 1000)
    with environments.locked(), pytest.raises(UsageError, match="setup-in-progress"):
        disk_usage.free([kept(home, "environments")])
    assert file.exists()


def test_caches_hold_wheels_and_pages_of_indexes(home: Path) -> None:
    page = write(home / "state/indexes/torch-1.json", 1000)
    caches = kept(home, "caches")
    assert str(page) in caches.freeable and "wheels" in caches.text + caches.cost


@pytest.mark.parametrize("name", get_args(StateName))
def test_everything_in_the_state_folder_is_counted(home: Path, name: StateName) -> None:
    path = write(home / "state" / name / _FILES.get(name, "a-0001/a.json"), 50_000)
    if name == "recipes":
        path = path.replace(path.parents[1] / path.name)
    sizes = {use.kind: use.num_bytes for use in disk_usage.disk_use()}
    assert {kind for kind, size in sizes.items() if size >= 50_000} == {STATE_KINDS[name]}


def test_state_folder_is_written_to_by_those_names_alone() -> None:
    files = [path for path in SRC.rglob("*.py") if "state_folder" in path.read_text("utf-8")]
    # These look at it as a whole; others use `state_path`.
    assert {path.relative_to(SRC / "flatout").as_posix() for path in files} == {
        "system/paths.py", "monitor/api.py", "runs/top.py", "setup/flatout/api.py",
        "setup/flatout/disk_usage.py",
    }  # fmt: skip
    assert STATE_KINDS.keys() == set(get_args(StateName))


def test_logs_of_nodes_that_are_running_are_not_freed(home: Path) -> None:
    ended = write(home / "state/launches/ended-0001/node0.log", 10)
    folder = home / "state/launches/running-0001"
    nodes = NodeCommand(argv=(sys.executable, "-c", "import time; time.sleep(60)"))
    with NodeProcesses([nodes], folder):
        disk_usage.free([kept(home, "watched")])
        assert log_path(folder, 0).exists() and not ended.parent.exists()
    disk_usage.free([kept(home, "watched")])
    assert not folder.exists()


def test_delete_when_files_may_only_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "environment/.git/object", 10)
    path.chmod(0o400)
    disk_usage.delete(tmp_path / "environment")
    assert list(tmp_path.iterdir()) == []


def test_left_overs_of_a_removal_are_freed_with_caches(home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    old = write(home / f"environments/.torch-{done.stdout.strip()}/{NOTE}", 10)
    ours = write(home / f"environments/.jax-{os.getpid()}/{NOTE}", 10)
    of_others = [
        write(home / f"environments/.venv-{done.stdout.strip()}/file", 10),
        write(home / f"state/runs/.results-{done.stdout.strip()}/file", 10),
        write(home / "state/runs/.flatout-notes-1/file", 10),
    ]
    run = atomic_files.hidden_path(home / "state/runs/digits-0001")
    removed = write(run.with_name(run.name.replace(str(os.getpid()), done.stdout.strip())), 10)
    writing = write(run / "run.json", 10)
    disk_usage.free([kept(home, "caches")])
    assert not old.exists() and ours.exists() and all(path.exists() for path in of_others)
    assert not removed.exists() and writing.exists()


# With the command line, and with runs.


def disk(cli: Any, *arguments: str, **more: str) -> Any:
    own = {"HOME": str(cli.folder), "LOCALAPPDATA": str(cli.folder), "XDG_DATA_HOME": ""}
    return cli.run("disk", *arguments, **own, **more)


def test_disk_shows_runs_and_checkpoints(trained: Any) -> None:
    write(trained.runs / "mine-0001/checkpoints/000001/rank0-a.safetensors", 50_000)
    uses = {use["kind"]: use for use in json.loads(disk(trained, "--json").stdout)}
    assert uses["runs"]["num_items"] == uses["checkpoints"]["num_items"] == 1
    assert uses["checkpoints"]["freeable_bytes"] >= 50_000 > uses["runs"]["num_bytes"]
    shown = disk(trained).stdout
    assert "checkpoints" in shown and "flatout disk --free KIND" in shown


def test_disk_frees_only_when_agreed(trained: Any) -> None:
    file = write(trained.runs / "mine-0001/checkpoints/000001/rank0-a.safetensors", 50_000)
    asked = disk(trained, "--free", "checkpoints")
    assert asked.returncode == 1 and file.exists() and "nothing was deleted" in asked.stderr
    done = disk(trained, "--free", "checkpoints", "--yes", "--json")
    assert done.returncode == 0 and not file.exists()
    assert json.loads(done.stdout)["num_bytes"] >= 50_000
    assert (trained.runs / "mine-0001/run.json").exists()


def test_disk_keeps_checkpoints_of_unfinished_runs(trained: Any) -> None:
    file = write(trained.runs / "mine-0001/checkpoints/000001/rank0-a.safetensors", 50_000)
    events = trained.runs / "mine-0001/events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(line for line in lines if '"finished"' not in line))
    done = disk(trained, "--free", "checkpoints", "--yes")
    assert done.returncode == 0 and file.exists()
    assert "not finished" in done.stderr and "nothing to free" in done.stderr


@pytest.mark.parametrize("kind", ["runs", "undo", "tools", "cache"])
def test_disk_refuses_what_cannot_be_freed(cli: Any, kind: str) -> None:
    done = disk(cli, "--free", kind)
    assert done.returncode == 2 and "cannot-free" in done.stderr


def test_self_tells_its_sources(cli: Any) -> None:
    reported = json.loads(cli.run("self", "--json").stdout)
    assert reported["way"] in ("checkout", "pip") and reported["version"]


def test_self_update_refuses_in_a_checkout(cli: Any) -> None:
    done = cli.run("self", "update", "--version", "9.9")
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
