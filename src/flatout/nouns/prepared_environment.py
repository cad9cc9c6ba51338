"""An environment as it would be made: chosen, decided to the last wheel, and not begun."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.nouns.made_environment import EnvironmentWish, Installer, MadeEnvironment, Pin
from flatout.nouns.units import bytes_text, counted_text, seconds_text

# What a line of 100 Mbit/s gives, for a first idea of how long it takes.
RATE_BYTES_S = 12_500_000
# Installed files take about twice their wheels' room.
_UNPACKED = 2

State = Literal[
    "ready", "flatout", "same-packages", "new", "other-machine", "other-packages", "bundle"
]


class SetupStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, for people and for programs. changes: what is different afterwards.

    undo: what takes it back. needs_root: none does, but whoever asks is told.
    """

    text: str
    changes: str
    undo: str | None = None
    size_bytes: int | None = None
    time_s: float | None = None
    needs_root: bool = False


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for one framework.

    state: `ready` needs nothing; `flatout` gets this flatout in place of another; `same-packages`
        is only proved: for another driver or GPU its packages are right, too; `new` is made;
        `other-machine` is made again, since driver or GPUs need other packages; `other-packages`,
        since this flatout does; of a `bundle` only the wheels are had, and folder is theirs.
    version, cuda, index: of the framework. python: an interpreter; None: uv gets one.
    pins: everything that will be in it; missing_bytes: of them, what is still to be downloaded.
    free_bytes: what the disk has left. notes: what a person should know before saying yes.
    variables: what a process in it is to be given. environment: the one that is there.
    tool: what brings a program that makes it.
    """

    name: str
    folder: str
    wish: EnvironmentWish
    state: State
    version: str
    cuda: str
    index: str | None
    python: str | None
    python_version: str
    installer: Installer
    pins: tuple[Pin, ...] = ()
    missing_bytes: int = 0
    total_bytes: int = 0
    free_bytes: int = 0
    why: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    machine: str
    environment: MadeEnvironment | None = None
    tool: SetupStep | None = None

    @property
    def framework(self) -> str:
        """Its name and what it computes on."""
        device = "the CPU" if self.cuda == "cpu" else self.cuda
        return f"{self.wish.framework} {self.version} for {device}"

    @property
    def device(self) -> Literal["cpu", "gpu"]:
        """Where its training steps are to run."""
        return "cpu" if self.cuda == "cpu" else "gpu"

    @property
    def needed_bytes(self) -> int:
        """What it takes of the disk in the end; of an environment's, the kept wheels included."""
        if self.state == "bundle":
            return self.total_bytes
        return self.missing_bytes + _UNPACKED * self.total_bytes

    @property
    def steps(self) -> tuple[SetupStep, ...]:
        """What will be done, in this order."""
        text = "put this flatout into it, in place of another"
        renewed = SetupStep(text=text, changes=f"the package flatout in {self.folder}")
        match self.state:
            case "ready":
                return ()
            case "flatout":
                return (renewed,)
            case "same-packages":
                has_flatout = self.environment is not None and self.environment.flatout is not None
                text = f"prove it here, its packages are the right ones: {self._proof_text}"
                changed = "its record and the package flatout" if has_flatout else "its record"
                return (SetupStep(text=text, changes=f"{changed} in {self.folder}"),)
            case "bundle":
                text = "put the wheels, a lock and uv into the folder"
                return (
                    self._download,
                    SetupStep(text=text, changes=self.folder, size_bytes=self.total_bytes),
                )
            case "new":
                return (*self._tools, self._download, *self._making)
        reasons = {
            "other-machine": "made for another driver or GPU",
            "other-packages": "with other packages than this flatout needs",
        }
        aside = SetupStep(
            text=f"set the environment of that name aside, {reasons[self.state]}",
            changes=f"{self.folder}; if this fails it is put back, else removed",
        )
        return (*self._tools, self._download, aside, *self._making)

    @property
    def _tools(self) -> tuple[SetupStep, ...]:
        return (self.tool,) if self.tool else ()

    @property
    def _making(self) -> tuple[SetupStep, ...]:
        undo = f"flatout setup --remove {self.name}"
        python = self.python or f"Python {self.python_version}, which {self.installer} gets"
        return (
            SetupStep(text=f"make an environment with {python}", changes=self.folder, undo=undo),
            SetupStep(
                text=f"install {counted_text(len(self.pins), 'package')} with {self.installer}",
                changes=f"about {bytes_text(_UNPACKED * self.total_bytes)} in {self.folder}",
                undo=undo,
                size_bytes=_UNPACKED * self.total_bytes,
            ),
            SetupStep(text=f"prove it: {self._proof_text}", changes="nothing"),
        )

    @property
    def _proof_text(self) -> str:
        right = "what must come out" if self.device == "cpu" else "the CPU's"
        return f"training steps on the {self.device.upper()}, compared with {right}"

    @property
    def _download(self) -> SetupStep:
        return SetupStep(
            text=f"download {self._download_text}",
            changes="wheels in flatout's cache",
            undo="they can be deleted at any time",
            size_bytes=self.missing_bytes,
            time_s=self.missing_bytes / RATE_BYTES_S,
        )

    @property
    def _download_text(self) -> str:
        if not self.missing_bytes:
            return "nothing: all wheels are here"
        rate = bytes_text(RATE_BYTES_S)
        time_text = seconds_text(max(1.0, self.missing_bytes / RATE_BYTES_S))
        return f"{bytes_text(self.missing_bytes)}, {time_text} at {rate}/s"


def ready(there: MadeEnvironment) -> Prepared:
    """What needs nothing: the environment that is there."""
    return Prepared(
        name=there.name,
        folder=there.folder,
        wish=there.wish,
        state="ready",
        version=there.version,
        cuda=there.cuda,
        index=there.index,
        python=there.python,
        python_version=there.python_version,
        installer=there.installer,
        pins=there.pins,
        variables=there.variables,
        machine=there.machine,
        environment=there,
    )
