"""The Windows side of a machine, and WSL."""

from __future__ import annotations

import msgspec


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """Windows itself: the host of a WSL, or the system that flatout runs on.

    build: like "10.0.26100". driver: Windows' number of NVIDIA's driver, like "581.42".
    commit_limit_bytes: memory and page files together, what processes may promise themselves.
    stale_forwards: entries of `netsh interface portproxy` that lead into WSL's net and not to this
        distro, each as where it listens and where it leads: "0.0.0.0/8000 172.20.1.3/8000".
    profile: the folder of the logged-in user, as this side spells it: there is .wslconfig.
    wslconfig: `section.key` -> value, as the user's .wslconfig has it; None where there is none.
    """

    build: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    commit_limit_bytes: int | None = None
    free_bytes: int | None = None
    is_gpu_scheduling_on: bool | None = None
    stale_forwards: tuple[str, ...] | None = None
    profile: str | None = None
    wslconfig: dict[str, str] | None = None
    wslconfig_encoding: str | None = None


class Wsl(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a WSL 2 distribution.

    package: version of WSL itself, like "2.7.10". has_dxg: /dev/dxg is there.
    libraries: names in /usr/lib/wsl/lib. has_driver_store: /usr/lib/wsl/drivers holds a driver.
    wsl_conf: `section.key` -> value of /etc/wsl.conf.
    linux_driver_packages: NVIDIA's Linux driver, installed where it must not be.
    windows_programs: names that a shell here finds first on a drive of Windows: "python", "pip" ...
    """

    package: str | None = None
    distro: str | None = None
    has_dxg: bool | None = None
    libraries: tuple[str, ...] | None = None
    has_driver_store: bool | None = None
    wsl_conf: dict[str, str] | None = None
    linux_driver_packages: tuple[str, ...] | None = None
    windows_programs: tuple[str, ...] | None = None
