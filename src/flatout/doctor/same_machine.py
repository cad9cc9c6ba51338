"""Whether a text was printed on the examined machine, and the facts of both merged."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from flatout.schema.machine import Gpu, Machine

T = TypeVar("T", bound=msgspec.Struct)


def is_elsewhere(from_text: Machine, here: Machine) -> bool:
    """Whether a text is from another machine: its system, WSL, driver or card differ from ours.

    Unknown facts on either side are not compared. A text without a card may come from a container
    on this machine, so containers are not compared.
    """
    pairs = (
        (from_text.host.os, here.host.os),
        (from_text.host.wsl, here.host.wsl if here.host.os == "linux" else None),
        (from_text.host.release, here.host.release),
        (from_text.driver, here.driver),
        (from_text.windows and from_text.windows.build, here.windows and here.windows.build),
    )
    if any(a and b and not _is_part(str(a), str(b)) for a, b in pairs):
        return True
    if from_text.host.wsl and here.host.os and not here.host.wsl:
        return True
    names = [gpu.name for gpu in here.gpus if gpu.name]
    return bool(names) and any(
        not any(_is_part(_bare(gpu.name), _bare(name)) for name in names)
        for gpu in from_text.gpus
        if gpu.name
    )


def merge_machines(from_text: Machine, here: Machine) -> Machine:
    """The facts of both; if both know one, the text's, which is from the time of printing."""
    named = {framework.name: framework for framework in (*here.frameworks, *from_text.frameworks)}
    families = {
        name: _filled(getattr(from_text, name), getattr(here, name))
        for name in ("host", "cpu", "memory", "windows", "wsl", "module", "network", "limits")
    }
    gpus = from_text.gpus if from_text.gpus and not here.gpus else _gpus(from_text, here)
    return msgspec.structs.replace(
        here,
        gpus=gpus,
        driver=from_text.driver or here.driver,
        cuda=from_text.cuda or here.cuda,
        frameworks=tuple(named.values()),
        **families,
    )


def _gpus(from_text: Machine, here: Machine) -> tuple[Gpu, ...]:
    """This machine's cards, completed from the text; it is known to be the same machine."""
    if len(from_text.gpus) == len(here.gpus):
        return tuple(_completed(a, b) for a, b in zip(from_text.gpus, here.gpus, strict=True))
    return here.gpus


def _filled(first: T | None, second: T | None) -> T | None:
    if first is None or second is None:
        return first or second
    return _completed(first, second)


def _completed(first: T, second: T) -> T:
    """The first, with its unknown fields taken from the second."""
    unknown = {
        name: getattr(second, name)
        for name in first.__struct_fields__
        if getattr(first, name) in (None, ())
    }
    return msgspec.structs.replace(first, **unknown)


def _is_part(first: str, other: str) -> bool:
    return first in other or other in first


def _bare(name: str | None) -> str:
    """ "NVIDIA GeForce RTX 3060 Laptop GPU" -> "rtx 3060 laptop": users omit the rest."""
    words = (name or "").lower().split()
    return " ".join(word for word in words if word not in ("nvidia", "geforce", "gpu", "tesla"))
