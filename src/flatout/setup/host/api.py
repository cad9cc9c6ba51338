"""Plans for the host: driver, WSL, CUDA toolkit and containers; and exports of environments."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from flatout.compat.api import choose
from flatout.compat.request import SetupRequest
from flatout.compat.rows import Tables
from flatout.compat.tables import shipped_tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Plan, PlanStep
from flatout.setup.env.export import NEXT, EnvironmentExport, exported
from flatout.setup.flatout.installation import installer_text, shell_profile
from flatout.setup.host.docker import plan_docker
from flatout.setup.host.driver import plan_driver
from flatout.setup.host.loader_path import plan_loader_path
from flatout.setup.host.local_installer import local_installer
from flatout.setup.host.toolkit import plan_toolkit
from flatout.setup.host.windows_script import RUN_LINE, commands, request_text, script_text
from flatout.setup.host.wsl import plan_wsl
from flatout.setup.model.host_plan import HostPlan, HostPlanRequest
from flatout.setup.packages.debian_file import package_in
from flatout.system import atomic_files, edit_file
from flatout.system.changes.actions import is_done
from flatout.system.host_system import LocalSystem
from flatout.system.invoking_user import invoking_user, is_in_group, sudo_user
from flatout.system.probes.examination import examine
from flatout.system.site_policy import read_site
from flatout.system.store import environments
from flatout.system.wsl import has_windows_driver

CONTAINERS = ("dockerfile", "compose", "devcontainer")
SCRIPT, REQUEST, INSTALLER = "setup.ps1", "request-for-it.md", "install.sh"


def plan_host(request: HostPlanRequest, machine: Machine | None = None) -> HostPlan:
    """The plan for a goal on this machine; nothing is changed.

    Where this machine's `flatout.toml` forbids the goal, all steps are manual.

    Raises:
        UsageError: no-plan-here, source-not-found, site-file-wrong.
    """
    site, host_plan = read_site(), _plan_for(request, machine)
    if request.goal not in site.forbidden.goals:
        return host_plan
    steps = tuple(msgspec.structs.replace(step, safety="manual") for step in host_plan.plan.steps)
    plan = msgspec.structs.replace(host_plan.plan, steps=steps)
    return HostPlan(plan=plan, commands=host_plan.commands, refusal=site.refusal)


def _plan_for(request: HostPlanRequest, machine: Machine | None) -> HostPlan:
    read = machine or examine(LocalSystem()).machine
    tables = shipped_tables()
    if request.goal == "wsl":
        wsl_plan = plan_wsl(read, tables, request.frameworks)
        texts = {SCRIPT: script_text(wsl_plan), REQUEST: request_text(wsl_plan)}
        return _host_plan(wsl_plan.plan, texts)
    if request.goal == "toolkit":
        return _host_plan(_toolkit(request, read, tables))
    if request.goal == "docker":
        person = sudo_user()
        # Docker responds to root, whichever user has typed `sudo`.
        is_member = is_in_group(person, "docker") if person else None
        return _host_plan(plan_docker(read, tables, invoking_user(), is_member=is_member))
    # Inside WSL the driver is not installed, but must be found.
    is_inside = read.host.wsl == 2
    return _host_plan(plan_loader_path(read, tables) if is_inside else plan_driver(read, tables))


def _toolkit(request: HostPlanRequest, machine: Machine, tables: Tables) -> Plan:
    requested = {name for text in request.packages for name in re.split(r"[,\s]+", text.lower())}
    unknown = sorted(requested - {"cudnn", ""})
    if unknown:
        raise UsageError(
            "no-plan-here",
            f"`--with {unknown[0]}` cannot be installed with a toolkit.",
            because="only cudnn can; Python packages belong in an environment",
            fix="flatout setup --toolkit --with cudnn; or flatout setup --with PACKAGES",
        )
    installer = request.installer
    return plan_toolkit(
        machine,
        request.cuda,
        shell_profile(),
        tables,
        has_cudnn="cudnn" in requested,
        installer=local_installer(*package_in(installer)) if installer else None,
    )


def first_part(plan: Plan) -> Plan:
    """The steps before the first manual step that is not done yet."""
    steps: list[PlanStep] = []
    for step in plan.steps:
        if step.safety == "manual" and not is_done(step):
            break
        steps.append(step)
    return msgspec.structs.replace(plan, steps=tuple(steps))


def write_files(texts: dict[str, str], folder: Path, *, is_forced: bool = False) -> list[Path]:
    """Writes files into a folder; existing files with other contents are not overwritten.

    Raises:
        UsageError: file-exists, folder-not-writable.
    """
    paths = {folder / name: text.encode() for name, text in texts.items()}
    for path, content in paths.items():
        if edit_file.content_of(path) not in (None, content) and not is_forced:
            raise _in_the_way(path, "--force overwrites it; or write")
    return _write_all(paths)


def write_script(texts: dict[str, str], folder: Path) -> list[Path]:
    """Writes the files of `flatout setup --wsl`; earlier versions of them are overwritten.

    Raises:
        UsageError: file-exists, folder-not-writable.
    """
    paths = {folder / name: text.encode() for name, text in texts.items()}
    for path, content in paths.items():
        there = edit_file.content_of(path)
        if there is not None and not _first_lines(there) & _first_lines(content):
            raise _in_the_way(path, "move it away, or write")
    return _write_all(paths)


def _first_lines(content: bytes) -> set[bytes]:
    """The first lines, by which flatout recognizes files that it has written."""
    return {line.strip() for line in content.splitlines()[:3] if len(line.strip()) > 20}


def _in_the_way(path: Path, instead: str) -> UsageError:
    return UsageError(
        "file-exists",
        f"{path} already exists with other contents.",
        fix=f"{instead} into another folder: --in DIR",
    )


def _write_all(paths: dict[Path, bytes]) -> list[Path]:
    for path, content in paths.items():
        with atomic_files.mapped_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_atomically(path, content)
    return list(paths)


def with_installer(texts: dict[str, str]) -> dict[str, str]:
    """The same with install.sh, which setup.ps1 runs inside WSL."""
    return {**texts, INSTALLER: installer_text()}


def blueprint(form: str, name: str | None) -> EnvironmentExport:
    """The environment to export: one of flatout's own, or else one that fits this machine.

    Raises:
        UsageError: unknown-environment, no-environment-to-export.
    """
    is_wsl = has_windows_driver() and sys.platform == "linux"
    if name is not None:
        made = environments.find_environment(name)
        # The hashes are for this system's wheels; containers run Linux.
        is_hashed = sys.platform == "linux" or form not in CONTAINERS
        hashes = {pin: f" --hash=sha256:{pin.sha256}" if is_hashed else "" for pin in made.pins}
        return EnvironmentExport(
            name=made.name,
            framework=made.spec.framework,
            python=".".join(made.python_version.split(".")[:2]),
            cuda=made.cuda,
            index=made.index,
            requirements=tuple(f"{pin.name}=={pin.version}{hashes[pin]}" for pin in made.pins),
            interpreter=made.python,
            is_wsl=is_wsl,
            variables=made.variables,
        )
    answer = choose(SetupRequest(is_offline=True)).answers[0]
    if answer.choice is None or answer.build is None:
        raise UsageError(
            "no-environment-to-export",
            "no build of torch fits this machine.",
            because="; ".join(answer.ruled_out[:2]) or None,
            fix="; ".join(answer.nearest[:1]) or "flatout setup shows what would",
        )
    return EnvironmentExport(
        name="torch",
        framework="torch",
        python=answer.choice.python,
        cuda=answer.choice.cuda,
        index=None if answer.build.is_in_default_index else answer.build.index,
        requirements=(answer.build.requirement, *answer.constraints),
        is_wsl=is_wsl,
    )


def export(form: str, blueprint: EnvironmentExport) -> tuple[dict[str, str], str]:
    """An environment as files of that form, and what to do with them.

    Raises:
        UsageError: unknown-export, no-environment-to-export.
    """
    texts = exported(form, blueprint)
    return texts, NEXT[form].replace("NAME", blueprint.name)


def _host_plan(plan: Plan, texts: dict[str, str] | None = None) -> HostPlan:
    return HostPlan(
        plan=plan,
        commands=tuple(commands(step) for step in plan.steps),
        files=texts or {},
        run_line=RUN_LINE.format(SCRIPT) if texts else None,
    )
