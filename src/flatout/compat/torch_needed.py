"""The command that installs torch into an interpreter without it."""

from __future__ import annotations

import platform
import sys

from flatout.compat.tables import shipped_tables
from flatout.compat.target import target_from
from flatout.compat.torch_builds import TorchChoice, choose_for
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text
from flatout.schema.versions import Pair


def require_torch(machine: Machine, python_version: Pair) -> None:
    """Makes sure that the interpreter has torch.

    Raises:
        UsageError: torch-not-installed, with the command that installs the right build.
    """
    if machine.framework("torch"):
        return
    choice = choose_torch(machine, python_version)
    raise UsageError(
        "torch-not-installed",
        f"{machine.python} has no torch.",
        because=machine.unread.get("frameworks")
        or f"for this machine: {choice.requirement}, "
        f"{bytes_text(choice.download_bytes)} to download; {choice.why}",
        fix=install_command(machine.python or sys.executable, choice),
    )


def choose_torch(machine: Machine, python_version: Pair) -> TorchChoice:
    """The build of torch that a machine's driver and GPUs can run."""
    target = target_from(machine, shipped_tables(), platform.machine())
    return choose_for(target, python_version, machine.unread.get("driver"))


def install_command(python: str, choice: TorchChoice) -> str:
    """The command that installs a build of torch into an interpreter's environment."""
    index = f" --index-url {choice.index_url}" if choice.index_url else ""
    return f"{python} -m pip install {choice.requirement}{index}"
