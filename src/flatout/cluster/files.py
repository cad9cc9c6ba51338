"""The files of a cluster: written, found, and checked before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from flatout.cluster.compose import cluster_folder, docker
from flatout.cluster.compose.checks import judge_files
from flatout.cluster.compose.compose_file import TOKEN_FILE, compose_files
from flatout.cluster.compose.docker import Compose
from flatout.cluster.compose.docker_output import parse_containers, parse_services
from flatout.cluster.compose.env_file import engine_in, folder_in, parse_settings, user_in
from flatout.cluster.compose.image import image_files
from flatout.cluster.compose.layout import (
    SHARED_FOLDERS,
    chosen_gpus,
    gpu_form,
    is_by_variable,
    project_name,
    share_of,
)
from flatout.cluster.model.cluster import (
    Checked,
    ClusterLayout,
    ClusterRequest,
    Container,
    Service,
    WrittenFiles,
)
from flatout.compat.api import choose
from flatout.compat.request import SetupRequest
from flatout.errors import RunFailed, UsageError
from flatout.schema.finding import Finding, finding_from
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, counted_text
from flatout.setup.packages import flatout_wheel
from flatout.system import paths, process_env
from flatout.system.host_system import LocalSystem, System, Unread
from flatout.system.probes.examination import examine


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's folder, with its settings. name: of the Compose project."""

    path: Path
    settings: dict[str, str]

    @property
    def name(self) -> str:
        """The name of the service in Compose."""
        return self.settings.get("COMPOSE_PROJECT_NAME") or self.path.name.lower()

    @property
    def owner(self) -> tuple[int, int]:
        """Numbers of the user and group that its programs run as.

        Raises:
            UsageError: bad-cluster-setting.
        """
        return user_in(self.settings)

    def shared(self, variable: str) -> Path:
        """A folder of this machine that all nodes see, by the name of its setting.

        Raises:
            UsageError: bad-cluster-setting.
        """
        return (self.path / folder_in(self.settings, variable)).resolve()

    def inside(self, path: Path) -> str | None:
        """A path of this machine as the nodes see it; None where they do not.

        Raises:
            UsageError: bad-cluster-setting.
        """
        whole = path.resolve()
        for variable, mount_point in SHARED_FOLDERS.items():
            shared = self.shared(variable)
            if whole.is_relative_to(shared):
                return str(PurePosixPath(mount_point, whole.relative_to(shared).as_posix()))
        return None

    def run_inside(self, path: Path) -> str:
        """A run's path as the nodes see it.

        Raises:
            UsageError: run-not-shared, bad-cluster-setting.
        """
        inside = self.inside(path)
        if inside is None:
            raise UsageError(
                "run-not-shared",
                f"{path} is not visible to the nodes of the cluster.",
                because=f"they see {self.shared('CLUSTER_RUNS')}, as CLUSTER_RUNS in .env says",
                fix="set CLUSTER_RUNS in .env to the folder of your runs (flatout cluster init "
                "does)",
            )
        return inside

    def data_inside(self, text: str, otherwise: str) -> str:
        """A path of this machine, given as text, as the nodes see it.

        otherwise: an alternative for a path that they do not see.

        Raises:
            UsageError: data-not-shared, bad-cluster-setting.
        """
        path = Path(text).expanduser()
        inside = self.inside(path)
        if inside is None:
            shared = self.shared("CLUSTER_DATA")
            raise UsageError(
                "data-not-shared",
                f"{path.resolve()} is not visible to the nodes of the cluster.",
                because=f"they see {shared}, as CLUSTER_DATA in .env says",
                fix=f"put it below {shared}; or {otherwise}",
            )
        return inside

    @property
    def token_file(self) -> Path | None:
        """The file of the token that its Ray requires; None if it requires none."""
        is_asked = self.settings.get("CLUSTER_RAY_AUTH") == "token"
        return self.path / TOKEN_FILE if is_asked else None


def init(
    request: ClusterRequest, text: str, *, is_forced: bool, machine: Machine | None = None
) -> WrittenFiles:
    """Writes the files of a cluster that fits this machine.

    Raises:
        UsageError: file-exists, bad-cluster-setting, cluster-does-not-fit,
            no-gpu-in-containers, gpu-would-be-shared, not-a-number-of-gpus.
    """
    path = Path(text).absolute()
    _check_lines(request)
    machine = machine or examine(LocalSystem()).machine
    layout, notes = _layout(request, path, machine)
    texts = {**compose_files(layout), **image_files(layout)}
    files = cluster_folder.write(path, texts, is_forced=is_forced)
    if request.engine == "ray":
        cluster_folder.ensure_secret(path / TOKEN_FILE, layout.uid, layout.gid)
        files = (*files, TOKEN_FILE)
    return WrittenFiles(folder=str(path), files=files, notes=notes)


def _check_lines(request: ClusterRequest) -> None:
    """Refuses line breaks in values, which would inject settings into a cluster's files."""
    folders = (str(paths.runs_folder()), *map(str, paths.data_folders()))
    for value in (request.base_image or "", *request.packages, *folders):
        if any(not letter.isprintable() for letter in value):
            raise UsageError(
                "bad-cluster-setting",
                f"{value!r} cannot be written to a cluster's files.",
                because="it contains a line break or another control character",
                fix="remove it",
            )


