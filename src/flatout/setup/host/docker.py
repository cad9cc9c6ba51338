"""Containers with the GPU: NVIDIA's container toolkit for an engine in Linux or inside WSL."""

from __future__ import annotations

import msgspec

from flatout.compat.rows import Tables
from flatout.errors import UsageError
from flatout.schema.environment_facts import ContainerEngine
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry, Plan, PlanStep, Prints, RunProgram
from flatout.setup.host.host_facts import (
    HostFacts,
    apt_install,
    apt_update,
    host_facts_of,
    refuse_macos,
)
from flatout.setup.host.repository import container_repository
from flatout.setup.host.winget import winget_uninstall

# Without CUDA, which has its own driver requirement: the toolkit adds nvidia-smi to any image.
IMAGE = "ubuntu:24.04"
_DAEMON = "/etc/docker/daemon.json"


def plan_docker(
    machine: Machine, tables: Tables, user: str, *, is_member: bool | None = None
) -> Plan:
    """The steps that let containers use the GPU, and a container that verifies it.

    Args:
        machine: as it was read.
        tables: of this release.
        user: who is logged in, and joins the group that may use Docker.
        is_member: whether they are in it; None goes by whether Docker responds here.

    Raises:
        UsageError: no-plan-here.
    """
    host = host_facts_of(machine, tables)
    refuse_macos(host)
    engine = _engine(machine)
    if not host.driver:
        raise UsageError(
            "no-plan-here",
            "no working NVIDIA driver was found, so containers cannot use the GPU.",
            because="a container uses the driver of its host",
            fix="flatout doctor; then flatout setup --driver-plan",
        )
    if engine is not None and engine.name == "docker-desktop":
        steps: tuple[PlanStep, ...] = (proof("docker"),)
        goal = "the GPU in containers: Docker Desktop already has what is needed"
    elif host.os == "windows":
        steps = (_desktop(),)
        goal = "the GPU in containers, through Docker Desktop with its WSL 2 backend"
    else:
        if engine is not None and is_member is not None:
            # Docker has responded to root, which says nothing about the user behind `sudo`.
            engine = msgspec.structs.replace(engine, is_permitted=is_member)
        steps = _linux(machine, host, engine, user)
        goal = "the GPU in containers, through NVIDIA's container toolkit"
    return Plan(goal=goal, steps=steps)


def _engine(machine: Machine) -> ContainerEngine | None:
    """Docker before Podman, where both are there."""
    engines = sorted(machine.engines or (), key=lambda engine: not engine.name.startswith("docker"))
    return engines[0] if engines else None


def _desktop() -> PlanStep:
    return PlanStep(
        text="install Docker Desktop, with the WSL 2 backend (its default)",
        action=RunProgram(argv=("winget", "install", "--exact", "--id", "Docker.DockerDesktop",
                         "--source", "winget")),
        changes="Docker Desktop, which needs no container toolkit; large companies must pay for it",
        where="powershell",
        needs_root=True,
        safety="manual",
        undo=winget_uninstall("Docker.DockerDesktop"),
    )  # fmt: skip


