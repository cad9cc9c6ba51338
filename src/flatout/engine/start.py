"""What is told when a run is taken up: how long it is, with which versions, what is not exact."""

from __future__ import annotations

import os
import platform

import torch

from flatout import __version__
from flatout.engine.session import Session
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.lines import Started
from flatout.system.clock import now_s


def started(session: Session, *, epochs: int | None, steps: int | None, resumed: bool) -> Started:
    """That training begins, or goes on.

    Args:
        session: what is trained, where it begins.
        epochs, steps: how long; one of them is None.
        resumed: it goes on from a checkpoint.
    """
    per_epoch = session.feed.updates_per_epoch
    num_steps = steps
    if epochs is not None and per_epoch is not None:
        num_steps = epochs * per_epoch
    return Started(
        at=now_s(),
        step=session.position.step,
        pid=os.getpid(),
        num_steps=num_steps,
        num_epochs=epochs,
        steps_per_epoch=per_epoch,
        num_parameters=sum(p.numel() for p in session.model.parameters()),
        num_samples=session.feed.num_samples,
        unit=session.experiment.unit,
        resumed=resumed,
        versions=versions_here(session.device),
    )


def versions_here(device: torch.device) -> dict[str, str]:
    """What must be equal for a repetition to be bit-exact."""
    versions = {
        "flatout": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        versions["gpu"] = torch.cuda.get_device_name(device)
        versions["cuda"] = str(torch.version.cuda)
    return versions


def inexact(session: Session, before: dict[str, str] | None) -> list[Finding]:
    """What keeps a resume from being exact, said before it matters.

    Args:
        session: what goes on.
        before: the versions with which it went on until now; None for a new run.
    """
    findings, versions = [], versions_here(session.device)
    different = [
        f"{name} {before.get(name)} before, {version} now"
        for name, version in versions.items()
        if before is not None and before.get(name) != version
    ]
    if different:
        findings.append(
            Finding(
                rule="other-versions",
                severity="warning",
                problem="the run goes on with other versions than before; results may differ.",
                because="; ".join(different),
                fixes=(Fix(text="use the versions it was begun with for a bit-exact resume"),),
            )
        )
    if session.facts.data_kind == "iterable" and not getattr(session.feed, "has_state", False):
        findings.append(
            Finding(
                rule="iterable-is-replayed",
                severity="note",
                problem="a resume reads the training data again from the epoch's beginning.",
                because="the iterable has no state_dict, or one without its shuffle buffer, or is "
                "read by workers; it is exact only if it gives the same samples again",
                fixes=(Fix(text="give it state_dict and load_state_dict, and loader_workers=0"),),
            )
        )
    return findings
