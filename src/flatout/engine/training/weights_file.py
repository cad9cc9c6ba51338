"""Weights in a file of their own: kept by a run, and taken to begin another with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from flatout.engine.model.late_buffers import take_forms
from flatout.engine.session.session import Session
from flatout.engine.tensors.safetensors_file import DTYPES, SEAL, seal_of, write_tensors
from flatout.engine.tensors.state_tree import Packed, pack
from flatout.engine.training.checkpoints import newest_state
from flatout.errors import UsageError
from flatout.system.store.run_folder import RunFolder


def weights_metadata(session: Session, weights: Packed) -> dict[str, str]:
    """Metadata of the tensors: from which step, by which metric, and which are tied."""
    position = session.position
    is_best = session.validation_feed is not None
    metadata = {
        "step": str(position.best_step if is_best else position.step),
        "ties": _ties(weights),
        # The transformers library takes no file that does not say so.
        "format": "pt",
    }
    if is_best:
        metadata[session.experiment.best] = repr(position.best_value)
    return metadata


def _ties(weights: Packed) -> str:
    ties = {
        name: tree["tensor"]
        for name, tree in weights.tree["dict"]
        if isinstance(tree, dict) and tree.get("tensor", name) != name
    }
    return json.dumps(ties)


def init_weights(model: nn.Module, path: Path) -> None:
    """Gives a model the weights of a safetensors file, or of the last checkpoint of a run's folder.

    Raises:
        UsageError: weights-not-readable, weights-damaged, weights-do-not-fit.
        RunFailed: no-whole-checkpoint.
    """
    if path.is_dir():
        _load_checkpoint(model, path)
        return
    tensors, _ = read_weights(path)
    load_weights(model, tensors, path)


@torch.no_grad()
def _load_checkpoint(model: nn.Module, path: Path) -> None:
    state = newest_state(RunFolder(path))
    load_weights(model, dict(state["model"]), path)
    if state["average"] is not None:
        # What would be validated and kept of that run.
        averaged = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        for parameter, average in zip(averaged, state["average"]["averages"], strict=True):
            parameter.copy_(average)


def keep_weights(model: nn.Module, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a model's weights into a safetensors file, with more metadata."""
    packed = pack(dict(model.state_dict()))
    write_tensors(packed.tensors, {**(metadata or {}), "ties": _ties(packed)}, lambda _: path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file by name, tied ones too, and their metadata.

    A file that flatout has kept is compared with its checksum; others and older ones have none.

    Raises:
        UsageError: weights-not-readable, weights-damaged.
    """
    try:
        # One open file gives both: a process that trains may put another in its place in the
        # meantime.
        with safetensors.safe_open(path, framework="pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata: dict[str, str] = file.metadata() or {}
            ties = json.loads(metadata.get("ties", "{}"))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise UsageError(
            "weights-not-readable",
            f"cannot read weights from {path}.",
            because=str(error),
            fix="give a .safetensors file, or a run that has weights",
        ) from error
    _check_seal(path, tensors, metadata)
    return tensors | {name: tensors[tie] for name, tie in ties.items() if tie in tensors}, metadata


def _check_seal(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    seal = metadata.get(SEAL)
    if seal is None:
        return
    is_known = all(tensor.dtype in DTYPES for tensor in tensors.values())
    if is_known and seal_of(tensors, metadata) == seal:
        return
    raise UsageError(
        "weights-damaged",
        f"the weights in {path} are not what flatout wrote.",
        because="their checksum (SHA-256) differs: the file was damaged or changed",
        fix="use a copy of it, or weights of another run; a run with checkpoints resumes from "
        "them: flatout train --resume RUN",
    )


@torch.no_grad()
def load_weights(
    model: nn.Module, tensors: dict[str, Tensor], path: Path, *, are_own: bool = False
) -> None:
    """Gives a model these weights, every one of them; `path` is where they are from.

    Args:
        model: is changed.
        tensors: by name.
        path: where they are from.
        are_own: they were trained in this model, whose buffers may have grown in the meantime.

    Raises:
        UsageError: weights-do-not-fit.
    """
    if are_own:
        take_forms(model, tensors)
    expected = model.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is not in the model" for name in tensors if name not in expected]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if problems:
        raise UsageError(
            "weights-do-not-fit",
            f"the weights in {path} do not fit the model.",
            because="; ".join(problems[:4]) + (" ..." if len(problems) > 4 else ""),
            fix="use the experiment and parameters these weights were trained with",
        )
    model.load_state_dict(tensors)
