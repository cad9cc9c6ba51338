"""A rule's command as steps that flatout can run on this machine.

Only complete commands that are known here: no placeholders, no shell. Commands for a shell
(`export`), the kernel, firmware or a Windows administrator are left to the user.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

import msgspec

from flatout.schema.finding import Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import (
    Block,
    Edit,
    Entry,
    Exists,
    InstallPackages,
    PlanStep,
    Prints,
    RunProgram,
    edit_text,
)

DOCKER_SETTINGS = "/etc/docker/daemon.json"

# Seconds since 1970 by Windows' clock. Ubuntu 24.04 has no hwclock, and sudo's PATH has no Windows
# programs: the shell runs PowerShell before sudo, which only gets the number.
_POWERSHELL = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
_SECONDS = "[DateTimeOffset]::UtcNow.ToUnixTimeSeconds()"
SET_CLOCK = f"sudo date -u -s \"@$({_POWERSHELL} -NoProfile -Command '{_SECONDS}' | tr -d '\\r')\""

_PLACEHOLDER = re.compile(r"<[^<>]{1,40}>|\.\.\.|\bIMAGE\b")
_SHELL = re.compile(r"[<>|$`;&*?(){}~\\]")
_APT_LIMIT_S = 3600.0
_QUIETLY = {"DEBIAN_FRONTEND": "noninteractive"}
_APT_DISTRIBUTIONS = ("ubuntu", "debian", "mint", "pop!_os", "kali", "raspbian", "zorin")
_DOCKER_UNITS = ("docker", "containerd")
# Editors, for users; flatout applies the edit as its own step.
_EDITORS = ("notepad", "nano")
# They change nothing, or need no step: `newgrp` only affects the shell.
_READ_ONLY = {
    "apt-cache", "cat", "df", "free", "getent", "grep", "ls", "lsof", "newgrp", "nvcc", "ss",
    "which", "winver",
}  # fmt: skip


class CommandFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a command. fix: the fix it belongs to. user: name of the logged-in user."""

    machine: Machine
    fix: Fix
    user: str


def steps_of(command: str, facts: CommandFacts) -> tuple[PlanStep, ...] | None:
    """The steps of a command: empty if it only prints, None if flatout cannot run it."""
    if command == SET_CLOCK:
        line = ("sh", "-c", command.removeprefix("sudo "))
        return (_command(line, facts, text="set WSL's clock to Windows'"),)
    words = plain_words(command, facts)
    if not words:
        return None
    is_root = words[0] == "sudo"
    words = words[1:] if is_root else words
    if not words:
        return None
    if words[0] in _EDITORS:
        return () if facts.fix.edits else None
    if _is_read_only(words):
        return ()
    make = _MAKERS.get(words[0].removesuffix(".exe"))
    return make(words, facts, is_root) if make and (len(words) > 1 or make is _ldconfig) else None


def plain_words(command: str, facts: CommandFacts) -> list[str]:
    """The words of a command without shell syntax and placeholders; else none."""
    release = facts.machine.host.release or ""
    for text, value in (("$USER", facts.user), ("$(uname -r)", release)):
        command = command.replace(text, value) if value else command
    bare = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command)
    if _PLACEHOLDER.search(command) or _SHELL.search(bare):
        return []
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _is_read_only(words: Sequence[str]) -> bool:
    if words[0] in _READ_ONLY or "--simulate" in words:
        return True
    beginning = tuple(words[:2])
    return beginning in (
        ("pip", "show"), ("pip", "list"), ("docker", "info"), ("nvidia-smi", "-L"),
        ("nvidia-smi", "-q"), ("wsl", "--list"), ("apt-mark", "showhold"), ("ip", "-brief"),
        ("ubuntu-drivers", "devices"),
    )  # fmt: skip


