"""What holds for all environments of one `flatout setup`: the machine, and how packages are had."""

from __future__ import annotations

import sys
from urllib.request import OpenerDirector

import msgspec

from flatout.errors import UsageError
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.indexes import Indexes
from flatout.nouns.machine import Machine
from flatout.nouns.made_environment import Installer
from flatout.probes import machine as machine_probe
from flatout.setting_up import tables_in_use
from flatout.setup.rows import Tables
from flatout.system import micromamba, uv_program
from flatout.system.installers import Conda, Pip, Program, Uv
from flatout.system.opener import opener_for, without_password
from flatout.system.pip_settings import read_indexes
from flatout.system.programs import find_conda
from flatout.system.site_file import read_site
from flatout.system.system import LocalSystem


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """programs: what can decide on packages and install them, the preferred one first.

    torch_mirror: in place of PyTorch's own index. notes: what was settled for all of this machine.
    micromamba: to be downloaded before an environment is made; None where conda is here, or is not
    asked for.
    """

    machine: Machine
    tables: Tables
    indexes: Indexes
    opener: OpenerDirector
    programs: tuple[Program, ...]
    torch_mirror: str | None = None
    notes: tuple[str, ...] = ()
    micromamba: micromamba.Release | None = None

    @property
    def program(self) -> Program:
        """The preferred one."""
        return self.programs[0]


def read_machine() -> Machine:
    """The facts that decide which build fits."""
    return machine_probe.probe(LocalSystem(), sys.executable)


def machine_text(machine: Machine) -> str:
    """The facts that a build was chosen for: where they change, it is chosen again."""
    cards = ",".join(gpu.compute_capability or "unknown" for gpu in machine.gpus)
    return f"driver {machine.driver or 'none'}, compute capabilities {cards or 'none'}"


def read_ground(
    request: EnvironmentRequest,
    machine: Machine,
    *,
    may_get_uv: bool,
    held: tuple[int, ...] = (),
) -> Ground:
    """How packages are had here. held: descriptors of locks that installers are to hold, too.

    Raises:
        UsageError: installer-not-found, site-file-wrong.
        RunFailed: no-installer.
    """
    site, own = read_site(), read_indexes()
    # What was typed wins, then the person's own settings, then those for the whole machine.
    mine = {
        "packages": request.mirror("packages") or own.default,
        "torch": request.mirror("torch"),
        "python": request.mirror("python") or own.python_mirror,
    }
    theirs = {name: url for name in mine if not mine[name] and (url := getattr(site.mirrors, name))}
    found = {**mine, **theirs}
    indexes = msgspec.structs.replace(own, default=found["packages"], python_mirror=found["python"])
    manager = request.manager or site.setup.manager
    notes = [f"{name} from {without_password(url)}: a default of {site.file}"
             for name, url in theirs.items()]  # fmt: skip
    if site.setup.manager and not request.manager:
        notes.append(f"with {manager}: a default of {site.file}")
    return Ground(
        machine=machine,
        tables=tables_in_use(),
        indexes=indexes,
        opener=opener_for(indexes, *([found["torch"]] if found["torch"] else [])),
        torch_mirror=found["torch"],
        notes=tuple(notes),
        programs=_programs(manager, indexes, may_get_uv=may_get_uv, held=held),
        micromamba=_micromamba(is_offline=request.is_offline) if manager == "conda" else None,
    )


def _programs(
    wanted: Installer | None, indexes: Indexes, *, may_get_uv: bool, held: tuple[int, ...]
) -> tuple[Program, ...]:
    path = uv_program.find_uv()
    has_pip = uv_program.has_pip()
    if path is None and has_pip and may_get_uv and wanted != "pip":
        path = uv_program.install_uv(indexes)
    uv = Uv(path, indexes, held) if path else None
    pip = Pip(sys.executable, indexes, held) if has_pip else None
    found: list[Program] = [one for one in (uv, pip) if one]
    if not found:
        raise uv_program.no_installer()
    if wanted == "conda":
        conda = find_conda() or str(micromamba.own_path())
        return tuple(Conda(conda, one, indexes, held) for one in found)
    if wanted is not None:
        found.sort(key=lambda one: one.name != wanted)
        if found[0].name != wanted:
            raise _missing(wanted, f"no {wanted} was found that can be used")
    return tuple(found)


def _micromamba(*, is_offline: bool) -> micromamba.Release | None:
    """What is to be downloaded for `--manager conda`; None where conda is here."""
    if find_conda() is not None:
        return None
    none_here = "there is no mamba, micromamba or conda here"
    if is_offline:
        raise _missing("conda", f"{none_here}, and --offline was given")
    release = micromamba.release_here()
    if release is None:
        raise _missing("conda", f"{none_here}, and micromamba has no program for this system")
    return release


def _missing(name: str, because: str) -> UsageError:
    return UsageError(
        "installer-not-found",
        f"`--manager {name}` cannot be used here.",
        because=because,
        fix="install it, or leave --manager out",
    )
