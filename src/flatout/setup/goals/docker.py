"""Containers with the GPU: NVIDIA's container toolkit for an engine in Linux or inside WSL."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry, Plan, Prints, Run, Step
from flatout.nouns.surroundings import ContainerEngine
from flatout.setup.goals.place import Place, apt_install, apt_update, place_of, refuse_macos
from flatout.setup.goals.repository import container_repository
from flatout.setup.rows import Tables

# Without CUDA, which would ask for a driver of its own: the toolkit lends nvidia-smi to any image.
IMAGE = "ubuntu:24.04"
_DAEMON = "/etc/docker/daemon.json"


def plan_docker(machine: Machine, tables: Tables) -> Plan:
    """What lets containers use the GPU, and a container that proves it.

    Raises:
        UsageError: no-plan-here.
    """
    place = place_of(machine, tables)
    refuse_macos(place)
    engine = _engine(machine)
    if not place.driver:
        raise UsageError(
            "no-plan-here",
            "no NVIDIA driver answers here, so no container can use it.",
            because="a container uses the driver of its host",
            fix="flatout doctor; then flatout setup --driver-plan",
        )
    if engine is not None and engine.name == "docker-desktop":
        steps: tuple[Step, ...] = (proof("docker"),)
        goal = "containers with the GPU: Docker Desktop brings what is needed"
    elif place.os == "windows":
        steps = (_desktop(),)
        goal = "containers with the GPU, by Docker Desktop with its WSL 2 backend"
    else:
        steps = _linux(machine, place, engine)
        goal = "containers with the GPU, by NVIDIA's container toolkit"
    return Plan(goal=goal, steps=steps)


def _engine(machine: Machine) -> ContainerEngine | None:
    """Docker before Podman, where both are there."""
    engines = sorted(machine.engines or (), key=lambda one: not one.name.startswith("docker"))
    return engines[0] if engines else None


def _desktop() -> Step:
    return Step(
        text="install Docker Desktop, with the WSL 2 backend (its default)",
        action=Run(argv=("winget", "install", "--exact", "--id", "Docker.DockerDesktop")),
        changes="Docker Desktop; it needs no container toolkit; large companies pay for it",
        where="powershell",
        needs_root=True,
        safety="manual",
        undo=("winget", "uninstall", "--id", "Docker.DockerDesktop"),
    )


def _linux(machine: Machine, place: Place, engine: ContainerEngine | None) -> tuple[Step, ...]:
    if place.family is None:
        raise UsageError(
            "no-plan-here",
            f"flatout knows no package of the toolkit for {place.distribution or 'this system'}.",
            because="it knows those for Ubuntu and Debian",
            fix="install nvidia-container-toolkit as NVIDIA's install guide tells for it",
        )
    if engine is not None and engine.is_snap:
        raise UsageError(
            "no-plan-here",
            "Docker was installed as a snap, which does not see NVIDIA's driver.",
            because="a snap is shut off from the libraries of the system",
            fix="sudo snap remove docker, then flatout setup --docker",
        )
    steps: list[Step] = []
    if engine is None:
        steps += _docker_itself(machine, place)
    steps += [
        *container_repository(),
        apt_update(),
        apt_install(("nvidia-container-toolkit",), "nvidia-ctk and the runtime of NVIDIA"),
    ]
    if engine is not None and engine.name == "podman":
        return (*steps, _cdi(), proof("podman"))
    if engine is not None and engine.is_rootless:
        return (*steps, *_rootless(), proof("docker"))
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
        Step(
            text="tell Docker of NVIDIA's runtime",
            action=runtime,
            changes=f"the entry runtimes.nvidia in {_DAEMON}",
            needs_root=True,
        ),
        Step(
            text="restart Docker",
            action=Run(argv=("systemctl", "restart", "docker")),
            changes="running containers are ended; those with a restart policy start again",
            needs_root=True,
            done_if=Prints(argv=("docker", "info", "--format", "{{json .Runtimes}}"),
                           text='"nvidia"'),
            restarts="docker",
            shows=(("docker", "ps"),),
            undo=("systemctl", "restart", "docker"),
        ),
        # Only members of its group may use it, and who has just installed it is none.
        proof("docker", needs_root=engine is None or not engine.is_permitted),
    )  # fmt: skip


def _docker_itself(machine: Machine, place: Place) -> list[Step]:
    steps = []
    conf = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    if place.os == "wsl2" and conf.get("boot.systemd", "").lower() != "true":
        steps = [
            Step(
                text="let this distro start with systemd, which starts Docker",
                action=Edit(
                    file="/etc/wsl.conf",
                    form="ini",
                    entries=(Entry(place=("boot", "systemd"), value="true"),),
                ),
                changes="[boot] systemd=true in /etc/wsl.conf",
                where="wsl",
                needs_root=True,
            ),
            Step(
                text="restart WSL in PowerShell, then run this again",
                action=Run(argv=("wsl.exe", "--shutdown")),
                changes="everything that runs in any distro is ended",
                where="powershell",
                safety="manual",
                restarts="wsl",
                shows=(("wsl.exe", "--list", "--running"),),
                done_if=Prints(argv=("ps", "-p", "1", "-o", "comm="), text="systemd"),
            ),
        ]
    return [*steps, apt_install(("docker.io",), "Docker, of this distribution, and its service")]


def _rootless() -> tuple[Step, ...]:
    return (
        Step(
            text="tell the rootless Docker of NVIDIA's runtime",
            action=Run(argv=("sh", "-c", "nvidia-ctk runtime configure --runtime=docker "
                             '--config="$HOME/.config/docker/daemon.json"')),
            changes="the entry runtimes.nvidia in ~/.config/docker/daemon.json",
        ),
        Step(
            text="let the toolkit make no cgroups, which only root may",
            action=Run(
                argv=("nvidia-ctk", "config", "--set", "nvidia-container-cli.no-cgroups=true",
                      "--in-place"),
                files=("/etc/nvidia-container-runtime/config.toml",),
            ),
            changes="no-cgroups in /etc/nvidia-container-runtime/config.toml",
            needs_root=True,
        ),
        Step(
            text="restart the rootless Docker",
            action=Run(argv=("systemctl", "--user", "restart", "docker")),
            changes="its running containers are ended",
            restarts="docker",
            shows=(("docker", "ps"),),
            undo=("systemctl", "--user", "restart", "docker"),
        ),
    )  # fmt: skip


def _cdi() -> Step:
    return Step(
        text="describe the GPUs for Podman",
        action=Run(
            argv=("nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"),
            files=("/etc/cdi/nvidia.yaml",),
        ),
        changes="/etc/cdi/nvidia.yaml; to be made again after each change of the driver",
        needs_root=True,
    )


def proof(program: str, *, needs_root: bool = False) -> Step:
    """A container that sees the GPU."""
    gpus = ("--device", "nvidia.com/gpu=all") if program == "podman" else ("--gpus", "all")
    image = IMAGE if program == "docker" else f"docker.io/{IMAGE}"
    return Step(
        text="prove it with a container",
        action=Run(argv=(program, "run", "--rm", *gpus, image, "nvidia-smi"), time_limit_s=1800.0),
        changes=f"nothing but the image {image}, which is kept",
        # The image may have been there before: whoever takes this back keeps it.
        needs_root=needs_root,
    )
