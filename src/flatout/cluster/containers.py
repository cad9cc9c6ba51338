"""The containers of a cluster: starts, waits for, queries and removes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from flatout import __version__
from flatout.cluster.compose import cluster_folder, docker
from flatout.cluster.compose.compose_file import HEADS, PORTS, RENDEZVOUS_PORT, TOKEN_FILE
from flatout.cluster.compose.env_file import address_in, engine_in, with_setting
from flatout.cluster.compose.layout import SHARED_FOLDERS
from flatout.cluster.compose.node_health import PACKAGES, judge_lost, judge_nodes
from flatout.cluster.compose.node_report import NodeQuery
from flatout.cluster.files import Folder, check, containers, judge, services_in
from flatout.cluster.model.cluster import (
    LOST,
    ClusterState,
    Container,
    Dashboard,
    KeptByDown,
    NodeReport,
)
from flatout.cluster.ray_head import with_lost
from flatout.errors import RunFailed, UsageError
from flatout.schema.finding import Finding
from flatout.schema.units import seconds_text
from flatout.system import clock
from flatout.system.host_system import LocalSystem, System, Unread
from flatout.system.timeout_threads import run_together

# A node that hangs is treated like one without a report.
_NODE_LIMIT_S = 60.0
_POLL_S = 1.0
# A Ray whose own start takes 30 s gives up and ends: its limit, which cannot be set.
_MOST_STARTS = 3
_DASHBOARDS = {
    ("ray", "CLUSTER_DASHBOARD_PORT"): ("Ray's dashboard and Jobs API", "http://{}"),
    ("dask", "CLUSTER_SCHEDULER_PORT"): ("Dask's scheduler: Client(...)", "tcp://{}"),
    ("dask", "CLUSTER_DASHBOARD_PORT"): ("Dask's dashboard", "http://{}"),
}


def up(
    folder: Folder,
    *,
    limit_s: float,
    on_wait: Callable[[Sequence[Container]], None],
    on_warning: Callable[[Finding], None],
) -> ClusterState:
    """Builds the image if something changed, starts all, and waits until all are healthy.

    Args:
        folder: of the cluster.
        limit_s: for the start, not for the building.
        on_wait: called with the containers each time they were checked.
        on_warning: called with each warning and each restart.

    Raises:
        UsageError: what `check` refuses; RunFailed: docker-failed, cluster-not-healthy.
    """
    system = LocalSystem()
    checked = check(folder, system)
    _refuse(checked.findings)
    for finding in checked.findings:
        on_warning(finding)
    for name in SHARED_FOLDERS:
        cluster_folder.ensure_shared(folder.shared(name), *folder.owner)
    if "CLUSTER_RAY_AUTH" in folder.settings:
        # Where git has brought the folder, it is missing; Docker would make a folder of it.
        cluster_folder.ensure_secret(folder.path / TOKEN_FILE, *folder.owner)
    cluster_folder.refresh_wheel(folder.path)
    program = docker.find_compose(system)
    docker.run_shown(program.argv(folder.path, "build", HEADS[engine_in(folder.settings)]))
    words = program.argv(folder.path, "up", "--detach", "--remove-orphans")
    start_until_well(
        folder, system, partial(docker.run_shown, words),
        limit_s=limit_s, on_wait=on_wait, on_warning=on_warning,
    )  # fmt: skip
    return state(folder, system)


def start_until_well(
    folder: Folder,
    system: System,
    start: Callable[[], None],
    *,
    limit_s: float,
    on_wait: Callable[[Sequence[Container]], None],
    on_warning: Callable[[Finding], None],
) -> None:
    """Starts the containers, restarts those that exit, and waits until all are healthy.

    Compose must not restart them: it would do so during a training as well.

    Args:
        folder: of the cluster.
        system: of this machine.
        start: makes Compose start the containers that are not running.
        limit_s: total time to wait, over all starts.
        on_wait: called with the containers each time they were checked.
        on_warning: called with each restart.

    Raises:
        RunFailed: docker-failed, cluster-not-healthy.
    """
    end_s = clock.elapsed_s() + limit_s
    current, _ = _as_the_engine_has_them(folder, containers(folder, system))
    for container in current:
        # One without an address is still disconnected, and may return before it is declared lost.
        if container.health == LOST and container.address:
            on_warning(_again(container, "Ray has dropped it and does not re-admit nodes"))
            docker.restart(container.id, system)
    for num_left in reversed(range(_MOST_STARTS)):
        before = {
            (container.id, container.ended_at)
            for container in containers(folder, system)
            if container.is_gone
        }
        began_s = clock.elapsed_s()
        try:
            start()
            wait_until_well(folder, system, limit_s=max(0.0, end_s - began_s), on_wait=on_wait)
            return
        except RunFailed as error:
            ended = [
                container for container in containers(folder, system)
                if container.has_ended and (container.id, container.ended_at) not in before
            ]  # fmt: skip
            # Compose gives up a head that exits before it is healthy, and says little about it.
            if not ended:
                raise
            wrong = _not_healthy(ended[0], clock.elapsed_s() - began_s, system)
            is_over = not num_left or clock.elapsed_s() > end_s
            if is_over or not ended[0].is_gone or ended[0].is_out_of_memory:
                raise wrong from error
            on_warning(_again(ended[0], wrong.because))


def _again(container: Container, because: str | None) -> Finding:
    return Finding(
        rule="cluster-not-healthy",
        severity="note",
        problem=f"restarting {container.name}.",
        because=because,
    )


def wait_until_well(
    folder: Folder,
    system: System,
    *,
    limit_s: float,
    on_wait: Callable[[Sequence[Container]], None],
) -> None:
    """Waits until every container is healthy.

    Raises:
        RunFailed: cluster-not-healthy, with what the first that is not has printed.
    """
    end = clock.elapsed_s() + limit_s
    while True:
        current = containers(folder, system)
        if all(container.is_well for container in current):
            # The last word is the engine's.
            current, _ = _as_the_engine_has_them(folder, current)
        on_wait(current)
        if current and all(container.is_well for container in current):
            return
        ended = next((container for container in current if container.has_ended), None)
        if ended or clock.elapsed_s() > end:
            waited = next((container for container in current if not container.is_well), None)
            raise _not_healthy(ended or waited, limit_s, system)
        clock.sleep_s(_POLL_S)


def _as_the_engine_has_them(
    folder: Folder, current: tuple[Container, ...]
) -> tuple[tuple[Container, ...], str | None]:
    """Containers with their engine's view of them; and why it has none."""
    return with_lost(folder, current) if engine_in(folder.settings) == "ray" else (current, None)


