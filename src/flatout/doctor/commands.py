"""A command that a rule names, as steps that flatout can carry out on this machine.

Only commands that are known here, and whole: no placeholders, no shell. What belongs to a shell
(`export`), to the kernel, to firmware or to an administrator of Windows is left to the person.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

import msgspec

from flatout.nouns.finding import Fix
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Block, Edit, Entry, Exists, Packages, Prints, Run, Step, edit_text

DOCKER_SETTINGS = "/etc/docker/daemon.json"

# Seconds since 1970 by Windows' clock. hwclock is no part of Ubuntu 24.04, and sudo's path has none
# of Windows' programs: the shell asks before sudo, which gets the number alone.
_POWERSHELL = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
_SECONDS = "[DateTimeOffset]::UtcNow.ToUnixTimeSeconds()"
SET_CLOCK = f"sudo date -u -s \"@$({_POWERSHELL} -NoProfile -Command '{_SECONDS}' | tr -d '\\r')\""

_PLACEHOLDER = re.compile(r"<[^<>]{1,40}>|\.\.\.|\bIMAGE\b")
_SHELL = re.compile(r"[<>|$`;&*?(){}~\\]")
_APT_LIMIT_S = 3600.0
_QUIETLY = {"DEBIAN_FRONTEND": "noninteractive"}
_APT_DISTRIBUTIONS = ("ubuntu", "debian", "mint", "pop!_os", "kali", "raspbian", "zorin")
_DOCKER_UNITS = ("docker", "containerd")
# Editors, for people; the edit that they are for is a step of its own.
_EDITORS = ("notepad", "nano")
# They print something and change nothing; or what they do needs no step: `newgrp` is for the shell.
_LOOKING = {
    "apt-cache", "cat", "df", "free", "getent", "grep", "ls", "lsof", "newgrp", "nvcc", "ss",
    "which", "winver",
}  # fmt: skip


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a command is turned into steps for. fix: that names it. user: who is logged in."""

    machine: Machine
    fix: Fix
    user: str


def steps_of(command: str, facts: Facts) -> tuple[Step, ...] | None:
    """The steps of a command: none for one that only looks, None where flatout cannot do it."""
    if command == SET_CLOCK:
        line = ("sh", "-c", command.removeprefix("sudo "))
        return (_command(line, facts, text="set the clock from Windows'"),)
    words = plain_words(command, facts)
    if not words:
        return None
    is_root = words[0] == "sudo"
    words = words[1:] if is_root else words
    if not words:
        return None
    if words[0] in _EDITORS:
        return () if facts.fix.edits else None
    if _only_looks(words):
        return ()
    make = _MAKERS.get(words[0].removesuffix(".exe"))
    return make(words, facts, is_root) if make and (len(words) > 1 or make is _ldconfig) else None


def plain_words(command: str, facts: Facts) -> list[str]:
    """The words of a command that needs no shell and leaves nothing open; else none."""
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


def _only_looks(words: Sequence[str]) -> bool:
    if words[0] in _LOOKING or "--simulate" in words:
        return True
    beginning = tuple(words[:2])
    return beginning in (
        ("pip", "show"), ("pip", "list"), ("docker", "info"), ("nvidia-smi", "-L"),
        ("nvidia-smi", "-q"), ("wsl", "--list"), ("apt-mark", "showhold"), ("ip", "-brief"),
        ("ubuntu-drivers", "devices"),
    )  # fmt: skip


