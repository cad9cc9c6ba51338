"""The command that installs torch, and what goes with it, for the card and driver of a case."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flatout.nouns.finding import Fix
from flatout.nouns.machine import Machine

if TYPE_CHECKING:
    from flatout.setup.fit import Target
    from flatout.setup.torch_builds import TorchChoice

_PIP = "python -m pip install --force-reinstall"
_INDEX = "https://download.pytorch.org/whl"
# What flatout itself needs: the person's own Python may be another, and is not known here.
_PYTHON = (3, 11)
# What CUDA 13 needs, by the solver's tables; and the usual builds.
_NEW = 580
_USUAL = ("cu130", "cu128", "cu126")


def torch_install(machine: Machine, *others: str) -> Fix:
    """A fix that replaces torch by a build that this machine can run, as `flatout setup` would.

    Args:
        machine: what is known; without a driver the builds for a new and an older one are named,
            without a card those for most cards.
        others: packages that must come from the same index, `torchvision` for one.
    """
    # The solver takes 40 ms to import, and most texts are of something else.
    from flatout.setup.tables import shipped_tables
    from flatout.setup.target import target_from

    target = target_from(machine, shipped_tables())
    chosen = _chosen(target) if target.gpus else ()
    what = " and ".join(("torch", *others))
    if not chosen:
        text = (
            f"install {what} for this card: cu130 with driver {_NEW} or newer and compute "
            f"capability 7.5 "
            "or higher; else cu128 for RTX 50, cu126 for older cards. On that machine, "
            "`flatout setup "
            "torch` chooses"
        )
        commands = tuple(_command(" ".join(("torch", *others)), cuda) for cuda in _USUAL)
    else:
        (first, of_first), *older = chosen
        text = f"install {of_first.requirement}{first}"
        if older:
            text += f", else {older[0][1].requirement}"
        elif target.driver is not None:
            text += f": {of_first.why}"
        text += "; or make a new environment: `flatout setup torch`"
        commands = tuple(
            _command(" ".join((f'"{choice.requirement}"', *others)), choice.cuda or "cpu")
            for _, choice in chosen
        )
    return Fix(
        text=text,
        safety="ask",
        commands=commands,
        changes="replaces them in the environment whose python this is",
    )


def _chosen(target: Target) -> tuple[tuple[str, TorchChoice], ...]:
    """The solver's builds with CUDA for a card, each with its condition where the driver "
    "decides."""
    from flatout.setup.torch_builds import choose_for

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
    return tuple((said, choice) for said, choice in choices if choice.cuda is not None)


def _command(packages: str, cuda: str) -> str:
    return f"{_PIP} {packages} --index-url {_INDEX}/{cuda}"
