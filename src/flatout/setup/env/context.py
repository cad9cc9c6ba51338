"""The context of one `flatout setup`: the machine, and where packages come from."""

from __future__ import annotations

import sys
from urllib.request import OpenerDirector

import msgspec

from flatout.compat.api import tables_in_use
from flatout.compat.rows import Tables
from flatout.errors import UsageError
from flatout.schema.environment import Installer
from flatout.schema.machine import Machine
from flatout.schema.package_indexes import Indexes
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import micromamba
from flatout.setup.packages import uv as uv_program
from flatout.setup.packages.installers import Conda, Pip, Program, Uv
from flatout.setup.packages.micromamba import find_conda
from flatout.system.host_system import LocalSystem
from flatout.system.http import opener_for, without_password
from flatout.system.pip_config import read_indexes
from flatout.system.probes import machine as machine_probe
from flatout.system.site_policy import read_site


class SetupContext(msgspec.Struct, frozen=True, kw_only=True):
    """programs: what can resolve and install packages, the preferred one first.

    torch_mirror: used in place of PyTorch's own index. notes: settings from the site file.
    micromamba: what to download first; None where conda is installed or not needed.
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
        """The preferred program."""
        return self.programs[0]


def read_machine() -> Machine:
    """The facts that decide which build fits."""
    return machine_probe.probe(LocalSystem(), sys.executable)


def machine_text(machine: Machine) -> str:
    """The facts that a build was chosen for; when they change, it is chosen again."""
    cards = ",".join(gpu.compute_capability or "unknown" for gpu in machine.gpus)
    return f"driver {machine.driver or 'none'}, compute capabilities {cards or 'none'}"


def read_context(
    request: EnvironmentRequest,
    machine: Machine,
    *,
    may_get_uv: bool,
    kept_open: tuple[int, ...] = (),
) -> SetupContext:
    """Reads where packages come from here.

    kept_open: lock descriptors that installers inherit.

    Raises:
        UsageError: installer-not-found, site-file-wrong.
        RunFailed: no-installer.
    """
    site, own = read_site(), read_indexes()
    # Options win over the user's settings, and those over the settings of the site file.
    mine = {
        "packages": request.mirror("packages") or own.default,
        "torch": request.mirror("torch"),
        "python": request.mirror("python") or own.python_mirror,
    }
    theirs = {name: url for name in mine if not mine[name] and (url := getattr(site.mirrors, name))}
    mirrors = {**mine, **theirs}
    indexes = msgspec.structs.replace(
        own, default=mirrors["packages"], python_mirror=mirrors["python"]
    )
    manager = request.manager or site.setup.manager
    notes = [f"{name} from {without_password(url)} (set in {site.file})"
             for name, url in theirs.items()]  # fmt: skip
    if site.setup.manager and not request.manager:
        notes.append(f"using {manager} (set in {site.file})")
    return SetupContext(
        machine=machine,
        tables=tables_in_use(),
        indexes=indexes,
        opener=opener_for(indexes, *([mirrors["torch"]] if mirrors["torch"] else [])),
        torch_mirror=mirrors["torch"],
        notes=tuple(notes),
        programs=_programs(manager, indexes, may_get_uv=may_get_uv, kept_open=kept_open),
        micromamba=_micromamba(is_offline=request.is_offline) if manager == "conda" else None,
    )


def _programs(
    requested: Installer | None, indexes: Indexes, *, may_get_uv: bool, kept_open: tuple[int, ...]
) -> tuple[Program, ...]:
    path = uv_program.find_uv()
    has_pip = uv_program.has_pip()
    if path is None and has_pip and may_get_uv and requested != "pip":
        path = uv_program.install_uv(indexes)
    uv = Uv(path, indexes, kept_open) if path else None
    pip = Pip(sys.executable, indexes, kept_open) if has_pip else None
    programs: list[Program] = [program for program in (uv, pip) if program]
    if not programs:
        raise uv_program.no_installer()
    if requested == "conda":
        conda = find_conda() or str(micromamba.own_path())
        return tuple(Conda(conda, program, indexes, kept_open) for program in programs)
    if requested is not None:
        programs.sort(key=lambda program: program.name != requested)
        if programs[0].name != requested:
            raise _missing(requested, f"no usable {requested} was found")
    return tuple(programs)


def _micromamba(*, is_offline: bool) -> micromamba.Release | None:
    """The micromamba to download for `--manager conda`; None where conda is installed."""
    if find_conda() is not None:
        return None
    none_here = "mamba, micromamba and conda are not installed"
    if is_offline:
        raise _missing("conda", f"{none_here}, and --offline was given")
    release = micromamba.release_here()
    if release is None:
        raise _missing("conda", f"{none_here}, and micromamba does not support this system")
    return release


def _missing(name: str, because: str) -> UsageError:
    return UsageError(
        "installer-not-found",
        f"`--manager {name}` cannot be used here.",
        because=because,
        fix="install it, or leave --manager out",
    )
