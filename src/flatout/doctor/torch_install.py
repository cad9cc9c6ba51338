"""The command that installs torch, and what goes with it, for the card and driver of a case."""

from __future__ import annotations

from typing import Literal

from flatout.hardware.torch_builds import Place, choose_build
from flatout.nouns.finding import Fix
from flatout.nouns.machine import Machine

_PIP = "python -m pip install --force-reinstall"
_INDEX = "https://download.pytorch.org/whl"


def torch_install(machine: Machine, *others: str) -> Fix:
    """A fix that replaces torch by a build that this machine can run.

    Args:
        machine: what is known; without driver or card both usual builds are named.
        others: packages that must come from the same index, `torchvision` for one.
    """
    names = " ".join(("torch", *others))
    commands = tuple(f"{_PIP} {names} --index-url {_INDEX}/{cuda}" for cuda in ("cu130", "cu126"))
    text = (
        f"install {' and '.join(('torch', *others))} for this card: cu130 from compute capability "
        "7.5 and driver 580 on, else cu126"
    )
    capabilities = [gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability]
    if machine.driver is not None and capabilities:
        choice = choose_build(_place(machine), machine.driver, capabilities)
        if choice.cuda is not None:
            wanted = " ".join((f'"{choice.requirement}"', *others))
            text = f"install {choice.requirement}: {choice.why}"
            commands = (f"{_PIP} {wanted} --index-url {choice.index_url}",)
    return Fix(
        text=text,
        safety="ask",
        commands=commands,
        changes="replaces them in the environment whose python this is",
    )


def _place(machine: Machine) -> Place:
    os: Literal["linux", "wsl", "windows", "macos"] = "linux"
    if machine.host.wsl is not None:
        os = "wsl"
    elif machine.host.os == "windows":
        os = "windows"
    return Place(os=os, machine="x86_64", python=(3, 11))