def _packages(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    """pip in the environment asked about; only in one that is nobody else's."""
    words = words[words.index("pip") :] if "pip" in words[:3] else []
    asked = next(iter(facts.machine.environments or ()), None)
    python = facts.machine.python
    if len(words) < 3 or words[1] not in ("install", "uninstall") or is_root:
        return None
    if any(word.partition("=")[0] in _OUT_OF_IT for word in words):
        return None
    if asked is None or python is None or asked.python != python or asked.kind not in _OWN_KINDS:
        return None
    if facts.fix.where in ("windows", "powershell") and facts.machine.host.os != "windows":
        return None
    is_removal = words[1] == "uninstall"
    names = " ".join(word for word in words[2:] if not word.startswith(("-", "https:")))
    return (
        Step(
            text=f"{'remove' if is_removal else 'install'} {names}",
            action=Packages(python=python, words=tuple(words[1:])),
            changes=facts.fix.changes or "packages of this environment",
            safety="ask" if is_removal else "safe",
            removes_packages=is_removal,
        ),
    )


_OWN_KINDS = ("venv", "uv")
# With these pip writes outside the environment, whose files alone are kept.
_OUT_OF_IT = ("--user", "--target", "-t", "--prefix", "--root", "--break-system-packages")


def _apt(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
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
        # A pattern is for people, who see the list; here the names are known.
        names = list(_driver_packages(facts.machine))
        undo = ("apt-get", "install", "--yes", *names)
        if not names:
            return None
    is_removal = verb == "remove"
    can_be_taken_out = undo is not None and not is_removal and len(names) == 1
    return (
        Step(
            text=f"{verb} {' '.join(names) or 'what is missing'} with apt",
            action=Run(
                argv=("apt-get", *options, verb, "--yes", *names),
                time_limit_s=_APT_LIMIT_S,
                environment=_QUIETLY,
            ),
            changes=facts.fix.changes or "packages of the system",
            where=facts.fix.where,
            needs_root=True,
            # What was there before must not be taken out by an undo.
            done_if=_is_installed(names[0]) if can_be_taken_out else None,
            removes_packages=is_removal,
            undo=undo if is_removal or can_be_taken_out else None,
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


def _dpkg(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    if list(words[1:]) != ["--configure", "-a"]:
        return None
    return (_command(words, facts, text="configure what dpkg has left", limit_s=_APT_LIMIT_S),)


def _systemctl(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
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


def _nvidia_ctk(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    if "--runtime=docker" in words and words[1] == "runtime":
        # The same entries by hand: nvidia-ctk writes the whole file anew, in an order of its own.
        place = ("runtimes", "nvidia")
        entries = (
            Entry(place=(*place, "args"), value=[]),
            Entry(place=(*place, "path"), value="nvidia-container-runtime"),
        )
        edit = Edit(file=DOCKER_SETTINGS, form="json", entries=entries)
        return (edit_step(edit, facts, text="tell Docker of NVIDIA's runtime"),)
    files = {
        "config": "/etc/nvidia-container-runtime/config.toml",
        "cdi": next((word.partition("=")[2] for word in words if word.startswith("--output=")), ""),
    }.get(words[1])
    if not files:
        return None
    step = _command(words, facts, text=f"let nvidia-ctk write {files}")
    return (msgspec.structs.replace(step, action=Run(argv=tuple(words), files=(files,))),)


def _usermod(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    if len(words) != 4 or words[1] != "-aG":
        return None
    return tuple(
        msgspec.structs.replace(
            _command(["usermod", "-aG", group, words[3]], facts, text=f"join the group {group}"),
            undo=("gpasswd", "-d", words[3], group),
            # Who is in it already must not be put out of it by an undo.
            done_if=Prints(argv=("id", "-nG", words[3]), text=group),
        )
        for group in words[2].split(",")
    )


def _rm(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    if len(words) != 2 or not words[1].startswith("/etc/"):
        return None
    step = _command(words, facts, text=f"remove {words[1]}")
    return (msgspec.structs.replace(step, action=Run(argv=tuple(words), files=(words[1],))),)


def _ln(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    """A link where nothing is yet."""
    if len(words) != 4 or words[1] != "-s" or not is_root:
        return None
    link = words[3]
    step = _command(words, facts, text=f"link {link} to {words[2]}")
    # The loader's cache must forget it too.
    undo = ("sh", "-c", f"rm {shlex.quote(link)} && ldconfig")
    return (msgspec.structs.replace(step, done_if=Exists(path=link), undo=undo),)


def _ldconfig(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    if len(words) != 1 or not is_root:
        return None
    step = _command(words, facts, text="let the loader read its folders again")
    return (msgspec.structs.replace(step, undo=("ldconfig",)),)


def _nvidia_smi(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    if list(words[1:]) != ["-c", "DEFAULT"]:
        return None
    step = _command(words, facts, text="let several processes use the GPU")
    return (msgspec.structs.replace(step, undo=_undo(facts)),)


def _wsl(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    texts = {"--shutdown": "restart WSL", "--update": "update WSL"}
    if len(words) != 2 or words[1] not in texts:
        return None
    lists = (("wsl.exe", "--list", "--running"), ("docker", "ps"), ("flatout", "runs"))
    return (
        Step(
            text=texts[words[1]],
            action=Run(argv=("wsl.exe", words[1])),
            changes="ends every distro, container and run in WSL",
            where="powershell",
            restarts="wsl",
            shows=lists,
        ),
    )


def _netsh(words: Sequence[str], facts: Facts, is_root: bool) -> tuple[Step, ...] | None:
    """A stale forward of Windows is removed; where it led is known, for an undo."""
    windows = facts.machine.windows
    stale = (windows.stale_forwards or ()) if windows else ()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    place = f"{given.get('listenaddress')}/{given.get('listenport')}"
    target = next((one.split()[1] for one in stale if one.split()[0] == place), None)
    if list(words[1:5]) != ["interface", "portproxy", "delete", "v4tov4"] or target is None:
        return None
    address, port = target.split("/")
    again = [*words[1:3], "add", *words[4:], f"connectaddress={address}", f"connectport={port}"]
    return (
        Step(
            text=f"remove the forward from {place} to {target}",
            action=Run(argv=_as_administrator(words[1:])),
            changes=facts.fix.changes or "a forward of Windows",
            where="powershell",
            done_if=Prints(argv=_is_gone(*place.split("/"))),
            undo=_as_administrator(again),
        ),
    )


def _is_gone(address: str, port: str) -> tuple[str, ...]:
    """Ends well where there is no such forward: netsh ends with 1 where it is to delete none."""
    line = f"^{re.escape(address)}\\s+{port}\\s"
    asked = f"netsh.exe interface portproxy show v4tov4 | Select-String '{line}'"
    return ("powershell.exe", "-NoProfile", "-Command", f"if ({asked}) {{ exit 1 }}")


def _as_administrator(words: Sequence[str]) -> tuple[str, ...]:
    """netsh by PowerShell, with which Windows asks for the administrator."""
    line = (
        f"try {{ exit (Start-Process netsh.exe -ArgumentList '{' '.join(words)}' -Verb RunAs -Wait "
        "-PassThru -WindowStyle Hidden -ErrorAction Stop).ExitCode } "
        # Whoever says no to Windows' question, or may not say yes.
        'catch { "$_"; exit 1 }'
    )
    return ("powershell.exe", "-NoProfile", "-Command", line)


def edit_step(edit: Edit | Block, facts: Facts, text: str | None = None) -> Step:
    """The step of an edit; files below /etc are root's."""
    is_of_system = edit.file.startswith("/etc/")
    place = facts.fix.where
    if place == "powershell":
        place = "wsl" if is_of_system else "windows"
    return Step(
        text=text or f"edit {edit.file}",
        action=edit,
        changes=edit_text(edit),
        where=place,
        needs_root=is_of_system,
    )


def _command(words: Sequence[str], facts: Facts, *, text: str, limit_s: float = 600.0) -> Step:
    return Step(
        text=text,
        action=Run(argv=tuple(words), time_limit_s=limit_s),
        changes=facts.fix.changes or text,
        where=facts.fix.where,
        needs_root=True,
    )


def _undo(facts: Facts) -> tuple[str, ...] | None:
    """What the fix names to take it back, where that is a command of one of these programs."""
    words = plain_words(facts.fix.undo or "", facts)
    if words[:1] != ["sudo"] or len(words) < 3:
        return None
    if words[1] in ("apt", "apt-get"):
        return ("apt-get", words[2], "--yes", *words[3:])
    return tuple(words[1:]) if words[1] in _MAKERS else None


_MAKERS: dict[str, Callable[[Sequence[str], Facts, bool], tuple[Step, ...] | None]] = {
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
