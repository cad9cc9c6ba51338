"""Containers with the GPU: NVIDIA's container toolkit for an engine in Linux or inside WSL."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry, Plan, Prints, Run, Step
from flatout.nouns.surroundings import ContainerEngine
from flatout.setup.goals.place import Place, apt_install, apt_update, place_of, refuse_macos
from flatout.setup.goals.repository import container_repository
from flatout.setup.goals.winget import winget_uninstall
from flatout.setup.rows import Tables

# Without CUDA, which would ask for a driver of its own: the toolkit lends nvidia-smi to any image.
IMAGE = "ubuntu:24.04"
_DAEMON = "/etc/docker/daemon.json"


def plan_docker(machine: Machine, tables: Tables, user: str) -> Plan:
    """What lets containers use the GPU, and a container that proves it.

    Args:
        machine: as it was read.
        tables: of this release.
        user: who is logged in, and joins the group that may use Docker.

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
        steps = _linux(machine, place, engine, user)
        goal = "containers with the GPU, by NVIDIA's container toolkit"
    return Plan(goal=goal, steps=steps)


def _engine(machine: Machine) -> ContainerEngine | None:
    """Docker before Podman, where both are there."""
    engines = sorted(machine.engines or (), key=lambda one: not one.name.startswith("docker"))
    return engines[0] if engines else None


def _desktop() -> Step:
    return Step(
        text="install Docker Desktop, with the WSL 2 backend (its default)",
        action=Run(argv=("winget", "install", "--exact", "--id", "Docker.DockerDesktop",
                         "--source", "winget")),
        changes="Docker Desktop; it needs no container toolkit; large companies pay for it",
        where="powershell",
        needs_root=True,
        safety="manual",
        undo=winget_uninstall("Docker.DockerDesktop"),
    )  # fmt: skip


def _linux(
    machine: Machine, place: Place, engine: ContainerEngine | None, user: str
) -> tuple[Step, ...]:
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
    steps, by_hand = _docker_and_compose(machine, place, engine, user)
    steps += [
        *container_repository(),
        apt_update(),
        apt_install(("nvidia-container-toolkit",), "nvidia-ctk and the runtime of NVIDIA"),
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
        *by_hand,
    )  # fmt: skip


def _docker_and_compose(
    machine: Machine, place: Place, engine: ContainerEngine | None, user: str
) -> tuple[list[Step], list[Step]]:
    """What is missing of Docker, Compose and its group; and what a person does by hand."""
    steps = _docker_itself(machine, place) if engine is None else []
    if engine is not None and engine.name != "docker":
        return steps, []
    compose = _compose(engine, place)
    steps += [step for step in compose if step.safety != "manual"]
    is_refused = engine is None or (engine.is_permitted is False and not engine.is_rootless)
    if is_refused and user != "root":
        steps.append(_join_group(user))
    return steps, [step for step in compose if step.safety == "manual"]


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


# The plugin `docker compose`, which `flatout cluster up` needs, in the system's own repository.
# Debian 12 has the old `docker-compose` of Python alone, which is another program.
_COMPOSE_OF = {
    ("ubuntu", "20.04"): "docker-compose-v2", ("ubuntu", "22.04"): "docker-compose-v2",
    ("ubuntu", "24.04"): "docker-compose-v2", ("ubuntu", "26.04"): "docker-compose-v2",
    ("debian", "13"): "docker-compose",
}  # fmt: skip


def _compose(engine: ContainerEngine | None, place: Place) -> list[Step]:
    """Compose, where it is missing; Docker's own packages have it as a plugin of their own."""
    if engine is not None and engine.compose is not None:
        return []
    own = _COMPOSE_OF.get((place.family or "", place.release or ""))
    what = "docker compose, which flatout cluster needs"
    if own is None:
        return [
            Step(
                text="install Docker Compose 2, as https://docs.docker.com/compose/install/linux "
                "tells",
                action=Run(argv=("xdg-open", "https://docs.docker.com/compose/install/linux")),
                changes=f"{what}; {place.distribution} has no package of it",
                safety="manual",
                done_if=Prints(argv=("docker", "compose", "version")),
            )
        ]
    if engine is None:
        return [apt_install((own,), what)]
    # Of whichever packages Docker is: those of the system and Docker's own exclude each other.
    line = f"apt-get install --yes docker-compose-plugin || apt-get install --yes {own}"
    return [
        Step(
            text="install Docker Compose",
            action=Run(argv=("sh", "-c", line), environment={"DEBIAN_FRONTEND": "noninteractive"},
                       time_limit_s=3600.0),
            changes=what,
            needs_root=True,
            done_if=Prints(argv=("docker", "compose", "version")),
            undo=("sh", "-c", "apt-get remove --yes docker-compose-plugin || "
                  f"apt-get remove --yes {own}"),
        )
    ]  # fmt: skip


def _join_group(user: str) -> Step:
    return Step(
        text=f"let {user} use Docker without sudo, after the next login",
        action=Run(argv=("usermod", "-aG", "docker", user)),
        changes=f"{user} is in the group docker, whose members can become root",
        needs_root=True,
        done_if=Prints(argv=("id", "-nG", user), text="docker"),
        undo=("gpasswd", "-d", user, "docker"),
    )


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
