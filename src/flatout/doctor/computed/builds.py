"""Fixes that install the right build of a framework."""

from __future__ import annotations

from flatout.doctor.rule import Case
from flatout.doctor.torch_install import torch_install
from flatout.schema.finding import Fix


def torch(case: Case) -> Fix:
    """Install a torch for this card and driver."""
    return torch_install(case.machine)


def torch_and_torchvision(case: Case) -> Fix:
    """Install a torch for this card and driver, with the torchvision that belongs to it."""
    return torch_install(case.machine, "torchvision")


def torch_and_torchaudio(case: Case) -> Fix:
    """Install a torch for this card and driver, with the torchaudio that belongs to it."""
    return torch_install(case.machine, "torchaudio")