def _not_healthy(container: Container | None, waited_s: float, system: System) -> RunFailed:
    if container is None:
        return RunFailed("cluster-not-healthy", "no container was started.",
                         fix="flatout cluster check; flatout cluster logs")  # fmt: skip
    if container.is_out_of_memory:
        because = "the kernel killed it: it exceeded its memory limit"
    elif container.is_gone:
        because = f"it ended with exit code {container.exit_code}"
    else:
        because = f"it is {container.health or container.state} after {seconds_text(waited_s)}"
    lines = docker.last_lines(container.id, system)
    return RunFailed(
        "cluster-not-healthy",
        f"{container.name} is not healthy.",
        because="; ".join([because, *lines[-2:]]),
        fix=f"flatout cluster logs {container.service}; then flatout cluster up",
        printed="\n".join(lines),
    )


def _refuse(findings: Sequence[Finding]) -> None:
    """The first error among findings as an exception; warnings pass.

    Raises:
        UsageError: the error's own rule.
    """
    wrong = next((finding for finding in findings if finding.severity == "error"), None)
    if wrong is not None:
        evidence = [str(evidence_item) for evidence_item in wrong.evidence]
        raise UsageError(
            wrong.rule,
            wrong.problem,
            because="; ".join([*([wrong.because] if wrong.because else []), *evidence]) or None,
            fix=wrong.fixes[0].text if wrong.fixes else "flatout cluster check",
        )


def state(folder: Folder, system: System | None = None) -> ClusterState:
    """Nodes, their limits, versions, addresses, and what is incompatible."""
    system = system or LocalSystem()
    engine = engine_in(folder.settings)
    docker.find_compose(system)
    current, silence = _as_the_engine_has_them(folder, containers(folder, system))
    nodes, unread = query_nodes(folder, current, system)
    is_up = any(container.state == "running" for container in current)
    token_note = f"; requires the token in {TOKEN_FILE}" if folder.token_file else ""
    dashboards = tuple(
        Dashboard(
            text=text + token_note, address=address.format(address_in(folder.settings, variable))
        )
        for variable, _ in PORTS[engine]
        for text, address in [_DASHBOARDS[engine, variable]]
        if is_up
    )
    return ClusterState(
        name=folder.name,
        folder=str(folder.path),
        engine=engine,
        containers=current,
        nodes=nodes,
        dashboards=dashboards,
        findings=(*judge_lost(current), *judge_nodes(nodes, engine)),
        unread=unread if silence is None else {**unread, "Ray": silence},
    )


