"""What one row of the tables says. Only the standard library is used in here and in `solve`: the
first script that a person runs asks them before anything is installed.

Capabilities and versions of Python are pairs: (8, 6) for 8.6, (3, 12) for 3.12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pair = tuple[int, int]
Os = Literal["linux", "wsl2", "windows", "macos"]
Confidence = Literal["high", "medium", "low"]


# The name of the index that pip and uv ask by themselves; where it is, they know.
DEFAULT_INDEX = "pypi"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One published build of a framework.

    cuda: like "cu126"; "cu12" where the framework says no more; "cpu".
    index: where it is; project: what it is called there; extra: of the requirement.
    python: oldest and newest. codes: capabilities of the machine code in it.
    ptx: the capability of the PTX in it, which the driver compiles (not in Windows builds).
    lowest: the oldest capability, where the framework compiles for the card at hand.
    newest: the newest capability that it was seen to run on, where PTX alone does not tell.
    is_by_hand: needs a CUDA toolkit that somebody installs: taken only where it is asked for.
    download_bytes: with all it depends on, rounded; None where nobody has looked.
    constraints: for what it depends on.
    """

    framework: str
    version: str
    cuda: str
    index: str
    project: str
    extra: str = ""
    oses: tuple[Os, ...]
    machine: str = "x86_64"
    python: tuple[Pair, Pair]
    codes: tuple[Pair, ...] = ()
    ptx: Pair | None = None
    lowest: Pair | None = None
    newest: Pair | None = None
    is_experimental: bool = False
    is_nightly: bool = False
    is_by_hand: bool = False
    cudnn: str | None = None
    download_bytes: int | None = None
    constraints: tuple[str, ...] = ()
    source: str
    read: str
    confidence: Confidence

    @property
    def is_in_default_index(self) -> bool:
        """Whether pip and uv find it without being told an index."""
        return self.index == DEFAULT_INDEX

    @property
    def label(self) -> str:
        """As it is named in sentences."""
        return (
            f"{self.framework} {self.version} for {'the CPU' if self.cuda == 'cpu' else self.cuda}"
        )

    @property
    def toolkit(self) -> str | None:
        """The CUDA it was made with, like "12.6"; None where the label says no minor version."""
        digits = self.cuda.removeprefix("cu")
        return f"{digits[:2]}.{digits[2:]}" if digits.isdigit() and len(digits) > 2 else None

    @property
    def cuda_major(self) -> int | None:
        """The CUDA's major version; None for the CPU."""
        digits = self.cuda.removeprefix("cu")
        return int(digits[:2]) if digits.isdigit() else None

    @property
    def requirement(self) -> str:
        """For pip and uv."""
        version = self.version
        if self.framework == "torch" and self.index.startswith("https://download.pytorch.org/"):
            version = f"{version}+{self.cuda}"
        extra = f"[{self.extra}]" if self.extra else ""
        return self.project + extra if self.is_nightly else f"{self.project}{extra}=={version}"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A generation of GPUs.

    first_driver: the oldest that knows it; last_branch: the newest, None while that goes on.
    gone_from: the branch after it. Windows counts on within one: 581 belongs to 580.
    """

    capability: Pair
    name: str
    first_driver: str
    last_branch: int | None = None
    gone_from: int | None = None
    source: str
    confidence: Confidence


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU by its name. kind: what decides beside the capability.

    "datacentre" cards run Windows in a mode that WSL does not pass through; "jetson" boards have
    a driver of their own, for which the usual wheels are not made.
    """

    name: str
    capability: Pair
    machine: str = "x86_64"
    kind: Literal["desktop", "datacentre", "jetson"] = "desktop"


@dataclass(frozen=True, kw_only=True)
class CudaMajor:
    """The oldest drivers that run every build of one major version of CUDA."""

    major: int
    linux: str
    windows: str
    source: str
    confidence: Confidence


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """The driver that came with a toolkit: what compiles the PTX which that toolkit made."""

    cuda: str
    linux: str
    windows: str | None = None
    source: str
    confidence: Confidence


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What would work where no build does. lowest: from which capability on it is told."""

    framework: str
    lowest: Pair
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Everything that is known, and when it was read."""

    builds: tuple[Build, ...]
    architectures: tuple[Architecture, ...]
    cards: tuple[Card, ...]
    majors: tuple[CudaMajor, ...]
    toolkits: tuple[Toolkit, ...]
    hints: tuple[Hint, ...]
    read: str

    def architecture(self, capability: Pair) -> Architecture | None:
        """The generation of a capability; of the nearest older one with the same major number."""
        major, _ = capability
        older = [
            row
            for row in self.architectures
            if row.capability[0] == major and row.capability <= capability
        ]
        return max(older, key=lambda row: row.capability, default=None)
