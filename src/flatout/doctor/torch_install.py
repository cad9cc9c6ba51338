"""The command that installs torch, and what goes with it, for the card and driver of a case."""

from __future__ import annotations

from flatout.nouns.finding import Fix
from flatout.nouns.machine import Machine

_PIP = "python -m pip install --force-reinstall"
_INDEX = "https://download.pytorch.org/whl"
# What flatout itself needs: the person's own Python may be another, and is not known here.
_PYTHON = (3, 11)


def torch_install(machine: Machine, *others: str) -> Fix:
    """A fix that replaces torch by a build that this machine can run.

    Args:
        machine: what is known; without driver or card both usual builds are named.
        others: packages that must come from the same index, `torchvision` for one.
    """
    # The solver takes 40 ms to import, and most texts are of something else.
    from flatout.setup.tables import shipped_tables
    from flatout.setup.target import target_from
    from flatout.setup.torch_builds import choose_for

    names = " ".join(("torch", *others))
    commands = tuple(f"{_PIP} {names} --index-url {_INDEX}/{cuda}" for cuda in ("cu130", "cu126"))
    text = (
        f"install {' and '.join(('torch', *others))} for this card: cu130 from compute capability "
        "7.5 and driver 580 on, else cu126"
    )
    target = target_from(machine, shipped_tables())
    if target.driver is not None and target.gpus:
        choice = choose_for(target, _PYTHON)
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
