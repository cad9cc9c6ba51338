"""Checkpoints: whole or passed over by name, the last good one never touched."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from flatout.engine import Experiment
from flatout.engine.tensors.safetensors_file import write_tensors
from flatout.engine.tensors.state_tree import pack
from flatout.engine.training.checkpoints import prune, read_checkpoint, write_checkpoint
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.run_lines import Checkpointed, Event, Failed
from flatout.system import atomic_files
from flatout.system.store.run_claim import RunClaim
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
IS_WINDOWS = sys.platform == "win32"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run's folder with checkpoints of the steps 10 and 20."""
    made = RunFolder(tmp_path / "run")
    for step in (10, 20):
        write_checkpoint(made, step, packed(step))
    return made


def packed(step: int, size: int = 100) -> Any:
    return pack({"weights": torch.full((size,), float(step)), "count": step})


def flip(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def cut(path: Path, to: float) -> None:
    path.write_bytes(path.read_bytes()[: int(to * path.stat().st_size)])


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


JSON = "rank0.json"


def tensors_of(place: Path) -> Path:
    [path] = place.glob("rank0-*.safetensors")
    return path


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tensors cut": lambda place: cut(tensors_of(place), 0.7),
    "tensors empty": lambda place: cut(tensors_of(place), 0),
    "tensors gone": lambda place: tensors_of(place).unlink(),
    "bit flipped in tensors": lambda place: flip(tensors_of(place), 0.9),
    "bit flipped in tensors' header": lambda place: flip(tensors_of(place), 0),
    "json cut": lambda place: cut(place / JSON, 0.5),
    "json empty": lambda place: cut(place / JSON, 0),
    "json is another kind": lambda place: (place / JSON).write_text("[1, 2]"),
    "json is not text": lambda place: (place / JSON).write_bytes(b"\xff\xfe\x00"),
    "bit flipped in the state": lambda place: flip(place / JSON, 0.97),
    "another checksum": lambda place: change_json(place / JSON, tensors_sha256="0" * 64),
    "another step": lambda place: change_json(place / JSON, step=19),
    "another state": lambda place: change_json(place / JSON, state={"dict": []}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_checkpoint_is_passed_over_when_damaged(folder: RunFolder, damage: str) -> None:
    DAMAGES[damage](folder.checkpoints / "000020")
    checkpoint, findings = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.step == 10
    assert checkpoint.state["count"] == 10 and checkpoint.state["weights"][0] == 10
    [finding] = findings
    assert finding.rule == "damaged-checkpoint" and "step 20" in finding.problem
    assert finding.because
    aside = folder.checkpoints / "000020.damaged"
    assert str(aside) in finding.evidence[0] and aside.is_dir()
    # Told once: the next time it is no longer a checkpoint.
    assert read_checkpoint(folder)[1] == []
    assert folder.checkpoint_steps() == [10]


def test_checkpoint_does_not_count_when_its_json_is_missing(folder: RunFolder) -> None:
    (folder.checkpoints / "000020" / JSON).unlink()
    checkpoint, findings = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.step == 10 and not findings


def test_run_is_not_begun_anew_when_all_are_damaged(folder: RunFolder) -> None:
    for step in ("000010", "000020"):
        cut(tensors_of(folder.checkpoints / step), 0.5)
    for _ in range(2):  # nothing was changed by asking
        with pytest.raises(RunFailed) as caught:
            read_checkpoint(folder)
        assert caught.value.rule == "no-whole-checkpoint"
        assert "step 10" in (caught.value.because or "")


def test_checkpoint_of_another_format_is_left_alone(folder: RunFolder) -> None:
    change_json(folder.checkpoints / "000020" / JSON, format=99)
    with pytest.raises(RunFailed) as caught:
        read_checkpoint(folder)
    assert caught.value.rule == "other-checkpoint-format"
    assert folder.checkpoint_steps() == [10, 20]


def test_checkpoint_stays_whole_when_its_step_is_written_again_and_cut_off(
    folder: RunFolder,
) -> None:
    place = folder.checkpoints / "000020"
    before = (place / JSON).read_bytes()
    old = tensors_of(place).read_bytes()
    write_checkpoint(folder, 20, packed(21))
    # As a crash would leave it between the two files: the new tensors, the old description.
    new = tensors_of(place)
    (place / JSON).write_bytes(before)
    (place / f"rank0-{hashlib.sha256(old).hexdigest()[:12]}.safetensors").write_bytes(old)
    checkpoint, findings = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.state["count"] == 20 and not findings
    assert new.exists()


def test_last_two_are_kept(folder: RunFolder) -> None:
    write_checkpoint(folder, 30, packed(30))
    write_checkpoint(folder, 1_000_000, packed(1_000_000))
    assert folder.checkpoint_steps() == [30, 1_000_000]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["000030", "1000000"]
    checkpoint, _ = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.step == 1_000_000


def test_leftovers_of_a_crash_are_harmless(folder: RunFolder) -> None:
    half = folder.checkpoints / "000030"
    half.mkdir()
    (half / "tensors.part").write_bytes(b"half")
    (half / "rank0-0123456789ab.safetensors").write_bytes(b"whole, but its json was never written")
    (folder.checkpoints / "000020" / f"{JSON}.part").write_bytes(b"half")
    checkpoint, findings = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.step == 20 and not findings
    write_checkpoint(folder, 30, packed(30))
    checkpoint, findings = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.step == 30 and not findings
    prune(folder)
    assert folder.checkpoint_steps() == [20, 30]


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 1 MiB on that folder; skips where there can be none."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a full disk needs Linux and root: a small file system is mounted")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"a full disk needs a mount: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextmanager
def small_files() -> Iterator[None]:
    """No file may become larger than 256 KiB, as on a full disk."""
    if sys.platform == "win32":
        pytest.skip("a limit on the size of files needs POSIX")
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Without it the process is killed instead of told.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def write_too_much(folder: RunFolder) -> None:
    with pytest.raises(RunFailed) as caught:
        write_checkpoint(folder, 30, packed(30, size=400_000))
    assert caught.value.rule == "disk-full"
    assert folder.checkpoint_steps() == [10, 20]
    checkpoint, findings = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.step == 20 and not findings
    # The half of a file must not take the room that the run's last words need.
    assert not list(folder.path.rglob("*.part"))


def test_last_checkpoint_is_whole_when_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        folder = RunFolder(tmp_path / "run")
        for step in (10, 20):
            write_checkpoint(folder, step, packed(step))
        write_too_much(folder)


def test_last_checkpoint_is_whole_when_a_file_may_not_grow(folder: RunFolder) -> None:
    with small_files():
        write_too_much(folder)


def test_run_fails_and_goes_on_when_the_disk_was_full(
    lab: Lab, tell: Tell, plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lab.run(plain(), checkpoint_every=4)
    state = tmp_path / "disk"
    state.mkdir()
    with small_disk(state):
        monkeypatch.setenv("FLATOUT_STATE", str(state))
        folder = lab.new(checkpoint_every=4)
        lab.go_on(folder, plain(), stop_after=8)
        ballast = state / "ballast"
        fill(ballast)
        with pytest.raises(RunFailed) as caught:
            lab.go_on(folder, plain())
        assert caught.value.rule == "disk-full"
        assert tell.state(folder)["position"]["step"] == 8
        ballast.unlink()
        lab.go_on(folder, plain())
        assert tell.traces(folder) == tell.traces(whole)


def fill(path: Path) -> None:
    """Leaves a page on the disk: enough for a line, too little for a checkpoint."""
    free = shutil.disk_usage(path.parent).free
    path.write_bytes(bytes(free - 8192))


@pytest.mark.skipif(IS_WINDOWS, reason="a read-only folder needs POSIX permissions")
def test_write_tensors_when_the_folder_is_read_only(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("a read-only folder needs another user than root, who may write anywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError) as caught:
            write_checkpoint(RunFolder(tmp_path / "run"), 1, packed(1))
        assert caught.value.rule == "folder-not-writable"
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(IS_WINDOWS, reason="a mount that is read-only needs Linux")
def test_run_is_as_it_was_when_its_disk_is_read_only(
    lab: Lab, tell: Tell, plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "disk"
    state.mkdir()
    with small_disk(state):
        monkeypatch.setenv("FLATOUT_STATE", str(state))
        folder = lab.new()
        lab.go_on(folder, plain(), stop_after=5)
        subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
        with pytest.raises(FlatoutError) as caught:
            lab.go_on(folder, plain())
        assert caught.value.rule == "folder-not-writable"
        assert tell.state(folder)["position"]["step"] == 5


def test_write_tensors_when_the_place_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        write_tensors(packed(1).tensors, {}, lambda _: tmp_path / "nowhere" / "a.safetensors")
    assert caught.value.rule == "file-not-accessible"


def test_run_goes_on_from_the_one_before_when_the_last_is_damaged(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    whole = lab.run(plain(), checkpoint_every=4)
    folder = lab.new(checkpoint_every=4)
    lab.go_on(folder, plain(), stop_after=10)
    assert folder.checkpoint_steps() == [8, 10]
    flip(tensors_of(folder.checkpoints / "000010"), 0.5)
    lab.go_on(folder, plain())
    assert "damaged-checkpoint" in tell.rules(folder)
    assert tell.traces(folder) == tell.traces(whole)


def test_checkpoints_are_reported_with_their_cost(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(), checkpoint_every=5)
    lines = tell.events(folder, Checkpointed)
    assert [line.step for line in lines] == [5, 10, 15, 20, 21]
    for line in lines:
        assert line.stall_s > 0 and line.write_s > 0 and line.slowdown_s >= 0
        assert line.size_bytes > 1000
    last = folder.checkpoints / "000021"
    assert lines[-1].size_bytes == sum(path.stat().st_size for path in last.iterdir())
    run = read_run(folder)
    assert run.checkpoint_step == 21 and run.finished is not None
    assert 0 < (run.finished.checkpoint_share or 0) < 1


def test_a_run_that_another_process_takes_over_is_written_no_more(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    experiment, folder = plain(), lab.new(checkpoint_every=4)
    calls = 0

    def loss(model: torch.nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += model.training
        if model.training and calls == 6:
            # As one does that the lock has not kept out.
            RunClaim(folder.writer)
        return experiment.loss(model, batch)  # type: ignore[misc]

    with pytest.raises(UsageError, match="another process has taken over") as caught:
        lab.go_on(folder, dataclasses.replace(experiment, loss=loss))
    assert caught.value.rule == "run-in-use"
    assert folder.checkpoint_steps() == [4]
    assert not any(
        isinstance(line, Failed) for line in atomic_files.read_lines(folder.events, Event)
    )


def test_failure_is_reported_when_the_run_has_no_room_left(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.new()
    with small_files(), pytest.raises(RunFailed):
        lab.go_on(folder, plain(model=large_model))
    assert tell.events(folder, Failed)[-1].finding.rule == "disk-full"
    assert atomic_files.read_lines(folder.metrics, Any)


def large_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 20_000), torch.nn.ReLU(), torch.nn.Linear(20_000, 3)
    )
