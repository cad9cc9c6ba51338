"""Whether a text was printed on the machine that was read, and what both know together."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flatout.nouns.machine import Gpu, Machine

T = TypeVar("T", bound=msgspec.Struct)


def is_elsewhere(told: Machine, here: Machine) -> bool:
    """Whether a text tells of another machine: system, WSL, driver or card are not those of here.

    What the text does not tell, or could not be read, says nothing. A text that names no card may
    come from a container of this machine, so containers are not compared.
    """
    pairs = (
        (told.host.os, here.host.os),
        (told.host.wsl, here.host.wsl if here.host.os == "linux" else None),
        (told.host.release, here.host.release),
        (told.driver, here.driver),
        (told.windows and told.windows.build, here.windows and here.windows.build),
    )
    if any(a and b and not _is_part(str(a), str(b)) for a, b in pairs):
        return True
    if told.host.wsl and here.host.os and not here.host.wsl:
        return True
    names = [gpu.name for gpu in here.gpus if gpu.name]
    return bool(names) and any(
        not any(_is_part(_bare(gpu.name), _bare(name)) for name in names)
        for gpu in told.gpus
        if gpu.name
    )


def together(told: Machine, here: Machine) -> Machine:
    """The facts of both; where both know one, the text's, which are of the time it was printed."""
    named = {one.name: one for one in (*here.frameworks, *told.frameworks)}
    families = {
        name: _filled(getattr(told, name), getattr(here, name))
        for name in ("host", "cpu", "memory", "windows", "wsl", "module", "network", "limits")
    }
    gpus = told.gpus if told.gpus and not here.gpus else _gpus(told, here)
    return msgspec.structs.replace(
        here,
        gpus=gpus,
        driver=told.driver or here.driver,
        cuda=told.cuda or here.cuda,
        frameworks=tuple(named.values()),
        **families,
    )


def _gpus(told: Machine, here: Machine) -> tuple[Gpu, ...]:
    """This machine's cards; what a text says of one is the same, or it were another machine."""
    if len(told.gpus) == len(here.gpus):
        return tuple(_completed(a, b) for a, b in zip(told.gpus, here.gpus, strict=True))
    return here.gpus


def _filled(first: T | None, second: T | None) -> T | None:
    if first is None or second is None:
        return first or second
    return _completed(first, second)


def _completed(first: T, second: T) -> T:
    """The first with what it does not know from the second."""
    unknown = {
        name: getattr(second, name)
        for name in first.__struct_fields__
        if getattr(first, name) in (None, ())
    }
    return msgspec.structs.replace(first, **unknown)


def _is_part(one: str, other: str) -> bool:
    return one in other or other in one


def _bare(name: str | None) -> str:
    """ "NVIDIA GeForce RTX 3060 Laptop GPU" -> "rtx 3060 laptop": people leave out the rest."""
    words = (name or "").lower().split()
    return " ".join(word for word in words if word not in ("nvidia", "geforce", "gpu", "tesla"))
