"""Inside WSL: libcuda and nvidia-smi found by everybody, root and services too."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry, Exists, Plan, Prints, Run, Step, Write
from flatout.setup.goals.place import place_of
from flatout.setup.rows import Tables

_LIBRARIES = "/usr/lib/wsl/lib"
_CONF = "/etc/ld.so.conf.d/flatout-wsl.conf"
_PROGRAM = "/usr/local/bin/nvidia-smi"
# Debian, Ubuntu and their like have this folder on the loader's list.
_PLAIN = "/usr/local/lib/libcuda.so"


def plan_loader_path(machine: Machine, tables: Tables) -> Plan:
    """The loader's own list rather than LD_LIBRARY_PATH.

    sudo, systemd, Jupyter and VS Code start with an environment of their own, in which a shell's
    variables are missing; the loader's cache holds for all of them.

    Raises:
        UsageError: no-plan-here, outside of WSL 2.
    """
    place = place_of(machine, tables)
    if place.os != "wsl2":
        raise UsageError(
            "no-plan-here",
            "this is not inside WSL 2.",
            because=f"{_LIBRARIES} is the folder in which WSL lends Windows' driver to a distro",
            fix="flatout doctor tells what is wrong with a native driver",
        )
    conf = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    steps: list[Step] = []
    if conf.get("automount.ldconfig", "").lower() == "false":
        steps.append(_let_wsl_do_it())
    known = [one for one in machine.libraries or () if one.name == "libcuda" and not one.is_stub]
    cached = [one for one in known if one.found_by == "ldconfig"]
    is_there = any(one.path.startswith(f"{_LIBRARIES}/") for one in cached)
    is_plain = any(one.is_plain for one in cached)
    if not is_there:
        steps.append(_on_the_list())
    if not is_plain:
        steps.append(_link())
    if not is_there or not is_plain:
        # The link, and not `libcuda.so.1`, which WSL enters by itself.
        steps.append(_in_the_cache(f"{_LIBRARIES}/libcuda.so.1" if is_plain else _PLAIN))
    steps.append(_nvidia_smi())
    return Plan(
        goal="Windows' driver found in this distro by everybody: root, sudo, systemd, Jupyter, "
        "VS Code",
        steps=tuple(steps),
    )


def _let_wsl_do_it() -> Step:
    return Step(
        text="let WSL put its folder on the loader's list again",
        action=Edit(
            file="/etc/wsl.conf",
            form="ini",
            entries=(Entry(place=("automount", "ldconfig"), value="true"),),
        ),
        changes="[automount] ldconfig=true in /etc/wsl.conf; holds after wsl --shutdown",
        where="wsl",
        needs_root=True,
    )


def _on_the_list() -> Step:
    return Step(
        text=f"put {_LIBRARIES} on the loader's list",
        action=Write(file=_CONF, text=f"{_LIBRARIES}\n"),
        changes=f"{_CONF} is there",
        where="wsl",
        needs_root=True,
    )


def _link() -> Step:
    """What opens libcuda.so, as PaddlePaddle does, needs a link of that name.

    WSL's libcuda.so, libcuda.so.1 and libcuda.so.1.1 are copies of one file. ldconfig enters a file
    under the name inside it, libcuda.so.1, and another name for links alone. The folder itself is
    Windows' and cannot be written. Source: microsoft/WSL#8587; glibc, elf/ldconfig.c, search_dir.
    """
    return Step(
        text="let programs find libcuda.so, without a number",
        action=Run(argv=("ln", "-s", f"{_LIBRARIES}/libcuda.so.1", _PLAIN)),
        changes=f"{_PLAIN}, a link",
        where="wsl",
        needs_root=True,
        done_if=Exists(path=_PLAIN),
        # The loader's cache must forget it too.
        undo=("sh", "-c", f"rm {_PLAIN} && ldconfig"),
    )


def _in_the_cache(file: str) -> Step:
    return Step(
        text="let the loader read its list",
        action=Run(argv=("ldconfig",)),
        changes="the loader's cache, /etc/ld.so.cache",
        where="wsl",
        needs_root=True,
        done_if=Prints(argv=("/sbin/ldconfig", "-p"), text=file),
        undo=("ldconfig",),
    )


def _nvidia_smi() -> Step:
    return Step(
        text="let root and services find nvidia-smi",
        action=Run(argv=("ln", "-s", f"{_LIBRARIES}/nvidia-smi", _PROGRAM)),
        changes=f"{_PROGRAM}, a link",
        where="wsl",
        needs_root=True,
        done_if=Exists(path=_PROGRAM),
        undo=("rm", _PROGRAM),
    )
