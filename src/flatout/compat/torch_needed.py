"""The command that installs torch into an interpreter without it."""

from __future__ import annotations

import importlib.util
import platform
import sys

from flatout.compat.tables import shipped_tables
from flatout.compat.target import target_from
from flatout.compat.torch_builds import TorchChoice, choose_for
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text
from flatout.schema.versions import Pair
from flatout.system.store import environments

_SETUP = "flatout setup torch"


def require_torch(machine: Machine, python_version: Pair) -> None:
    """Makes sure that the interpreter has torch.

    Raises:
        UsageError: torch-not-installed, with an environment that has it, or the command that
            installs the right build.
    """
    if machine.framework("torch"):
        return
    python = machine.python or sys.executable
    name = environment_with_torch() if python == sys.executable else None
    if name is not None:
        because, fix = f"the environment `{name}` has it", f"add --env {name}"
    else:
        choice = choose_torch(machine, python_version)
        size = bytes_text(choice.download_bytes)
        because = f"for this machine: {choice.requirement}, {size} to download; {choice.why}"
        fix = providing_command(python, choice)
        if fix == _SETUP:
            fix += "; then add --env torch"
    raise UsageError(
        "torch-not-installed",
        f"{machine.python} has no torch.",
        because=machine.unread.get("frameworks") or because,
        fix=fix,
    )


def environment_with_torch() -> str | None:
    """The name of an environment of `flatout setup` that has torch; None if there is none."""
    made = environments.list_environments()
    return next((one.name for one in made if one.spec.framework == "torch"), None)


def providing_command(python: str, choice: TorchChoice) -> str:
    """The command that installs torch; an environment for it where flatout's own has no pip."""
    # uv leaves pip out of the environments that it makes for tools.
    if python == sys.executable and importlib.util.find_spec("pip") is None:
        return _SETUP
    return install_command(python, choice)


def choose_torch(machine: Machine, python_version: Pair) -> TorchChoice:
    """The build of torch that a machine's driver and GPUs can run."""
    target = target_from(machine, shipped_tables(), platform.machine())
    return choose_for(target, python_version, machine.unread.get("driver"))


def install_command(python: str, choice: TorchChoice) -> str:
    """The command that installs a build of torch into an interpreter's environment."""
    index = f" --index-url {choice.index_url}" if choice.index_url else ""
    return f"{python} -m pip install {choice.requirement}{index}"
