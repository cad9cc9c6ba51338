"""Inside WSL: makes libcuda and nvidia-smi visible to all users and services."""

from __future__ import annotations

from flatout.compat.rows import Tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry, Exists, Plan, PlanStep, Prints, RunProgram, Write
from flatout.setup.host.host_facts import host_facts_of

_LIBRARIES = "/usr/lib/wsl/lib"
_CONF = "/etc/ld.so.conf.d/flatout-wsl.conf"
_PROGRAM = "/usr/local/bin/nvidia-smi"
# Debian, Ubuntu and derivatives have this folder on the loader's search path.
_PLAIN = "/usr/local/lib/libcuda.so"


def plan_loader_path(machine: Machine, tables: Tables) -> Plan:
    """Uses the loader's search path rather than LD_LIBRARY_PATH.

    sudo, systemd, Jupyter and VS Code start with their own environments, without the variables of
    the shell; the loader's cache applies to all of them.

    Raises:
        UsageError: no-plan-here, outside of WSL 2.
    """
    host = host_facts_of(machine, tables)
    if host.os != "wsl2":
        raise UsageError(
            "no-plan-here",
            "this is not inside WSL 2.",
            because=f"{_LIBRARIES} is where WSL provides Windows' driver to a distro",
            fix="for a native driver: flatout doctor",
        )
    conf = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    steps: list[PlanStep] = []
    if conf.get("automount.ldconfig", "").lower() == "false":
        steps.append(_let_wsl_do_it())
    known = [
        library
        for library in machine.libraries or ()
        if library.name == "libcuda" and not library.is_stub
    ]
    cached = [library for library in known if library.found_by == "ldconfig"]
    is_there = any(library.path.startswith(f"{_LIBRARIES}/") for library in cached)
    is_plain = any(library.is_plain for library in cached)
    if not is_there:
        steps.append(_on_the_list())
    if not is_plain:
        steps.append(_link())
    if not is_there or not is_plain:
        # The link, not `libcuda.so.1`, which WSL adds by itself.
        steps.append(_in_the_cache(f"{_LIBRARIES}/libcuda.so.1" if is_plain else _PLAIN))
    steps.append(_nvidia_smi())
    return Plan(
        goal="make Windows' driver visible to everything in this distro: root, sudo, systemd, "
        "Jupyter, VS Code",
        steps=tuple(steps),
    )


def _let_wsl_do_it() -> PlanStep:
    return PlanStep(
        text="let WSL add its folder to the loader's search path again",
        action=Edit(
            file="/etc/wsl.conf",
            form="ini",
            entries=(Entry(place=("automount", "ldconfig"), value="true"),),
        ),
        changes="[automount] ldconfig=true in /etc/wsl.conf; takes effect after wsl --shutdown",
        where="wsl",
        needs_root=True,
    )


def _on_the_list() -> PlanStep:
    return PlanStep(
        text=f"add {_LIBRARIES} to the loader's search path",
        action=Write(file=_CONF, text=f"{_LIBRARIES}\n"),
        changes=f"{_CONF}, a new file",
        where="wsl",
        needs_root=True,
    )


def _link() -> PlanStep:
    """Programs that open libcuda.so, such as PaddlePaddle, need a link of that name.

    WSL's libcuda.so, libcuda.so.1 and libcuda.so.1.1 are copies of one file. ldconfig lists a file
    under the name inside it, libcuda.so.1, and under other names only links. The folder itself
    belongs to Windows and is read-only.

    Source: microsoft/WSL#8587; glibc, elf/ldconfig.c, search_dir.
    """
    return PlanStep(
        text="let programs find libcuda.so, without a version number",
        action=RunProgram(argv=("ln", "-s", f"{_LIBRARIES}/libcuda.so.1", _PLAIN)),
        changes=f"{_PLAIN}, a link",
        where="wsl",
        needs_root=True,
        done_if=Exists(path=_PLAIN),
        # The loader's cache must drop it too.
        undo=("sh", "-c", f"rm {_PLAIN} && ldconfig"),
    )


def _in_the_cache(file: str) -> PlanStep:
    return PlanStep(
        text="rebuild the loader's cache",
        action=RunProgram(argv=("ldconfig",)),
        changes="the loader's cache, /etc/ld.so.cache",
        where="wsl",
        needs_root=True,
        done_if=Prints(argv=("/sbin/ldconfig", "-p"), text=file),
        undo=("ldconfig",),
    )


def _nvidia_smi() -> PlanStep:
    return PlanStep(
        text="let root and services find nvidia-smi",
        action=RunProgram(argv=("ln", "-s", f"{_LIBRARIES}/nvidia-smi", _PROGRAM)),
        changes=f"{_PROGRAM}, a link",
        where="wsl",
        needs_root=True,
        done_if=Exists(path=_PROGRAM),
        undo=("rm", _PROGRAM),
    )
