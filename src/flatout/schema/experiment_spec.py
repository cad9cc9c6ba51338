"""The experiment that crosses the process border: its name, its values, the user's settings."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.schema.change import Change
from flatout.schema.tuning import TuneRequest

Value = bool | int | float | str | None


class UsedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a configuration file has set, and the command line has not.

    values: by name, as text, without passwords: `epochs`, `set.lr`, `use.precision`.
    """

    file: str
    values: dict[str, str]


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep (its id) that a run is a trial of, and which one, from 1."""

    id: str
    trial: int


class ExperimentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment as data: enough to build it again, exactly, in another process.

    name: the built-in's name or the file's stem.
    file, sha256: the experiment file (absolute path) and its content's hash; None for a built-in.
    parameters: arguments of `experiment(...)` that the user set; the others keep their defaults.
    seed: of weights, order and augmentation.
    fixed: recipe fields the user fixed.
    not_fixed: those of a recipe's file that are left out, since several ranks are to train.
    epochs, steps: how long to train, at most one of them; None keeps the experiment's own.
    tuning: what the search for a recipe may do.
    is_dry_run: one batch of each kind is tried, and nothing trained.
    init: file of weights (safetensors) to begin with, or the folder of a run that has a
        checkpoint; None begins with the experiment's own.
    leave_free_bytes: what other programs are to have of the device's memory; None leaves it to
        flatout.
    """

    name: str
    file: str | None = None
    sha256: str | None = None
    parameters: dict[str, Value] = {}
    seed: int = 0
    fixed: dict[str, Any] = {}
    not_fixed: tuple[str, ...] = ()
    epochs: int | None = None
    steps: int | None = None
    init: str | None = None
    tuning: TuneRequest = TuneRequest()
    is_dry_run: bool = False
    leave_free_bytes: int | None = None

    def device(self, change: Change) -> str:
        """The device to train on, with what a resume changes; `auto` by default."""
        return str((self.fixed | change.fixed).get("device", "auto"))
