"""An environment that flatout makes, and what it is made of."""

from __future__ import annotations

from typing import Literal

import msgspec

FrameworkName = Literal["torch", "tensorflow", "paddle", "jax"]
Installer = Literal["uv", "pip", "conda"]


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants of an environment: equal requests create no second one.

    versions: of the framework, like ">=2.8"; python: like "3.12"; cuda: like "cu126"; None leaves
        it to flatout. is_cpu: no GPU is used.
    packages: requirements to be in it as well, as they were written.
    files_sha256: of the requirement files, or of the lock, and of what they name.
    installer: the one asked for.
    """

    framework: FrameworkName
    versions: str = ""
    python: str | None = None
    cuda: str | None = None
    is_cpu: bool = False
    is_nightly: bool = False
    packages: tuple[str, ...] = ()
    files_sha256: str | None = None
    installer: Installer | None = None


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """One wheel: which, where it is, and what its bytes must hash to. size_bytes: if known."""

    name: str
    version: str
    url: str
    sha256: str
    size_bytes: int | None = None

    @property
    def file(self) -> str:
        """The wheel's file name."""
        from urllib.parse import unquote, urlsplit

        return unquote(urlsplit(self.url).path).rpartition("/")[2]


class SmokeTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Training steps that ran in the environment.

    device: "cpu" or "gpu"; device_name: as the framework reports it.
    losses: before the first step and after each. deviation: the largest, relative, from what was to
    come out; on a GPU from what the CPU computed. tolerance: up to which it was allowed.
    checks: what the framework's own check of its installation says, where it has one (Paddle).
    """

    device: Literal["cpu", "gpu"]
    device_name: str | None = None
    version: str
    losses: tuple[float, ...]
    deviation: float
    tolerance: float
    at: str
    checks: tuple[str, ...] = ()


class MadeEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """A whole environment: made, and proved by training steps.

    python: its interpreter. cuda: like "cu126", or "cpu". index: where the framework came from.
    pins: what is in it. flatout: digest of the flatout that was put in; None where none was.
    machine: driver and GPUs that it was made for. variables: what a process in it
    needs to be given. made_at: in UTC, as text. environment_version: of the record's format, for
    later versions of flatout.
    """

    environment_version: int = 1
    name: str
    folder: str
    python: str
    python_version: str
    version: str
    cuda: str
    index: str | None
    installer: Installer
    # The name in files that exist.
    spec: EnvironmentSpec = msgspec.field(name="wish")
    machine: str
    pins: tuple[Pin, ...]
    flatout: str | None = None
    variables: dict[str, str] = {}
    size_bytes: int
    made_at: str
    proof: SmokeTestResult


class UnfinishedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a folder is not yet an environment, or is none any more.

    is_removed: it is being taken away; for a person who finds the folder.
    """

    name: str
    note: str
    spec: EnvironmentSpec | None = msgspec.field(default=None, name="wish")
    is_removed: bool = False


class InstallProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the work. text: the present or finished work; bytes if there are any.

    is_over: this is done, and stays on the screen.
    """

    name: str
    text: str
    done_bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    is_over: bool = False
