"""A person's own environment as it would be mended: what is wrong, and each package changed."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.nouns.finding import Finding
from flatout.nouns.installed import Inside
from flatout.nouns.made_environment import FrameworkName, Pin, Proof
from flatout.nouns.plan import Plan


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong in an environment, and the packages that it is about."""

    problem: str
    packages: tuple[str, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A package before and after. before: None where it is added; after: None where it is removed.

    size_bytes: to download, and of what is removed what its files take; None where nobody tells.
    """

    name: str
    before: str | None
    after: str | None
    size_bytes: int | None = None

    @property
    def how(self) -> Literal["added", "removed", "changed", "again"]:
        """What happens to it; "again" is the same version, whose files are damaged."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "again" if self.before == self.after else "changed"


class EnvironmentRepair(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to an environment; nothing where no trouble was found.

    pins: the wheels of what is added or changed; missing_bytes: of them, what is not here yet.
    findings: the doctor's, of what no package mends. notes: what a person should know.
    refusal: who forbids it, and why; then there is no plan.
    devices: where each framework's training steps are to run. proofs: those that ran, where nothing
    is wrong.
    """

    inside: Inside
    troubles: tuple[Trouble, ...] = ()
    changes: tuple[Change, ...] = ()
    pins: tuple[Pin, ...] = ()
    missing_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    plan: Plan | None = None
    refusal: str | None = None
    devices: dict[FrameworkName, Literal["cpu", "gpu"]] = {}
    proofs: tuple[Proof, ...] = ()
