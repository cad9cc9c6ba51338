"""What is known about the machine. Unknown is None, and `unread` says why."""

from __future__ import annotations

import msgspec


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """os: linux, windows or macos; wsl: 1 or 2 under WSL, else None (no reason needed: not WSL)."""

    os: str
    release: str | None = None
    distribution: str | None = None
    wsl: int | None = None
    python: str


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """num_cores: physical; num_threads: logical, those this process may use; features: ISA flags."""

    name: str | None = None
    num_cores: int | None = None
    num_threads: int
    features: tuple[str, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """limit_bytes: what a container may use, None where nothing limits it."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML or nvidia-smi tells; compute_capability like "8.6"."""

    index: int
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    compute_capability: str | None = None


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """A framework by its installed metadata, never imported; build like "cu130" or "cpu"."""

    name: str
    version: str
    build: str | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The facts at one moment. `unread` maps a fact's path (`driver`) to why it is None."""

    read_at: str
    host: Host
    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    python: str
    frameworks: tuple[Framework, ...] = ()
    unread: dict[str, str] = {}

    def framework(self, name: str) -> Framework | None:
        """The framework of that name in the environment that was read, or None."""
        return next((found for found in self.frameworks if found.name == name), None)
