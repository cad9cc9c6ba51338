"""The repair of a user's own environment: what is wrong, and each package change."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.environment import FrameworkName, Pin, SmokeTestResult
from flatout.schema.finding import Finding
from flatout.schema.installed_packages import InspectedEnvironment
from flatout.schema.plan import Plan


class EnvironmentProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong in an environment, and the packages that it is about."""

    problem: str
    packages: tuple[str, ...]


class PackageChange(msgspec.Struct, frozen=True, kw_only=True):
    """A package before and after. before: None where it is added; after: None where it is removed.

    size_bytes: of the download, or of the removed files; None where it is unknown.
    """

    name: str
    before: str | None
    after: str | None
    size_bytes: int | None = None

    @property
    def how(self) -> Literal["added", "removed", "changed", "reinstalled"]:
        """The change of the package; "reinstalled" is the same version, whose files are damaged."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "reinstalled" if self.before == self.after else "changed"


class EnvironmentRepair(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to an environment; none where no problem was found.

    pins: the wheels of what is added or changed; missing_bytes: of them, what is not here yet.
    findings: the doctor's, about what no package change fixes. notes: for the user.
    refusal: who forbids it, and why; then there is no plan.
    devices: where each framework's training steps run. proofs: results of the steps that ran while
    checking, where nothing is wrong.
    """

    inside: InspectedEnvironment
    problems: tuple[EnvironmentProblem, ...] = ()
    changes: tuple[PackageChange, ...] = ()
    pins: tuple[Pin, ...] = ()
    missing_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    plan: Plan | None = None
    refusal: str | None = None
    devices: dict[FrameworkName, Literal["cpu", "gpu"]] = {}
    proofs: tuple[SmokeTestResult, ...] = ()
