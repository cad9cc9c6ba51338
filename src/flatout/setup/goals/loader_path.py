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
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    is_found = first is not None and first.path.startswith(f"{_LIBRARIES}/")
    if not (is_found and first is not None and first.found_by == "ldconfig"):
        steps += _in_the_cache()
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


def _in_the_cache() -> tuple[Step, ...]:
    return (
        Step(
            text=f"put {_LIBRARIES} on the loader's list",
            action=Write(file=_CONF, text=f"{_LIBRARIES}\n"),
            changes=f"{_CONF} is there",
            where="wsl",
            needs_root=True,
        ),
        Step(
            text="let the loader read its list",
            action=Run(argv=("ldconfig",)),
            changes="the loader's cache, /etc/ld.so.cache",
            where="wsl",
            needs_root=True,
            done_if=Prints(argv=("/sbin/ldconfig", "-p"), text=f"{_LIBRARIES}/libcuda.so"),
            undo=("ldconfig",),
        ),
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
