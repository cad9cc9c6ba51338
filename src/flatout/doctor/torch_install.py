"""The command that installs torch and matching packages for a case's card and driver."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flatout.schema.finding import Fix
from flatout.schema.machine import Machine

if TYPE_CHECKING:
    from flatout.compat.fit import Target
    from flatout.compat.torch_builds import TorchChoice

_PIP = "python -m pip install --force-reinstall"
_INDEX = "https://download.pytorch.org/whl"
# flatout's own minimum: the user's Python may be another one, and is unknown here.
_PYTHON = (3, 11)
# The driver that CUDA 13 needs, by the solver's tables; and the usual builds.
_NEW = 580
_COMMON_BUILDS = ("cu130", "cu128", "cu126")


def torch_install(machine: Machine, *others: str) -> Fix:
    """A fix that replaces torch with a build that this machine can run, as `flatout setup` would.

    Args:
        machine: the known facts; without a driver, builds for a new and an older one are named,
            without a card, those for most cards.
        others: packages that must come from the same index, such as `torchvision`.
    """
    # The solver takes 40 ms to import, and most texts do not need it.
    from flatout.compat.tables import shipped_tables
    from flatout.compat.target import target_from

    target = target_from(machine, shipped_tables())
    chosen = _chosen(target) if target.gpus else ()
    what = " and ".join(("torch", *others))
    if not chosen:
        text = (
            f"install {what} for this card: cu130 with driver {_NEW} or newer and compute "
            "capability 7.5 or higher; otherwise cu128 for RTX 50, cu126 for older cards; "
            "or run `flatout setup torch` on that machine"
        )
        commands = tuple(_command(" ".join(("torch", *others)), cuda) for cuda in _COMMON_BUILDS)
    else:
        (first, of_first), *older = chosen
        text = f"install {of_first.requirement}{first}"
        if older:
            text += f", otherwise {older[0][1].requirement}"
        elif target.driver is not None:
            text += f": {of_first.why}"
        text += "; or create a new environment: `flatout setup torch`"
        commands = tuple(
            _command(" ".join((f'"{choice.requirement}"', *others)), choice.cuda or "cpu")
            for _, choice in chosen
        )
    return Fix(
        text=text,
        safety="ask",
        commands=commands,
        changes=f"replaces {what} in the environment of this python",
    )


def _chosen(target: Target) -> tuple[tuple[str, TorchChoice], ...]:
    """The solver's CUDA builds for a card, each with its condition if it depends on the driver."""
    from flatout.compat.torch_builds import choose_for

    if target.driver is not None:
        choices = [("", choose_for(target, _PYTHON))]
    else:
        new, old = (
            choose_for(replace(target, driver=driver), _PYTHON)
            for driver in (f"{_NEW}.0", f"{_NEW - 1}.0")
        )
        choices = [(f" with driver {_NEW} or newer", new), ("", old)]
        if new.requirement == old.requirement:
            choices = [("", new)]
    return tuple((condition, choice) for condition, choice in choices if choice.cuda is not None)


def _command(packages: str, cuda: str) -> str:
    return f"{_PIP} {packages} --index-url {_INDEX}/{cuda}"