def require_well(
    folder: Folder, system: System | None = None, *, is_whole: bool = True
) -> ClusterState:
    """Checks all nodes before a training.

    Args:
        is_whole: all must be well; else those that are left will do.

    Returns:
        Their reports, so that they need not be queried again.

    Raises:
        UsageError: cluster-not-up, and whatever is wrong with the nodes.
    """
    now = state(folder, system)
    away = [
        f"{container.name} is {container.health or container.state}"
        for container in now.containers
        if not container.is_well
    ]
    if len(away) == len(now.containers) or (is_whole and away):
        raise UsageError(
            "cluster-not-up",
            f"cluster {folder.name} is not running.",
            because="; ".join(away[:3]) or "it has no containers",
            fix="flatout cluster up",
        )
    if is_whole:
        _refuse(now.findings)
    others = sorted({str(node.versions.get("flatout")) for node in now.nodes} - {__version__})
    if others:
        raise UsageError(
            "cluster-versions-differ",
            f"the nodes have flatout {', '.join(others)}; here is {__version__}.",
            because="a run is created here and trained there, which needs the same version",
            fix="flatout cluster up puts this one into the image",
        )
    return now


def query_nodes(
    folder: Folder, current: Sequence[Container], system: System
) -> tuple[tuple[NodeReport, ...], dict[str, str]]:
    """The reports of all running nodes, queried in parallel; and why others have none."""
    engine = engine_in(folder.settings)
    running = [container for container in current if container.state == "running"]
    head, port = HEADS[engine], RENDEZVOUS_PORT[engine]

    def query(container: Container) -> NodeReport | str:
        node_query = NodeQuery(
            node=f"{container.service}-{container.number}",
            packages=PACKAGES[engine],
            names=(head, *(other.name for other in running if other.id != container.id)),
            places=(f"{head}:{port}",) if port else (),
            folders=(SHARED_FOLDERS["CLUSTER_RUNS"],),
        )
        return docker.query_node(container.id, node_query, system)

    tasks = {container.name: partial(query, container) for container in running}
    answers = run_together(tasks, _NODE_LIMIT_S)
    nodes = tuple(reply for reply in answers.values() if isinstance(reply, NodeReport))
    silent = {
        name: reply.reason if isinstance(reply, Unread) else reply
        for name, reply in answers.items()
        if not isinstance(reply, NodeReport)
    }
    return nodes, silent


def show_logs(folder: Folder, services: Sequence[str], *, is_following: bool, tail: int) -> None:
    """Prints what containers have printed.

    Raises:
        RunFailed: docker-failed.
    """
    program = docker.find_compose(LocalSystem())
    words = ["logs", "--tail", str(tail), *(["--follow"] if is_following else []), *services]
    docker.run_shown(program.argv(folder.path, *words), is_output=True)


def scale(
    folder: Folder,
    num_workers: int,
    *,
    limit_s: float,
    on_wait: Callable[[Sequence[Container]], None],
    on_warning: Callable[[Finding], None],
) -> ClusterState:
    """Scales the CPU workers; .env records the number once they are healthy.

    Raises:
        UsageError: cannot-scale, and what this machine cannot give; RunFailed: docker-failed,
            cluster-not-healthy.
    """
    system = LocalSystem()
    program = docker.find_compose(system)
    services = services_in(program, folder, system)
    if "worker" not in [service.name for service in services]:
        raise UsageError(
            "cannot-scale",
            "cannot scale: every worker of this cluster has its own GPU.",
            because="NCCL refuses two ranks on one GPU",
            fix="flatout cluster init --workers N adds workers without a GPU",
        )
    requested = [
        msgspec.structs.replace(service, num_containers=num_workers)
        if service.name == "worker"
        else service
        for service in services
    ]
    findings = judge(folder, requested, system)
    _refuse(findings)
    for finding in findings:
        on_warning(finding)
    words = ("up", "--detach", "--no-recreate", "--scale", f"worker={num_workers}")
    start_until_well(
        folder, system, partial(docker.run_shown, program.argv(folder.path, *words)),
        limit_s=limit_s, on_wait=on_wait, on_warning=on_warning,
    )  # fmt: skip
    text = cluster_folder.read_settings(folder.path)
    cluster_folder.write_settings(
        folder.path, with_setting(text, "CLUSTER_WORKERS", str(num_workers))
    )
    return state(folder, system)


def stop(folder: Folder) -> tuple[Container, ...]:
    """Stops the containers of a cluster; `up` starts the same containers again.

    Raises:
        RunFailed: docker-failed.
    """
    system = LocalSystem()
    program = docker.find_compose(system)
    docker.run_shown(program.argv(folder.path, "stop"))
    return containers(folder, system)


def down(folder: Folder, *, is_with_volumes: bool) -> KeptByDown:
    """Removes a cluster's containers and its network; runs and data stay.

    Raises:
        RunFailed: docker-failed.
    """
    system = LocalSystem()
    program = docker.find_compose(system)
    words = ["down", "--remove-orphans", *(["--volumes"] if is_with_volumes else [])]
    docker.run_shown(program.argv(folder.path, *words))
    shared = [folder.settings.get(name) for name in SHARED_FOLDERS]
    return KeptByDown(
        folders=tuple(path for path in shared if path),
        volumes=docker.volumes(folder.name, system),
    )