def _layout(
    request: ClusterRequest, path: Path, machine: Machine
) -> tuple[ClusterLayout, tuple[str, ...]]:
    gpus, why = chosen_gpus(request, machine)
    share = share_of(machine, request.workers)
    form = gpu_form(machine)[0] if gpus else "none"
    python, required, index = _framework(request.packages, is_cpu=not gpus)
    uid, gid = cluster_folder.owner()
    data = paths.data_folders()
    layout = ClusterLayout(
        name=project_name(path.parts),
        engine=request.engine,
        num_workers=request.workers,
        share=share,
        base_image=request.base_image or f"python:{python}-slim-bookworm",
        requirements=required,
        index=index,
        runs=str(paths.runs_folder()),
        data=str(data[0] if data[0].is_dir() else data[-1]),
        gpus=gpus,
        gpu_form=form,
        is_gpu_shared=request.is_gpu_shared and bool(gpus),
        is_by_variable=is_by_variable(machine, form),
        uid=uid,
        gid=gid,
    )
    size = f"{counted_text(share.cpus, 'CPU')}, {bytes_text(share.memory_bytes)}, "
    f"{bytes_text(share.shared_bytes)}"
    return layout, (
        f"{counted_text(request.workers, 'worker')}, each with {size} of shared memory",
        why,
        *(
            ("--share-gpu has no effect: no worker has a GPU",)
            * (request.is_gpu_shared and not gpus)
        ),
    )


def _framework(packages: Sequence[str], *, is_cpu: bool) -> tuple[str, tuple[str, ...], str | None]:
    """Python, requirements, and the index of the build of torch that fits this machine.

    A torch among the requested packages is used instead. The network is not used.
    """
    choice = choose(SetupRequest(is_offline=True, is_cpu=is_cpu)).answers[0]
    own = ".".join(str(number) for number in sys.version_info[:2])
    further = (*packages, *flatout_wheel.requirements())
    if "torch" in [flatout_wheel.name_of(package) for package in packages]:
        return own, further, None
    if choice.choice is None or choice.build is None:
        return own, ("torch", *further), None
    index = None if choice.build.is_in_default_index else choice.build.index
    return choice.choice.python, (choice.build.requirement, *choice.constraints, *further), index


def open_folder(text: str | None) -> Folder:
    """A cluster's folder by its name, or the one that is here.

    Raises:
        UsageError: no-cluster-here.
    """
    path = cluster_folder.find(text)
    text = cluster_folder.read_settings(path)
    return Folder(path=path, settings=parse_settings(text, process_env.shell_variables()))


def check(folder: Folder, system: System | None = None) -> Checked:
    """Whether the files are valid, and whether this machine can provide what they require.

    Raises:
        UsageError: bad-cluster-setting.
    """
    system = system or LocalSystem()
    engine_in(folder.settings)
    user_in(folder.settings)
    for variable in SHARED_FOLDERS:
        folder_in(folder.settings, variable)
    passed = {"folder": str(folder.path)}
    try:
        program = docker.find_compose(system)
        services = services_in(program, folder, system)
    except UsageError as error:
        return Checked(findings=(finding_from(error),), passed=passed)
    passed["docker"] = f"{program.docker}, Compose {program.version}"
    passed["services"] = ", ".join(
        f"{service.num_containers} x {service.name}" for service in services if not service.profiles
    )
    listening = system.listening()
    passed["ports"] = (
        f"unknown: {listening.reason}" if isinstance(listening, Unread) else
        ", ".join(f"{port.address}:{port.published}" for s in services for port in s.ports)
        or "none are published"
    )  # fmt: skip
    return Checked(findings=judge(folder, services, system), passed=passed)


def judge(folder: Folder, services: Sequence[Service], system: System) -> tuple[Finding, ...]:
    """Findings about requirements of a cluster's services that this machine cannot meet."""
    listening = system.listening()
    own = {port.published for container in containers(folder, system) for port in container.ports}
    busy = set() if isinstance(listening, Unread) else set(listening) - own
    return judge_files(services, examine(system).machine, busy)


def services_in(program: Compose, folder: Folder, system: System) -> tuple[Service, ...]:
    try:
        return parse_services(docker.config(program, folder.path, system))
    except ValueError as error:
        raise UsageError(
            "compose-file-refused",
            f"{folder.path / 'compose.yaml'} describes no services.",
            fix="to compare, flatout cluster init writes a new one to another folder",
        ) from error


def containers(folder: Folder, system: System) -> tuple[Container, ...]:
    """The containers of a cluster, running or not.

    Raises:
        RunFailed: docker-failed.
    """
    try:
        return parse_containers(docker.inspect(folder.name, system))
    except ValueError as error:
        raise RunFailed(
            "docker-failed",
            "cannot parse Docker's description of the containers.",
            because=str(error),
            fix="flatout doctor shows what is wrong with Docker",
        ) from error
