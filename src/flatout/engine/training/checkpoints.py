"""Checkpoints on the disk: written whole, checked on reading, the last few kept.

    checkpoints/000790/rank0-1f2e3d4c5b6a.safetensors   the tensors, named by their checksum
                       rank0.json                       which tensors, and everything else

A checkpoint is what its JSON file says, and that is written last and replaced in one go: writing
the same step again never harms the one that is there. One whose checksum is wrong is named and
passed over for the one before it; one that cannot be read for another reason is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from flatout.engine.ranks.protocol import RankGroup
from flatout.engine.tensors.safetensors_file import write_tensors
from flatout.engine.tensors.state_tree import Packed, unpack
from flatout.errors import RunFailed
from flatout.schema.finding import Finding, Fix
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder

FORMAT = 1
# If the newest is damaged, the one before it is read. Each takes the disk space of a whole state.
_NUM_KEPT = 2
_NAME_DIGITS = 12


@dataclass(frozen=True)
class Checkpoint:
    """A state read back from the checkpoint of that step."""

    step: int
    state: Any


def write_checkpoint(folder: RunFolder, step: int, packed: Packed) -> int:
    """Writes a checkpoint to the disk and removes those that are now too old.

    Returns:
        Its size in bytes. When this returns, a crash or power cut no longer loses it.
    """
    step_folder = folder.checkpoints / f"{step:06d}"
    with atomic_files.mapped_os_errors(step_folder):
        step_folder.mkdir(parents=True, exist_ok=True)
    size_bytes, sha256 = write_tensors(
        packed.tensors, {}, functools.partial(_tensor_path, step_folder)
    )
    tree = json.dumps(packed.tree, separators=(",", ":"))
    document = {
        "format": FORMAT,
        "step": step,
        "tensors_sha256": sha256,
        "state_sha256": hashlib.sha256(tree.encode()).hexdigest(),
    }
    body = json.dumps(document)[:-1] + ',"state":' + tree + "}\n"
    atomic_files.write_atomically(step_folder / "rank0.json", body.encode())
    with atomic_files.mapped_os_errors(folder.checkpoints):
        atomic_files.sync_folder(folder.checkpoints)
        prune(folder)
        _remove_others(step_folder, _tensor_path(step_folder, sha256))
    return size_bytes + len(body)


def _tensor_path(step_folder: Path, sha256: str) -> Path:
    return step_folder / f"rank0-{sha256[:_NAME_DIGITS]}.safetensors"


def _remove_others(step_folder: Path, kept: Path) -> None:
    """Removes the tensors of an earlier writing of the same step."""
    for path in step_folder.glob("rank0-*.safetensors"):
        if path != kept:
            with contextlib.suppress(OSError):
                path.unlink()


def read_checkpoint(
    folder: RunFolder, *, is_mapped: bool = False
) -> tuple[Checkpoint | None, list[Finding]]:
    """The newest whole checkpoint, or None; and a finding for each newer one that is damaged.

    Args:
        folder: the run's folder.
        is_mapped: the large parts of the state stay in the file; see `unpack`.

    Raises:
        RunFailed: no-whole-checkpoint, other-checkpoint-format; what keeps a file from being read.
    """
    damaged: list[tuple[Path, str]] = []
    for step in reversed(folder.checkpoint_steps()):
        step_folder = folder.checkpoints / f"{step:06d}"
        try:
            with atomic_files.mapped_os_errors(step_folder):
                state = _read_state(step_folder, step, is_mapped=is_mapped)
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            damaged.append((step_folder, str(error)))
            continue
        # Only now is there something to fall back on.
        findings = [_set_aside(damaged_folder, because) for damaged_folder, because in damaged]
        return Checkpoint(step=step, state=state), findings
    if damaged:
        raise RunFailed(
            "no-whole-checkpoint",
            f"all checkpoints of run {folder.path.name} are damaged.",
            because="; ".join(
                f"step {int(step_folder.name)}: {because}" for step_folder, because in damaged
            ),
            fix=f"to train from the beginning, delete {folder.checkpoints}",
        )
    return None, []


def newest_state(folder: RunFolder) -> Any:
    """The newest whole state in another run's folder, in which nothing is changed.

    Raises:
        RunFailed: no-whole-checkpoint.
    """
    problems = []
    for step in reversed(folder.checkpoint_steps()):
        try:
            return _read_state(folder.checkpoints / f"{step:06d}", step)
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            # It may also have been too old, and removed by a process that trains there.
            problems.append(f"step {step}: {error}")
    raise RunFailed(
        "no-whole-checkpoint",
        f"cannot read any checkpoint of run {folder.path.name}.",
        because="; ".join(problems) or "it has none",
        fix="start from another run's weights",
    )


def shared_checkpoint(
    folder: RunFolder, ranks: RankGroup
) -> tuple[Checkpoint | None, list[Finding]]:
    """The same for all ranks: the first one chooses, and the others read what it has chosen.

    Of several ranks each may need only parts: the large ones of the state stay in the file.

    Raises:
        RunFailed: see read_checkpoint.
    """
    own: list[Checkpoint | None] = []

    def choose() -> tuple[int | None, list[Finding]]:
        checkpoint, damaged = read_checkpoint(folder, is_mapped=ranks.size > 1)
        own.append(checkpoint)
        return checkpoint.step if checkpoint is not None else None, damaged

    step, damaged = ranks.broadcast_from_rank0(choose, tuple[int | None, list[Finding]])
    if own:
        return own[0], damaged
    if step is None:
        return None, []
    step_folder = folder.checkpoints / f"{step:06d}"
    with atomic_files.mapped_os_errors(step_folder):
        return Checkpoint(step=step, state=_read_state(step_folder, step, is_mapped=True)), []


def _read_state(step_folder: Path, step: int, *, is_mapped: bool = False) -> Any:
    document = json.loads((step_folder / "rank0.json").read_bytes())
    tree = json.dumps(document["state"], separators=(",", ":"))
    if document["format"] != FORMAT:
        raise RunFailed(
            "other-checkpoint-format",
            f"{step_folder} was written by another version of flatout.",
            because=f"it has format {document['format']}, this version reads format {FORMAT}",
            fix="resume with the version that started the run (see its run.json)",
        )
    if document["step"] != step:
        raise ValueError(f"rank0.json belongs to step {document['step']}")
    if hashlib.sha256(tree.encode()).hexdigest() != document["state_sha256"]:
        raise ValueError("the checksum of rank0.json is wrong")
    path = _tensor_path(step_folder, document["tensors_sha256"])
    if not path.exists():
        raise ValueError(f"{path.name} is missing")
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != document["tensors_sha256"]:
        raise ValueError(f"the checksum of {path.name} is wrong")
    try:
        return unpack(document["state"], safetensors.torch.load_file(path), is_mapped=is_mapped)
    except RunFailed as error:
        raise ValueError(error.because) from error


def _set_aside(step_folder: Path, because: str) -> Finding:
    """Renames a damaged checkpoint, so that it is neither used nor counted, but kept to look at."""
    aside = step_folder.with_name(f"{step_folder.name}.damaged")
    with atomic_files.mapped_os_errors(step_folder):
        shutil.rmtree(aside, ignore_errors=True)
        atomic_files.move_into_place(step_folder, aside)
    return Finding(
        rule="damaged-checkpoint",
        severity="warning",
        problem=f"the checkpoint of step {int(step_folder.name)} is damaged; skipping it.",
        because=because,
        evidence=(f"moved to {aside}",),
        fixes=(Fix(text="check the disk if this happens again"),),
    )


def prune(folder: RunFolder) -> None:
    """Removes checkpoints that are too old, and what a crash left half-written."""
    kept = folder.checkpoint_steps()[-_NUM_KEPT:]
    for step_folder in folder.checkpoints.iterdir():
        if step_folder.name.isdigit() and int(step_folder.name) not in kept:
            # The JSON goes first: without it the rest does not count, however far this comes. What
            # is held open by another program (a virus scanner under Windows) is removed the next
            # time.
            with contextlib.suppress(OSError):
                (step_folder / "rank0.json").unlink(missing_ok=True)
                shutil.rmtree(step_folder)