def _packages(
    words: Sequence[str], facts: CommandFacts, is_root: bool
) -> tuple[PlanStep, ...] | None:
    """pip in the examined environment; only if that is a virtual environment."""
    words = words[words.index("pip") :] if "pip" in words[:3] else []
    environment = next(iter(facts.machine.environments or ()), None)
    python = facts.machine.python
    if len(words) < 3 or words[1] not in ("install", "uninstall") or is_root:
        return None
    if any(word.partition("=")[0] in _OUTSIDE_OPTIONS for word in words):
        return None
    if environment is None or python is None or environment.python != python:
        return None
    if environment.kind not in _OWN_KINDS:
        return None
    if facts.fix.where in ("windows", "powershell") and facts.machine.host.os != "windows":
        return None
    is_removal = words[1] == "uninstall"
    names = " ".join(word for word in words[2:] if not word.startswith(("-", "https:")))
    return (
        PlanStep(
            text=f"{'remove' if is_removal else 'install'} {names}",
            action=InstallPackages(python=python, words=tuple(words[1:])),
            changes=facts.fix.changes or "packages of this environment",
            safety="ask" if is_removal else "safe",
            removes_packages=is_removal,
        ),
    )


_OWN_KINDS = ("venv", "uv")
# With these, pip writes outside the environment; only its files are backed up.
_OUTSIDE_OPTIONS = ("--user", "--target", "-t", "--prefix", "--root", "--break-system-packages")


def _apt(words: Sequence[str], facts: CommandFacts, is_root: bool) -> tuple[PlanStep, ...] | None:
    distribution = (facts.machine.host.distribution or "").lower()
    if not is_root or not distribution.startswith(_APT_DISTRIBUTIONS):
        return None
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    options = [word for word in words[1:] if word.startswith("-")]
    names = [word for word in words[1:] if not word.startswith("-") and word != verb]
    if verb not in ("install", "remove"):
        return None
    undo = _undo(facts)
    if any(name.startswith("^") for name in names):
        # The pattern is for users, who see apt's list; here the names are known.
        names = list(_driver_packages(facts.machine))
        undo = ("apt-get", "install", "--yes", *names)
        if not names:
            return None
    is_removal = verb == "remove"
    can_be_removed = undo is not None and not is_removal and len(names) == 1
    return (
        PlanStep(
            text=f"{verb} {' '.join(names) or 'missing packages'} with apt",
            action=RunProgram(
                argv=("apt-get", *options, verb, "--yes", *names),
                time_limit_s=_APT_LIMIT_S,
                environment=_QUIETLY,
            ),
            changes=facts.fix.changes or "system packages",
            where=facts.fix.where,
            needs_root=True,
            # An undo must not remove a package that was installed before.
            done_if=_is_installed(names[0]) if can_be_removed else None,
            removes_packages=is_removal,
            undo=undo if is_removal or can_be_removed else None,
            shows=(("apt-get", *options, "--simulate", verb, *names),),
        ),
    )


def _is_installed(package: str) -> Prints:
    argv = ("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", package)
    return Prints(argv=argv, text="ii")


def _is_active(unit: str) -> Prints:
    return Prints(argv=("systemctl", "is-active", unit), text="active")


def _driver_packages(machine: Machine) -> tuple[str, ...]:
    return (machine.wsl.linux_driver_packages or ()) if machine.wsl else ()


def _dpkg(words: Sequence[str], facts: CommandFacts, is_root: bool) -> tuple[PlanStep, ...] | None:
    if list(words[1:]) != ["--configure", "-a"]:
        return None
    return (_command(words, facts, text="configure unfinished packages", limit_s=_APT_LIMIT_S),)


def _systemctl(
    words: Sequence[str], facts: CommandFacts, is_root: bool
) -> tuple[PlanStep, ...] | None:
    verb, units = words[1], [word for word in words[2:] if not word.startswith("-")]
    opposites = {"start": "stop", "enable": "disable", "restart": "restart"}
    if verb not in opposites or not is_root or not units:
        return None
    options = [word for word in words[2:] if word.startswith("-")]
    is_docker = verb == "restart" and any(unit in _DOCKER_UNITS for unit in units)
    step = _command(words, facts, text=f"{verb} {' '.join(units)}")
    return (
        msgspec.structs.replace(
            step,
            restarts="docker" if is_docker else None,
            shows=(("docker", "ps"),) if is_docker else (),
            undo=("systemctl", opposites[verb], *options, *units),
            done_if=None if verb == "restart" else _is_active(units[0]),
        ),
    )


