"""Prints a cluster: its files, its nodes, its addresses."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from flatout.cli.render.show import make_console, print_finding, print_lines, print_note
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT, home_text
from flatout.cluster.model.cluster import (
    Checked,
    ClusterState,
    Container,
    KeptByDown,
    NodeReport,
    WrittenFiles,
)
from flatout.schema.units import bytes_text, counted_text

_STYLES = {"healthy": "green", "running": "green", "starting": "yellow", "exited": "red",
           "dead": "red", "unhealthy": "red", "lost": "red"}  # fmt: skip
_LONGEST_VERSION = 16


def print_written(written: WrittenFiles) -> None:
    """The files of a cluster, what was decided, and what to do next."""
    folder = home_text(written.folder)
    lines = [("wrote", folder), ("files", ", ".join(written.files))]
    lines += [("workers" if number == 0 else "gpu", note)
              for number, note in enumerate(written.notes)]  # fmt: skip
    lines.append(("next", "review compose.yaml and .env, then: flatout cluster up"))
    print_lines(make_console(), lines)


def print_checked(checked: Checked) -> None:
    """Prints the checks that were made and the problems found."""
    print_lines(make_console(), list(checked.passed.items()))
    for finding in checked.findings:
        print_finding(finding)
    if not checked.findings:
        print_lines(make_console(), [("next", "no problems found: flatout cluster up")])


def waiting_text(containers: Sequence[Container]) -> str:
    """The containers that are not healthy yet."""
    away = [f"{container.service}-{container.number} ({container.health or container.state})"
            for container in containers if not container.is_well]  # fmt: skip
    well = len(containers) - len(away)
    if not away:
        return f"{counted_text(well, 'container')} healthy"
    of = counted_text(len(containers), "container")
    return f"{well} of {of} healthy; waiting for {', '.join(away[:4])}"


def print_state(state: ClusterState) -> None:
    """A line for each node, the addresses, then what is wrong."""
    console = make_console()
    num_well = sum(container.is_well for container in state.containers)
    of = counted_text(len(state.containers), "container")
    head = f"{state.engine}{DOT}{num_well} of {of} healthy"
    print_lines(console, [("cluster", f"{state.name}{DOT}{head}"),
                          ("folder", home_text(state.folder))])  # fmt: skip
    if not state.containers:
        print_lines(console, [("next", "nothing is running: flatout cluster up")])
        return
    reports = {node.node: node for node in state.nodes}
    packages = [name for name in _packages(state.nodes) if name != "flatout"]
    table = plain_table("node", "state", "cpus", "gpus", "memory", "address", "python", *packages)
    for container in state.containers:
        report = reports.get(f"{container.service}-{container.number}")
        word = (
            container.health
            if container.state == "running" and container.health
            else container.state
        )
        table.add_row(
            f"{container.service}-{container.number}",
            Text(word, _STYLES.get(word, "yellow")),
            f"{container.cpus:g}" if container.cpus else "",
            str(report.num_gpus) if report else "",
            bytes_text(container.memory_bytes) if container.memory_bytes else "",
            container.address or "",
            report.python if report else "",
            *_versions(report, packages),
        )
    console.print(table)
    if state.dashboards:
        console.print()
        print_lines(
            console, [(dashboard.text, dashboard.address) for dashboard in state.dashboards]
        )
    for name, why in state.unread.items():
        print_note(f"no report from {name}: {why}")
    for finding in state.findings:
        print_finding(finding)


def _packages(nodes: Sequence[NodeReport]) -> list[str]:
    return list(dict.fromkeys(name for node in nodes for name in node.versions))


def _versions(report: NodeReport | None, packages: Sequence[str]) -> list[str]:
    if report is None:
        return [""] * len(packages)
    return [(report.versions.get(name) or "none")[:_LONGEST_VERSION] for name in packages]


def print_kept(kept: KeptByDown) -> None:
    """Prints the things left behind, and the command that removes them."""
    for folder in kept.folders:
        print_note(f"kept {home_text(folder)}")
    if kept.volumes:
        print_note(f"kept Docker's volumes {', '.join(kept.volumes)}; flatout cluster down "
                   "--volumes removes them")  # fmt: skip
