"""The verbs of what lies below an environment, and of taking one elsewhere: the setup's third page.

Driver, WSL, CUDA toolkit, containers; and an environment as files for other tools.
"""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Generator
from pathlib import Path

import msgspec

from flatout.apply import applying
from flatout.apply.actions import is_done, shown
from flatout.errors import UsageError
from flatout.nouns.blueprint import Blueprint
from flatout.nouns.groundwork import Groundwork, GroundworkRequest
from flatout.nouns.journal import StepOutcome
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Plan, Step
from flatout.nouns.setup_request import SetupRequest
from flatout.probes.examination import examine
from flatout.setting_up import choose
from flatout.setup.export import NEXT, exported
from flatout.setup.goals.docker import plan_docker
from flatout.setup.goals.driver import plan_driver
from flatout.setup.goals.loader_path import plan_loader_path
from flatout.setup.goals.local_installer import local_installer
from flatout.setup.goals.toolkit import plan_toolkit
from flatout.setup.goals.wsl import plan_wsl
from flatout.setup.rows import Tables
from flatout.setup.tables import shipped_tables
from flatout.setup.windows_script import RUN_LINE, commands, request_text, script_text
from flatout.system import made_environments, rewriting, store
from flatout.system.debian_file import package_in
from flatout.system.host import has_windows_driver
from flatout.system.installation import installer_text, shell_profile
from flatout.system.site_file import read_site
from flatout.system.system import LocalSystem

CONTAINERS = ("dockerfile", "compose", "devcontainer")
SCRIPT, REQUEST, INSTALLER = "setup.ps1", "request-for-it.md", "install.sh"


def lay(request: GroundworkRequest, machine: Machine | None = None) -> Groundwork:
    """The plan for what was asked, for this machine; nothing is changed.

    Where this machine's `flatout.toml` forbids it, all steps are a person's.

    Raises:
        UsageError: no-plan-here, source-not-found, site-file-wrong.
    """
    site, found = read_site(), _laid(request, machine)
    if request.goal not in site.forbidden.goals:
        return found
    steps = tuple(msgspec.structs.replace(one, safety="manual") for one in found.plan.steps)
    plan = msgspec.structs.replace(found.plan, steps=steps)
    return Groundwork(plan=plan, commands=found.commands, refusal=site.refusal)


def _laid(request: GroundworkRequest, machine: Machine | None) -> Groundwork:
    read = machine or examine(LocalSystem()).machine
    tables = shipped_tables()
    if request.goal == "wsl":
        wanted = plan_wsl(read, tables, request.frameworks)
        texts = {SCRIPT: script_text(wanted), REQUEST: request_text(wanted)}
        return _groundwork(wanted.plan, texts)
    if request.goal == "toolkit":
        return _groundwork(_toolkit(request, read, tables))
    if request.goal == "docker":
        return _groundwork(plan_docker(read, tables, getpass.getuser()))
    # Inside WSL there is no driver to install, but one to be found.
    is_inside = read.host.wsl == 2
    return _groundwork(plan_loader_path(read, tables) if is_inside else plan_driver(read, tables))


def _toolkit(request: GroundworkRequest, machine: Machine, tables: Tables) -> Plan:
    wanted = {name for text in request.packages for name in re.split(r"[,\s]+", text.lower())}
    unknown = sorted(wanted - {"cudnn", ""})
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
        has_cudnn="cudnn" in wanted,
        installer=local_installer(*package_in(installer)) if installer else None,
    )


def first_part(plan: Plan) -> Plan:
    """The steps up to the first that a person must do, but for what is done already."""
    steps: list[Step] = []
    for step in plan.steps:
        if step.safety == "manual" and not is_done(step):
            break
        steps.append(step)
    return msgspec.structs.replace(plan, steps=tuple(steps))


def apply(plan: Plan) -> Generator[StepOutcome]:
    """Carries out a plan, step by step, while it is iterated over; asks nothing.

    Raises:
        UsageError: changes-under-way.
    """
    return applying.apply(plan)


def previews(plan: Plan) -> list[str]:
    """What commands print that tell beforehand what a step will do."""
    return [text for step in plan.steps if (text := shown(step))]


def write_files(texts: dict[str, str], folder: Path, *, is_forced: bool = False) -> list[Path]:
    """Writes files into a folder; what is there already and differs is not overwritten.

    Raises:
        UsageError: file-exists, folder-not-writable.
    """
    paths = {folder / name: text.encode() for name, text in texts.items()}
    for path, content in paths.items():
        if rewriting.content_of(path) not in (None, content) and not is_forced:
            raise _in_the_way(path, "--force overwrites it; or write")
    return _write_all(paths)


def write_script(texts: dict[str, str], folder: Path) -> list[Path]:
    """Writes the files of `flatout setup --wsl`; earlier editions of them are overwritten.

    Raises:
        UsageError: file-exists, folder-not-writable.
    """
    paths = {folder / name: text.encode() for name, text in texts.items()}
    for path, content in paths.items():
        there = rewriting.content_of(path)
        if there is not None and not _telling_lines(there) & _telling_lines(content):
            raise _in_the_way(path, "move it away, or write")
    return _write_all(paths)


def _telling_lines(content: bytes) -> set[bytes]:
    """What begins a file of flatout's, and no other."""
    return {line.strip() for line in content.splitlines()[:3] if len(line.strip()) > 20}


def _in_the_way(path: Path, instead: str) -> UsageError:
    return UsageError(
        "file-exists",
        f"{path} is there already, and is another.",
        fix=f"{instead} into another folder: --in DIR",
    )


def _write_all(paths: dict[Path, bytes]) -> list[Path]:
    for path, content in paths.items():
        with store.mapped_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        store.write_atomically(path, content)
    return list(paths)


def with_installer(texts: dict[str, str]) -> dict[str, str]:
    """The same with install.sh, which setup.ps1 runs inside WSL."""
    return {**texts, INSTALLER: installer_text()}


def blueprint(form: str, name: str | None) -> Blueprint:
    """An environment that flatout has made, or what fits this machine, as it is to be exported.

    Raises:
        UsageError: unknown-environment, no-environment-to-export.
    """
    is_wsl = has_windows_driver() and sys.platform == "linux"
    if name is not None:
        made = made_environments.find_environment(name)
        # Hashes are of this system's wheels; containers are Linux.
        is_hashed = sys.platform == "linux" or form not in CONTAINERS
        hashes = {pin: f" --hash=sha256:{pin.sha256}" if is_hashed else "" for pin in made.pins}
        return Blueprint(
            name=made.name,
            framework=made.wish.framework,
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
            fix="; ".join(answer.nearest[:1]) or "flatout setup tells what would",
        )
    return Blueprint(
        name="torch",
        framework="torch",
        python=answer.choice.python,
        cuda=answer.choice.cuda,
        index=None if answer.build.is_in_default_index else answer.build.index,
        requirements=(answer.build.requirement, *answer.constraints),
        is_wsl=is_wsl,
    )


def export(form: str, blueprint: Blueprint) -> tuple[dict[str, str], str]:
    """An environment as files of that form, and what to do with them.

    Raises:
        UsageError: unknown-export, no-environment-to-export.
    """
    texts = exported(form, blueprint)
    return texts, NEXT[form].replace("NAME", blueprint.name)


def _groundwork(plan: Plan, texts: dict[str, str] | None = None) -> Groundwork:
    return Groundwork(
        plan=plan,
        commands=tuple(commands(step) for step in plan.steps),
        files=texts or {},
        run_line=RUN_LINE.format(SCRIPT) if texts else None,
    )