def _nvidia_ctk(
    words: Sequence[str], facts: CommandFacts, is_root: bool
) -> tuple[PlanStep, ...] | None:
    if "--runtime=docker" in words and words[1] == "runtime":
        # The same entries as an edit: nvidia-ctk rewrites the whole file in its own order.
        runtime = ("runtimes", "nvidia")
        entries = (
            Entry(place=(*runtime, "args"), value=[]),
            Entry(place=(*runtime, "path"), value="nvidia-container-runtime"),
        )
        edit = Edit(file=DOCKER_SETTINGS, form="json", entries=entries)
        return (edit_step(edit, facts, text="add NVIDIA's runtime to Docker"),)
    files = {
        "config": "/etc/nvidia-container-runtime/config.toml",
        "cdi": next((word.partition("=")[2] for word in words if word.startswith("--output=")), ""),
    }.get(words[1])
    if not files:
        return None
    step = _command(words, facts, text=f"let nvidia-ctk write {files}")
    return (msgspec.structs.replace(step, action=RunProgram(argv=tuple(words), files=(files,))),)


def _usermod(
    words: Sequence[str], facts: CommandFacts, is_root: bool
) -> tuple[PlanStep, ...] | None:
    if len(words) != 4 or words[1] != "-aG":
        return None
    return tuple(
        msgspec.structs.replace(
            _command(["usermod", "-aG", group, words[3]], facts, text=f"join the group {group}"),
            undo=("gpasswd", "-d", words[3], group),
            # An undo must not remove a user who was a member before.
            done_if=Prints(argv=("id", "-nG", words[3]), text=group),
        )
        for group in words[2].split(",")
    )


def _rm(words: Sequence[str], facts: CommandFacts, is_root: bool) -> tuple[PlanStep, ...] | None:
    if len(words) != 2 or not words[1].startswith("/etc/"):
        return None
    step = _command(words, facts, text=f"remove {words[1]}")
    return (msgspec.structs.replace(step, action=RunProgram(argv=tuple(words), files=(words[1],))),)


def _ln(words: Sequence[str], facts: CommandFacts, is_root: bool) -> tuple[PlanStep, ...] | None:
    """A link to create if its path is free."""
    if len(words) != 4 or words[1] != "-s" or not is_root:
        return None
    link = words[3]
    step = _command(words, facts, text=f"link {link} to {words[2]}")
    # The undo must also remove it from the loader's cache.
    undo = ("sh", "-c", f"rm {shlex.quote(link)} && ldconfig")
    return (msgspec.structs.replace(step, done_if=Exists(path=link), undo=undo),)


def _ldconfig(
    words: Sequence[str], facts: CommandFacts, is_root: bool
) -> tuple[PlanStep, ...] | None:
    if len(words) != 1 or not is_root:
        return None
    step = _command(words, facts, text="update the loader's cache")
    return (msgspec.structs.replace(step, undo=("ldconfig",)),)


def _nvidia_smi(
    words: Sequence[str], facts: CommandFacts, is_root: bool
) -> tuple[PlanStep, ...] | None:
    if list(words[1:]) != ["-c", "DEFAULT"]:
        return None
    step = _command(words, facts, text="let several processes use the GPU")
    return (msgspec.structs.replace(step, undo=_undo(facts)),)


def _wsl(words: Sequence[str], facts: CommandFacts, is_root: bool) -> tuple[PlanStep, ...] | None:
    texts = {"--shutdown": "restart WSL", "--update": "update WSL"}
    if len(words) != 2 or words[1] not in texts:
        return None
    lists = (("wsl.exe", "--list", "--running"), ("docker", "ps"), ("flatout", "runs"))
    return (
        PlanStep(
            text=texts[words[1]],
            action=RunProgram(argv=("wsl.exe", words[1])),
            changes="stops every distro, container and run in WSL",
            where="powershell",
            restarts="wsl",
            shows=lists,
        ),
    )