def _linux(
    machine: Machine, host: HostFacts, engine: ContainerEngine | None, user: str
) -> tuple[PlanStep, ...]:
    if host.family is None:
        raise UsageError(
            "no-plan-here",
            f"no toolkit package known for {host.distribution or 'this system'}.",
            because="it supports Ubuntu and Debian",
            fix="install nvidia-container-toolkit following NVIDIA's install guide",
        )
    if engine is not None and engine.is_snap:
        raise UsageError(
            "no-plan-here",
            "Docker was installed as a snap, which does not see NVIDIA's driver.",
            because="snaps are isolated from the system's libraries",
            fix="sudo snap remove docker, then flatout setup --docker",
        )
    steps, by_hand = _docker_and_compose(machine, host, engine, user)
    steps += [
        *container_repository(),
        apt_update(),
        apt_install(("nvidia-container-toolkit",), "nvidia-ctk and NVIDIA's container runtime"),
    ]
    if engine is not None and engine.name == "podman":
        return (*steps, _cdi(), proof("podman"))
    if engine is not None and engine.is_rootless:
        return (*steps, *_rootless(), proof("docker"), *by_hand)
    runtime = Edit(
        file=_DAEMON,
        form="json",
        entries=(
            Entry(place=("runtimes", "nvidia", "args"), value=[]),
            Entry(place=("runtimes", "nvidia", "path"), value="nvidia-container-runtime"),
        ),
    )
    return (
        *steps,
        PlanStep(
            text="register NVIDIA's runtime with Docker",
            action=runtime,
            changes=f"the entry runtimes.nvidia in {_DAEMON}",
            needs_root=True,
        ),
        PlanStep(
            text="restart Docker",
            action=RunProgram(argv=("systemctl", "restart", "docker")),
            changes="running containers stop; those with a restart policy start again",
            needs_root=True,
            done_if=Prints(argv=("docker", "info", "--format", "{{json .Runtimes}}"),
                           text='"nvidia"'),
            restarts="docker",
            shows=(("docker", "ps"),),
            undo=("systemctl", "restart", "docker"),
        ),
        # Only members of its group may use it; the user who has just installed it is not one.
        proof("docker", needs_root=engine is None or not engine.is_permitted),
        *by_hand,
    )  # fmt: skip


def _docker_and_compose(
    machine: Machine, host: HostFacts, engine: ContainerEngine | None, user: str
) -> tuple[list[PlanStep], list[PlanStep]]:
    """The missing parts of Docker, Compose and the group; and the manual steps."""
    steps = _docker_itself(machine, host) if engine is None else []
    if engine is not None and engine.name != "docker":
        return steps, []
    compose = _compose(engine, host)
    steps += [step for step in compose if step.safety != "manual"]
    is_refused = engine is None or (engine.is_permitted is False and not engine.is_rootless)
    # `usermod` takes only names, so not a user without one.
    if is_refused and user != "root" and not user.isdigit():
        steps.append(_join_group(user))
    return steps, [step for step in compose if step.safety == "manual"]


def _docker_itself(machine: Machine, host: HostFacts) -> list[PlanStep]:
    steps = []
    conf = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    if host.os == "wsl2" and conf.get("boot.systemd", "").lower() != "true":
        steps = [
            PlanStep(
                text="enable systemd in this distro, so that Docker starts",
                action=Edit(
                    file="/etc/wsl.conf",
                    form="ini",
                    entries=(Entry(place=("boot", "systemd"), value="true"),),
                ),
                changes="[boot] systemd=true in /etc/wsl.conf",
                where="wsl",
                needs_root=True,
            ),
            PlanStep(
                text="restart WSL in PowerShell, then run this again",
                action=RunProgram(argv=("wsl.exe", "--shutdown")),
                changes="everything running in any distro stops",
                where="powershell",
                safety="manual",
                restarts="wsl",
                shows=(("wsl.exe", "--list", "--running"),),
                done_if=Prints(argv=("ps", "-p", "1", "-o", "comm="), text="systemd"),
            ),
        ]
    return [*steps, apt_install(("docker.io",), "Docker from this distribution, and its service")]


# The plugin `docker compose`, which `flatout cluster up` needs, in the system's own repository.
# Debian 12 has only the old Python `docker-compose`, which is another program.
_COMPOSE_OF = {
    ("ubuntu", "20.04"): "docker-compose-v2", ("ubuntu", "22.04"): "docker-compose-v2",
    ("ubuntu", "24.04"): "docker-compose-v2", ("ubuntu", "26.04"): "docker-compose-v2",
    ("debian", "13"): "docker-compose",
}  # fmt: skip


