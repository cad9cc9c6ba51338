"""The files of a cluster: written, found, and checked before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from flatout.cluster.checks import judge_files
from flatout.cluster.compose_file import TOKEN_FILE, compose_files
from flatout.cluster.image import image_files
from flatout.cluster.layout import (
    SHARED_FOLDERS,
    chosen_gpus,
    gpu_form,
    is_by_variable,
    project_name,
    share_of,
)  # fmt: skip
from flatout.cluster.settings import engine_in, folder_in, parse_settings, user_in
from flatout.cluster.told import parse_containers, parse_services
from flatout.errors import RunFailed, UsageError
from flatout.nouns.cluster import (
    Checked,
    ClusterRequest,
    Container,
    Layout,
    Service,
    Written,
)  # fmt: skip
from flatout.nouns.finding import Finding, finding_from
from flatout.nouns.machine import Machine
from flatout.nouns.setup_request import SetupRequest
from flatout.nouns.units import bytes_text, counted_text
from flatout.probes.examination import examine
from flatout.setting_up import choose
from flatout.system import cluster_folder, compose, folders, own_wheel, variables
from flatout.system.compose import Compose
from flatout.system.system import LocalSystem, System, Unread


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's folder, with its settings. name: of the Compose project."""

    path: Path
    settings: dict[str, str]

    @property
    def name(self) -> str:
        """What Compose calls it."""
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
        for variable, place in SHARED_FOLDERS.items():
            shared = self.shared(variable)
            if whole.is_relative_to(shared):
                return str(PurePosixPath(place, whole.relative_to(shared).as_posix()))
        return None

    def data_inside(self, text: str, otherwise: str) -> str:
        """A path of this machine, given as text, as the nodes see it.

        otherwise: what else can be done about a path that they do not see.

        Raises:
            UsageError: data-not-shared, bad-cluster-setting.
        """
        path = Path(text).expanduser()
        inside = self.inside(path)
        if inside is None:
            shared = self.shared("CLUSTER_DATA")
            raise UsageError(
                "data-not-shared",
                f"{path.resolve()} is not seen by the nodes of the cluster.",
                because=f"they see {shared}, as CLUSTER_DATA in .env says",
                fix=f"put it below {shared}; or {otherwise}",
            )
        return inside

    @property
    def token_file(self) -> Path | None:
        """Where the token is that its Ray asks for; None where nobody is asked for one."""
        is_asked = self.settings.get("CLUSTER_RAY_AUTH") == "token"
        return self.path / TOKEN_FILE if is_asked else None


def init(
    request: ClusterRequest, text: str, *, is_forced: bool, machine: Machine | None = None
) -> Written:
    """Writes the files of a cluster that this machine can carry.

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
    return Written(folder=str(path), files=files, notes=notes)


def _check_lines(request: ClusterRequest) -> None:
    """Refuses what would become several lines of a cluster's files: settings nobody asked for."""
    places = (str(folders.runs_folder()), *map(str, folders.data_folders()))
    for value in (request.base_image or "", *request.packages, *places):
        if any(not letter.isprintable() for letter in value):
            raise UsageError(
                "bad-cluster-setting",
                f"{value!r} cannot stand in a cluster's files.",
                because="it holds the end of a line, or another control character",
                fix="leave that out",
            )


def _layout(
    request: ClusterRequest, path: Path, machine: Machine
) -> tuple[Layout, tuple[str, ...]]:
    gpus, why = chosen_gpus(request, machine)
    share = share_of(machine, request.workers)
    form = gpu_form(machine)[0] if gpus else "none"
    python, required, index = _framework(request.packages, is_cpu=not gpus)
    uid, gid = cluster_folder.owner()
    data = folders.data_folders()
    layout = Layout(
        name=project_name(path.parts),
        engine=request.engine,
        num_workers=request.workers,
        share=share,
        base_image=request.base_image or f"python:{python}-slim-bookworm",
        requirements=required,
        index=index,
        runs=str(folders.runs_folder()),
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

    A torch among the packages that were asked for is taken instead. No network is asked.
    """
    answer = choose(SetupRequest(is_offline=True, is_cpu=is_cpu)).answers[0]
    own = ".".join(str(one) for one in sys.version_info[:2])
    further = (*packages, *own_wheel.requirements())
    if "torch" in [own_wheel.name_of(one) for one in packages]:
        return own, further, None
    if answer.choice is None or answer.build is None:
        return own, ("torch", *further), None
    index = None if answer.build.is_in_default_index else answer.build.index
    return answer.choice.python, (answer.build.requirement, *answer.constraints, *further), index


def open_folder(text: str | None) -> Folder:
    """A cluster's folder by its name, or the one that is here.

    Raises:
        UsageError: no-cluster-here.
    """
    path = cluster_folder.find(text)
    text = cluster_folder.read_settings(path)
    return Folder(path=path, settings=parse_settings(text, variables.shell_variables()))


def check(folder: Folder, system: System | None = None) -> Checked:
    """Whether the files are right, and whether this machine can give what they ask for.

    Raises:
        UsageError: bad-cluster-setting.
    """
    system = system or LocalSystem()
    engine_in(folder.settings)
    user_in(folder.settings)
    for variable in SHARED_FOLDERS:
        folder_in(folder.settings, variable)
    told = {"folder": str(folder.path)}
    try:
        program = compose.find_compose(system)
        services = services_in(program, folder, system)
    except UsageError as error:
        return Checked(findings=(finding_from(error),), told=told)
    told["docker"] = f"{program.docker}, Compose {program.version}"
    told["services"] = ", ".join(
        f"{one.num_containers} x {one.name}" for one in services if not one.profiles
    )
    listening = system.listening()
    told["ports"] = (
        f"unknown: {listening.reason}" if isinstance(listening, Unread) else
        ", ".join(f"{port.address}:{port.published}" for one in services for port in one.ports)
        or "none are published"
    )  # fmt: skip
    return Checked(findings=judge(folder, services, system), told=told)


def judge(folder: Folder, services: Sequence[Service], system: System) -> tuple[Finding, ...]:
    """What of a cluster's services this machine cannot give, or should not."""
    listening = system.listening()
    own = {port.published for one in containers(folder, system) for port in one.ports}
    busy = set() if isinstance(listening, Unread) else set(listening) - own
    return judge_files(services, examine(system).machine, busy)


def services_in(program: Compose, folder: Folder, system: System) -> tuple[Service, ...]:
    try:
        return parse_services(compose.config(program, folder.path, system))
    except ValueError as error:
        raise UsageError(
            "compose-file-refused",
            f"{folder.path / 'compose.yaml'} describes no services.",
            fix="flatout cluster init writes a new one into another folder, to compare with",
        ) from error


def containers(folder: Folder, system: System) -> tuple[Container, ...]:
    """The containers of a cluster, running or not.

    Raises:
        RunFailed: docker-failed.
    """
    try:
        return parse_containers(compose.inspect(folder.name, system))
    except ValueError as error:
        raise RunFailed(
            "docker-failed",
            "what Docker tells of the containers is not understood.",
            because=str(error),
            fix="flatout doctor tells what is wrong with Docker",
        ) from error
