"""Checkpoints on the disk: written whole, checked on reading, the last few kept.

    checkpoints/000790/rank0.safetensors    the tensors
                       rank0.json           their checksum and everything else; written last

A checkpoint without a valid JSON file does not exist; one whose checksum is wrong is named and
passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from flatout.engine.state import Packed, unpack
from flatout.errors import RunFailed
from flatout.nouns.finding import Finding, Fix
from flatout.system import store
from flatout.system.runs import RunFolder

FORMAT = 1
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A state read back, and the newer ones that were damaged."""

    step: int
    state: Any


def write_checkpoint(folder: RunFolder, step: int, packed: Packed, *, rank: int = 0) -> int:
    """Writes a checkpoint to the disk and removes those that are now too old.

    Returns:
        Its size in bytes. When this returns, a crash or power cut no longer loses it.
    """
    place = folder.checkpoints / f"{step:06d}"
    with store.mapped_os_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        size_bytes, sha256 = write_tensors(place / f"rank{rank}.safetensors", packed.tensors, {})
    tree = json.dumps(packed.tree, separators=(",", ":"))
    document = {
        "format": FORMAT,
        "step": step,
        "tensors_sha256": sha256,
        "state_sha256": hashlib.sha256(tree.encode()).hexdigest(),
    }
    body = json.dumps(document)[:-1] + ',"state":' + tree + "}\n"
    store.write_atomically(place / f"rank{rank}.json", body.encode())
    with store.mapped_os_errors(folder.checkpoints):
        store.sync_folder(folder.checkpoints)
        prune(folder)
    return size_bytes + len(body)


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]
) -> tuple[int, str]:
    """Writes a safetensors file atomically; gives its size in bytes and its SHA-256."""
    part = store.part_path(path)
    with store.mapped_os_errors(path):
        try:
            safetensors.torch.save_file(tensors, part, metadata)
        except safetensors.SafetensorError as error:
            raise _as_os_error(error, path) from error
        # Opened for writing: Windows syncs a file only through a handle that may write.
        with open(part, "r+b") as file:
            os.fsync(file.fileno())
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size_bytes = part.stat().st_size
        store.move_into_place(part, path)
    return size_bytes, sha256


def _as_os_error(error: safetensors.SafetensorError, path: Path) -> Exception:
    """The library reports a full disk as text; its number is what the seam maps."""
    text = str(error)
    number = next((int(n) for n in text.replace(")", " ").split() if n.isdigit()), None)
    if "os error" in text and number is not None:
        return OSError(number, os.strerror(number))
    return RunFailed(
        "tensors-not-written",
        f"cannot write {path}.",
        because=text,
        fix="report this with the run's folder: it should not happen",
    )


def read_checkpoint(folder: RunFolder) -> tuple[Checkpoint | None, list[Finding]]:
    """The newest whole checkpoint, or None; and a finding for each newer one that is damaged."""
    damaged: list[Finding] = []
    for step in reversed(folder.checkpoint_steps()):
        place = folder.checkpoints / f"{step:06d}"
        try:
            return Checkpoint(step=step, state=_read_state(place, step)), damaged
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            damaged.append(_set_aside(place, str(error)))
        except RunFailed as error:
            damaged.append(_set_aside(place, error.because or error.problem))
    return None, damaged


def _read_state(place: Path, step: int) -> Any:
    document = json.loads((place / "rank0.json").read_bytes())
    tree = json.dumps(document["state"], separators=(",", ":"))
    if document["format"] != FORMAT or document["step"] != step:
        raise ValueError(f"format {document['format']}, step {document['step']} in rank0.json")
    if hashlib.sha256(tree.encode()).hexdigest() != document["state_sha256"]:
        raise ValueError("the checksum of rank0.json is wrong")
    path = place / "rank0.safetensors"
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != document["tensors_sha256"]:
        raise ValueError("the checksum of rank0.safetensors is wrong")
    return unpack(document["state"], safetensors.torch.load_file(path))


def _set_aside(place: Path, because: str) -> Finding:
    """Renames a damaged checkpoint, so that it is neither used nor counted, but kept to look at."""
    aside = place.with_name(f"{place.name}.damaged")
    with store.mapped_os_errors(place):
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(place, aside)
    return Finding(
        rule="damaged-checkpoint",
        severity="warning",
        problem=f"the checkpoint of step {int(place.name)} is damaged and is passed over.",
        because=because,
        evidence=(f"set aside as {aside}",),
        fixes=(Fix(text="check the disk if this happens again"),),
    )


def prune(folder: RunFolder) -> None:
    """Removes checkpoints that are too old, and what a crash left half-written."""
    kept = folder.checkpoint_steps()[-_KEPT:]
    for place in folder.checkpoints.iterdir():
        if place.name.isdigit() and int(place.name) not in kept:
            # The JSON goes first: without it the rest does not count, however far this comes.
            (place / "rank0.json").unlink(missing_ok=True)
            shutil.rmtree(place)
