"""Where each framework is: an environment of `flatout setup`, or an interpreter that is named."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.errors import UsageError, nearest
from flatout.system.host_system import LocalSystem, Unread
from flatout.system.store.environments import list_environments
from flatout.system.store.interpreters import find_interpreter

FRAMEWORKS = ("torch", "tensorflow", "paddle", "jax", "keras")
# Distributions that hold them.
_HOLDERS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "jax": ("jax",),
    "keras": ("keras",),
}
# Keras comes with TensorFlow.
_SETUP = {"keras": "tensorflow"}
_ASKED = tuple(name for names in _HOLDERS.values() for name in names)


class _Package(msgspec.Struct):
    version: str


class _Report(msgspec.Struct):
    packages: dict[str, _Package]


class FrameworkPython(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter with a framework. others: that are installed beside it, with versions."""

    framework: str
    python: str
    version: str
    others: dict[str, str] = {}


class MissingFramework(msgspec.Struct, frozen=True, kw_only=True):
    """A framework that is nowhere. fix: the command that installs it."""

    framework: str
    reason: str
    fix: str


def parse_frameworks(text: str) -> dict[str, str | None]:
    """Names from `torch,jax=PYTHON`, each with the interpreter that is named for it.

    Raises:
        UsageError: unknown-framework, python-not-found.
    """
    found: dict[str, str | None] = {}
    for part in text.split(","):
        name, is_named, python = (word.strip() for word in part.partition("="))
        if name not in FRAMEWORKS:
            raise UsageError(
                "unknown-framework",
                f"`--frameworks {text}`: there is no framework `{name}`.",
                fix=nearest(name, FRAMEWORKS),
            )
        found[name] = find_interpreter(python) if is_named else None
    return found


def find_framework(
    name: str, named: str | None, own: str, device: str
) -> FrameworkPython | MissingFramework:
    """The interpreter for a framework.

    Args:
        name: one of FRAMEWORKS.
        named: the interpreter that the user has named for it; None looks for one: first in
            environments that were made for it, then in others, then in `own`.
        own: the interpreter with torch and flatout. Torch is used from there.
        device: `cpu` or `cuda:N`: an environment made for a GPU is preferred for one.
    """
    if named is not None or name == "torch":
        pythons: Sequence[str] = [named or own]
    else:
        made = list_environments()
        wanted = _SETUP.get(name, name)
        is_gpu = device != "cpu"
        made.sort(key=lambda one: (
            one.name != name, one.spec.framework != wanted, (one.cuda != "cpu") != is_gpu
        ))  # fmt: skip
        pythons = [*(one.python for one in made), own]
    for python in dict.fromkeys(pythons):
        versions = _installed(python)
        holder = next((one for one in _HOLDERS[name] if one in versions), None)
        if holder is not None:
            return FrameworkPython(
                framework=name, python=python, version=versions[holder], others=versions
            )
    where = f"{named} does not have it" if named else "no environment has it"
    return MissingFramework(framework=name, reason=where, fix=install_command(name, device))


def install_command(name: str, device: str) -> str:
    """The command that makes an environment with a framework."""
    return f"flatout setup {_SETUP.get(name, name)}{' --cpu' if device == 'cpu' else ''}"


def _installed(python: str) -> dict[str, str]:
    text = LocalSystem().packages(python, _ASKED)
    if isinstance(text, Unread):
        return {}
    try:
        # A .pth file of the environment may have printed something before.
        report = msgspec.json.decode(text.strip().splitlines()[-1:][0], type=_Report)
    except (msgspec.DecodeError, IndexError):
        return {}
    return {name: package.version for name, package in report.packages.items()}
