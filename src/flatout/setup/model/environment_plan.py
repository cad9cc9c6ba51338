"""An environment as it would be created: resolved to the last wheel, nothing changed yet."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.environment import EnvironmentSpec, Installer, MadeEnvironment, Pin
from flatout.schema.units import bytes_text, counted_text, seconds_text

# What a line of 100 Mbit/s gives, for a first idea of how long it takes.
RATE_BYTES_S = 12_500_000
# Installed files take about twice the space of their wheels.
_UNPACKED = 2

State = Literal[
    "ready", "flatout", "same-packages", "new", "other-machine", "other-packages", "bundle"
]


class SetupStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, for people and for programs. changes: what is different afterwards.

    undo: what reverts it. needs_root: always false here; programs that read plans expect it.
    """

    text: str
    changes: str
    undo: str | None = None
    size_bytes: int | None = None
    time_s: float | None = None
    needs_root: bool = False


class EnvironmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for one framework.

    state: `ready` needs nothing; `flatout` only gets this version of flatout; `same-packages` is
        only verified, since its packages also fit another driver or GPU; `new` is created;
        `other-machine` is recreated, since the driver or the GPUs need other packages;
        `other-packages`, since this flatout does; a `bundle` is a folder of wheels.
    version, cuda, index: of the framework. python: an interpreter; None: uv gets one.
    pins: all packages that it will contain; missing_bytes: how much of them must be downloaded.
    free_bytes: free space on the disk. notes: what the user should know before agreeing.
    variables: environment variables for processes in it. environment: the existing one.
    tool: the step that downloads a program needed to create it.
    """

    name: str
    folder: str
    spec: EnvironmentSpec
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
        return f"{self.spec.framework} {self.version} for {device}"

    @property
    def device(self) -> Literal["cpu", "gpu"]:
        """The device of its training steps."""
        return "cpu" if self.cuda == "cpu" else "gpu"

    @property
    def needed_bytes(self) -> int:
        """Disk space that it takes in the end, including the wheels that stay in the cache."""
        if self.state == "bundle":
            return self.total_bytes
        return self.missing_bytes + _UNPACKED * self.total_bytes

    @property
    def steps(self) -> tuple[SetupStep, ...]:
        """The steps of the plan, in order."""
        text = "replace the flatout in it with this one"
        renewed = SetupStep(text=text, changes=f"the package flatout in {self.folder}")
        match self.state:
            case "ready":
                return ()
            case "flatout":
                return (renewed,)
            case "same-packages":
                has_flatout = self.environment is not None and self.environment.flatout is not None
                text = f"verify it here, as its packages already fit: {self._proof_text}"
                changed = "its record and the package flatout" if has_flatout else "its record"
                return (SetupStep(text=text, changes=f"{changed} in {self.folder}"),)
            case "bundle":
                text = "write the wheels, a lock file and uv into the folder"
                return (
                    self._download,
                    SetupStep(text=text, changes=self.folder, size_bytes=self.total_bytes),
                )
            case "new":
                return (*self._tools, self._download, *self._making)
        reasons = {
            "other-machine": "it was created for another driver or GPU",
            "other-packages": "its packages are not those that this flatout needs",
        }
        aside = SetupStep(
            text=f"move the existing environment aside: {reasons[self.state]}",
            changes=f"{self.folder}; restored if this fails, removed otherwise",
        )
        return (*self._tools, self._download, aside, *self._making)

    @property
    def _tools(self) -> tuple[SetupStep, ...]:
        return (self.tool,) if self.tool else ()

    @property
    def _making(self) -> tuple[SetupStep, ...]:
        undo = f"flatout setup --remove {self.name}"
        python = self.python or f"Python {self.python_version}, downloaded by {self.installer}"
        return (
            SetupStep(text=f"create an environment with {python}", changes=self.folder, undo=undo),
            SetupStep(
                text=f"install {counted_text(len(self.pins), 'package')} with {self.installer}",
                changes=f"about {bytes_text(_UNPACKED * self.total_bytes)} in {self.folder}",
                undo=undo,
                size_bytes=_UNPACKED * self.total_bytes,
            ),
            SetupStep(text=f"verify it: {self._proof_text}", changes="nothing"),
        )

    @property
    def _proof_text(self) -> str:
        right = "the known losses" if self.device == "cpu" else "the CPU's losses"
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
            return "nothing: all wheels are already downloaded"
        rate = bytes_text(RATE_BYTES_S)
        time_text = seconds_text(max(1.0, self.missing_bytes / RATE_BYTES_S))
        return f"{bytes_text(self.missing_bytes)}, {time_text} at {rate}/s"


def ready(there: MadeEnvironment) -> EnvironmentPlan:
    """The plan for an existing environment that needs no changes."""
    return EnvironmentPlan(
        name=there.name,
        folder=there.folder,
        spec=there.spec,
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
