"""Company-wide settings for all machines, in a file that only administrators can write."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.environment import Installer

SiteGoal = Literal["driver", "wsl", "toolkit", "docker", "repair"]


class Mirrors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses in place of the usual ones: of pip's index, torch's own, Python, data sets."""

    packages: str | None = None
    torch: str | None = None
    python: str | None = None
    data: str | None = None


class SetupDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """manager: what makes and installs. folder: of environments; `~` and `$NAME` may be in it."""

    manager: Installer | None = None
    folder: str | None = None


class TrainDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """track: trackers that each run is sent to, as `flatout train --track` takes them."""

    track: tuple[str, ...] = ()


class Forbidden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forbidden work of flatout itself: fixes of these rules, and plans with these goals.

    reason: shown with it: whom to ask, say.
    """

    rules: tuple[str, ...] = ()
    goals: tuple[SiteGoal, ...] = ()
    reason: str | None = None


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's tables. file: its place; None where there is none."""

    mirrors: Mirrors = Mirrors()
    setup: SetupDefaults = SetupDefaults()
    train: TrainDefaults = TrainDefaults()
    forbidden: Forbidden = Forbidden()
    file: str | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings made, as `mirrors.packages = URL`, in the order of the tables."""
        tables = {
            "mirrors": self.mirrors, "setup": self.setup, "train": self.train,
            "forbidden": self.forbidden,
        }  # fmt: skip
        return tuple(
            f"{table} {name} = {', '.join(value) if isinstance(value, tuple) else value}"
            for table, struct in tables.items()
            for name, value in msgspec.structs.asdict(struct).items()
            if value
        )

    @property
    def refusal(self) -> str:
        """The author of the prohibitions, and the reason."""
        reason = f": {self.forbidden.reason}" if self.forbidden.reason else ""
        return f"forbidden by {self.file}{reason}"
