"""What to type where an interpreter has no torch."""

from __future__ import annotations

import platform
import sys

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.units import bytes_text
from flatout.setup.rows import Pair
from flatout.setup.tables import shipped_tables
from flatout.setup.target import target_from
from flatout.setup.torch_builds import TorchChoice, choose_for


def require_torch(machine: Machine, python_version: Pair) -> None:
    """Makes sure that the interpreter that was read holds torch.

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
    """What to type to install a build of torch into an interpreter's environment."""
    index = f" --index-url {choice.index_url}" if choice.index_url else ""
    return f"{python} -m pip install {choice.requirement}{index}"
