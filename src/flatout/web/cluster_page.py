"""Cluster: its nodes with their roles and health, and links to its dashboards."""

from __future__ import annotations

from typing import Any

from flatout.cluster.compose.compose_file import HEADS
from flatout.cluster.model.cluster import ClusterState
from flatout.web.page import PageRequest, WebPage


def cluster_page(request: PageRequest) -> WebPage:
    """The cluster of the folder where flatout web was started."""
    report = request.context.cluster.latest()
    state = report.value
    return WebPage(
        template="cluster",
        data={
            "cluster": state,
            "nodes": _nodes(state) if state is not None else [],
            # Of Dask's scheduler, the address is not a page.
            "pages": [
                dashboard.address
                for dashboard in (state.dashboards if state is not None else ())
                if dashboard.address.startswith("http://")
            ],
            "problem": report.problem,
            "at": report.at,
        },
    )


def _nodes(state: ClusterState) -> list[dict[str, Any]]:
    """A row for each container, with the report of its node, if that answered."""
    reports = {report.node: report for report in state.nodes}
    rows = []
    for container in state.containers:
        name = f"{container.service}-{container.number}"
        report = reports.get(name)
        is_judged = container.state == "running" and container.health is not None
        rows.append(
            {
                "name": name,
                "is_head": container.service == HEADS[state.engine],
                "is_well": container.is_well,
                "health": container.health if is_judged else container.state,
                "cpus": container.cpus,
                "memory_bytes": container.memory_bytes,
                "num_gpus": report.num_gpus if report is not None else None,
                "address": container.address,
                "python": report.python if report is not None else None,
                "versions": report.versions if report is not None else {},
            }
        )
    return rows