def _compose(engine: ContainerEngine | None, host: HostFacts) -> list[PlanStep]:
    """Installs Compose where it is missing; for Docker's own packages it is a plugin."""
    if engine is not None and engine.compose is not None:
        return []
    own = _COMPOSE_OF.get((host.family or "", host.release or ""))
    what = "docker compose, which flatout cluster needs"
    if own is None:
        return [
            PlanStep(
                text="install Docker Compose 2: https://docs.docker.com/compose/install/linux",
                action=RunProgram(
                    argv=("xdg-open", "https://docs.docker.com/compose/install/linux")
                ),
                changes=f"{what}; {host.distribution} has no package for it",
                safety="manual",
                done_if=Prints(argv=("docker", "compose", "version")),
            )
        ]
    if engine is None:
        return [apt_install((own,), what)]
    # From whichever repository Docker came: the system's and Docker's packages conflict.
    line = f"apt-get install --yes docker-compose-plugin || apt-get install --yes {own}"
    return [
        PlanStep(
            text="install Docker Compose",
            action=RunProgram(
                argv=("sh", "-c", line),
                environment={"DEBIAN_FRONTEND": "noninteractive"},
                time_limit_s=3600.0,
            ),
            changes=what,
            needs_root=True,
            done_if=Prints(argv=("docker", "compose", "version")),
            undo=(
                "sh",
                "-c",
                f"apt-get remove --yes docker-compose-plugin || apt-get remove --yes {own}",
            ),
        )
    ]


def _join_group(user: str) -> PlanStep:
    return PlanStep(
        text=f"let {user} use Docker without sudo, after the next login",
        action=RunProgram(argv=("usermod", "-aG", "docker", user)),
        changes=f"{user} joins the group docker, whose members can become root",
        needs_root=True,
        done_if=Prints(argv=("id", "-nG", user), text="docker"),
        undo=("gpasswd", "-d", user, "docker"),
    )


def _rootless() -> tuple[PlanStep, ...]:
    return (
        PlanStep(
            text="register NVIDIA's runtime with rootless Docker",
            action=RunProgram(argv=("sh", "-c", "nvidia-ctk runtime configure --runtime=docker "
                             '--config="$HOME/.config/docker/daemon.json"')),
            changes="the entry runtimes.nvidia in ~/.config/docker/daemon.json",
        ),
        PlanStep(
            text="set no-cgroups in the toolkit: without root it cannot create cgroups",
            action=RunProgram(
                argv=("nvidia-ctk", "config", "--set", "nvidia-container-cli.no-cgroups=true",
                      "--in-place"),
                files=("/etc/nvidia-container-runtime/config.toml",),
            ),
            changes="no-cgroups in /etc/nvidia-container-runtime/config.toml",
            needs_root=True,
        ),
        PlanStep(
            text="restart rootless Docker",
            action=RunProgram(argv=("systemctl", "--user", "restart", "docker")),
            changes="its running containers stop",
            restarts="docker",
            shows=(("docker", "ps"),),
            undo=("systemctl", "--user", "restart", "docker"),
        ),
    )  # fmt: skip


def _cdi() -> PlanStep:
    return PlanStep(
        text="describe the GPUs for Podman",
        action=RunProgram(
            argv=("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),
            files=("/etc/cdi/nvidia.yaml",),
        ),
        changes="/etc/cdi/nvidia.yaml; generate it again after each driver change",
        needs_root=True,
    )


def proof(program: str, *, needs_root: bool = False) -> PlanStep:
    """A container that sees the GPU."""
    gpus = ("--device", "nvidia.com/gpu=all") if program == "podman" else ("--gpus", "all")
    image = IMAGE if program == "docker" else f"docker.io/{IMAGE}"
    return PlanStep(
        text="verify it with a container",
        action=RunProgram(
            argv=(program, "run", "--rm", *gpus, image, "nvidia-smi"), time_limit_s=1800.0
        ),
        changes=f"nothing but the image {image}, which is kept",
        # No undo: the image may have been there before.
        needs_root=needs_root,
    )
