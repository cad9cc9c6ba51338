"""The rows of the tables. This file and `solve` use only the standard library: `scripts/quickstart`
uses them before anything is installed.

Capabilities and versions of Python are pairs: (8, 6) for 8.6, (3, 12) for 3.12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flatout.schema.versions import Pair

Os = Literal["linux", "wsl2", "windows", "macos"]
Confidence = Literal["high", "medium", "low"]


# The name of the default index of pip and uv, which needs no URL.
DEFAULT_INDEX = "pypi"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One published build of a framework.

    cuda: like "cu126"; "cu12" if the framework gives no minor version; "cpu".
    index: where it is; project: its name there; extra: of the requirement.
    python: oldest and newest. codes: capabilities of the machine code in it.
    ptx: the capability of the PTX in it, which the driver compiles (not in Windows builds).
    lowest: the oldest capability, if the framework compiles for the local card.
    newest: the newest capability that it is known to run on, if PTX alone does not decide it.
    is_by_hand: needs a separately installed CUDA toolkit, so it is chosen only on request.
    download_bytes: with all dependencies, rounded; None if not measured.
    constraints: for its dependencies.
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
        """Whether pip and uv find it without an index option."""
        return self.index == DEFAULT_INDEX

    @property
    def label(self) -> str:
        """Its name in sentences."""
        return (
            f"{self.framework} {self.version} for {'the CPU' if self.cuda == 'cpu' else self.cuda}"
        )

    @property
    def toolkit(self) -> str | None:
        """The CUDA it was built with, like "12.6"; None if the label has no minor version."""
        digits = self.cuda.removeprefix("cu")
        return f"{digits[:2]}.{digits[2:]}" if digits.isdigit() and len(digits) > 2 else None

    @property
    def cuda_major(self) -> int | None:
        """The CUDA's major version; None for the CPU."""
        digits = self.cuda.removeprefix("cu")
        return int(digits[:2]) if digits.isdigit() else None

    @property
    def requirement(self) -> str:
        """The requirement for pip and uv."""
        version = self.version
        if self.framework == "torch" and self.index.startswith("https://download.pytorch.org/"):
            version = f"{version}+{self.cuda}"
        extra = f"[{self.extra}]" if self.extra else ""
        return self.project + extra if self.is_nightly else f"{self.project}{extra}=={version}"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A generation of GPUs.

    first_driver: the oldest that supports it; last_branch: the newest, None while supported.
    gone_from: the branch after it. Windows counts on within a branch: 581 belongs to 580.
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
    """A GPU by its name. kind: what matters besides the capability.

    "datacentre" cards run on Windows in a mode that WSL does not pass through; "jetson" boards
    have a different driver, for which the usual wheels are not built.
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
    """The driver that came with a toolkit, which can compile PTX made by that toolkit."""

    cuda: str
    linux: str
    windows: str | None = None
    source: str
    confidence: Confidence


@dataclass(frozen=True, kw_only=True)
class Hint:
    """An alternative if no build works. lowest: the lowest capability to which it applies."""

    framework: str
    lowest: Pair
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All tables, and when they were read."""

    builds: tuple[Build, ...]
    architectures: tuple[Architecture, ...]
    cards: tuple[Card, ...]
    majors: tuple[CudaMajor, ...]
    toolkits: tuple[Toolkit, ...]
    hints: tuple[Hint, ...]
    read: str

    def architecture(self, capability: Pair) -> Architecture | None:
        """The generation of a capability, or of the nearest older one of the same major number."""
        major, _ = capability
        older = [
            row
            for row in self.architectures
            if row.capability[0] == major and row.capability <= capability
        ]
        return max(older, key=lambda row: row.capability, default=None)
