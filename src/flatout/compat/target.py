"""A machine as the solver sees it: this one, or one described by options."""

from __future__ import annotations

from flatout.compat.cards import find_card, near_cards
from flatout.compat.fit import Target, TargetGpu
from flatout.compat.request import SetupRequest
from flatout.compat.rows import Card, Os, Tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.versions import driver_text, pair

_PROCESSORS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_NO_GPU = ("cpu", "none")


def target_from(machine: Machine, tables: Tables, processor: str = "x86_64") -> Target:
    """The machine that was read.

    Args:
        machine: its facts.
        tables: for a card whose driver is too old to report its compute capability.
        processor: as the operating system spells it.
    """
    os: Os = "linux"
    if machine.host.wsl is not None:
        os = "wsl2"
    elif machine.host.os in ("windows", "macos"):
        os = "windows" if machine.host.os == "windows" else "macos"
    gpus = []
    for gpu in machine.gpus:
        card = find_card(gpu.name or "", tables.cards)
        if gpu.compute_capability:
            capability = pair(gpu.compute_capability)
        elif card:
            capability = card.capability
        else:
            continue
        name = gpu.name or f"GPU {gpu.index}"
        gpus.append(
            TargetGpu(name=name, capability=capability, kind=card.kind if card else "desktop")
        )
    spelled = processor.lower()
    return Target(
        os=os,
        machine=_PROCESSORS.get(spelled, spelled),
        gpus=() if machine.host.wsl == 1 else tuple(gpus),
        why_no_gpu="WSL 1 cannot use GPUs" if machine.host.wsl == 1 else machine.unread.get("gpus"),
        driver=machine.driver,
    )


def described_target(request: SetupRequest, tables: Tables) -> Target:
    """Another machine, as described by `--for`, `--driver` and `--os`.

    Raises:
        UsageError: unknown-card, not-a-version.
    """
    cards = [_card(name, tables) for name in request.cards if name.strip().lower() not in _NO_GPU]
    return Target(
        os=request.os or "linux",
        machine=cards[0].machine if cards else "aarch64" if request.os == "macos" else "x86_64",
        driver=driver_text(request.driver) if request.driver else None,
        gpus=tuple(
            TargetGpu(name=card.name, capability=card.capability, kind=card.kind) for card in cards
        ),
    )


def _card(name: str, tables: Tables) -> Card:
    card = find_card(name, tables.cards)
    if card is None:
        near = near_cards(name, tables.cards)
        raise UsageError(
            "unknown-card",
            f"unknown card `{name}`.",
            because=f"the table has {len(tables.cards)} names of NVIDIA cards",
            fix=f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near
            else "write it as nvidia-smi does, like `GeForce RTX 3060`, or --for cpu",
        )  # fmt: skip
    return card