def _netsh(words: Sequence[str], facts: CommandFacts, is_root: bool) -> tuple[PlanStep, ...] | None:
    """Removes a stale Windows forward; its target is known, for an undo."""
    windows = facts.machine.windows
    stale = (windows.stale_forwards or ()) if windows else ()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    listener = f"{given.get('listenaddress')}/{given.get('listenport')}"
    target = next((forward.split()[1] for forward in stale if forward.split()[0] == listener), None)
    if list(words[1:5]) != ["interface", "portproxy", "delete", "v4tov4"] or target is None:
        return None
    address, port = target.split("/")
    again = [*words[1:3], "add", *words[4:], f"connectaddress={address}", f"connectport={port}"]
    return (
        PlanStep(
            text=f"remove the forward from {listener} to {target}",
            action=RunProgram(argv=_as_administrator(words[1:])),
            changes=facts.fix.changes or "a Windows port forward",
            where="powershell",
            done_if=Prints(argv=_is_gone(*listener.split("/"))),
            undo=_as_administrator(again),
        ),
    )


def _is_gone(address: str, port: str) -> tuple[str, ...]:
    """Succeeds if there is no such forward: netsh fails when it has none to delete."""
    line = f"^{re.escape(address)}\\s+{port}\\s"
    query = f"netsh.exe interface portproxy show v4tov4 | Select-String '{line}'"
    return ("powershell.exe", "-NoProfile", "-Command", f"if ({query}) {{ exit 1 }}")


def _as_administrator(words: Sequence[str]) -> tuple[str, ...]:
    """netsh through PowerShell, so that Windows asks for administrator rights."""
    line = (
        f"try {{ exit (Start-Process netsh.exe -ArgumentList '{' '.join(words)}' -Verb RunAs -Wait "
        "-PassThru -WindowStyle Hidden -ErrorAction Stop).ExitCode } "
        # The user declined Windows' prompt, or has no administrator rights.
        'catch { "$_"; exit 1 }'
    )
    return ("powershell.exe", "-NoProfile", "-Command", line)


def edit_step(edit: Edit | Block, facts: CommandFacts, text: str | None = None) -> PlanStep:
    """The step of an edit; files in /etc need root."""
    is_of_system = edit.file.startswith("/etc/")
    where = facts.fix.where
    if where == "powershell":
        where = "wsl" if is_of_system else "windows"
    return PlanStep(
        text=text or f"edit {edit.file}",
        action=edit,
        changes=edit_text(edit),
        where=where,
        needs_root=is_of_system,
    )


def _command(
    words: Sequence[str], facts: CommandFacts, *, text: str, limit_s: float = 600.0
) -> PlanStep:
    return PlanStep(
        text=text,
        action=RunProgram(argv=tuple(words), time_limit_s=limit_s),
        changes=facts.fix.changes or text,
        where=facts.fix.where,
        needs_root=True,
    )


def _undo(facts: CommandFacts) -> tuple[str, ...] | None:
    """The fix's undo command, if it is one of the known programs."""
    words = plain_words(facts.fix.undo or "", facts)
    if words[:1] != ["sudo"] or len(words) < 3:
        return None
    if words[1] in ("apt", "apt-get"):
        return ("apt-get", words[2], "--yes", *words[3:])
    return tuple(words[1:]) if words[1] in _MAKERS else None


_MAKERS: dict[str, Callable[[Sequence[str], CommandFacts, bool], tuple[PlanStep, ...] | None]] = {
    "pip": _packages,
    "python": _packages,
    "apt": _apt,
    "apt-get": _apt,
    "dpkg": _dpkg,
    "systemctl": _systemctl,
    "nvidia-ctk": _nvidia_ctk,
    "usermod": _usermod,
    "rm": _rm,
    "ln": _ln,
    "ldconfig": _ldconfig,
    "nvidia-smi": _nvidia_smi,
    "wsl": _wsl,
    "netsh": _netsh,
}
