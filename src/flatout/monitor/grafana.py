"""A folder with Prometheus, Grafana and a dashboard, to be started with Docker Compose."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.errors import UsageError
from flatout.monitor.grafana_dashboard import dashboard
from flatout.schema.suggested_command import command_line
from flatout.system import atomic_files, metrics_server
from flatout.system.metrics_server import LOOPBACK
from flatout.system.wsl import is_wsl

# Released versions: what is pulled today is what was tested.
_PROMETHEUS = "prom/prometheus:v3.5.0"
_GRAFANA = "grafana/grafana:12.1.1"
_PROMETHEUS_PORT = 9090
_GRAFANA_PORT = 3000


@dataclass(frozen=True, kw_only=True)
class GrafanaFolder:
    """What was written, and what to do with it: two commands and an address."""

    folder: str
    files: tuple[str, ...]
    monitor: str
    compose: str
    url: str = f"http://localhost:{_GRAFANA_PORT}/d/flatout"


def write(directory: str, address: str) -> GrafanaFolder:
    """Writes the folder.

    Args:
        directory: a new one.
        address: at which `flatout monitor` exports, as typed.

    Raises:
        UsageError: file-exists, bad-address, folder-not-writable.
    """
    host, port = metrics_server.parse_address(address)
    folder = Path(directory).expanduser()
    files = grafana_files(host, port, is_host_network=has_host_network())
    for name in files:
        if os.path.lexists(folder / name):
            raise UsageError(
                "file-exists",
                f"{folder / name} already exists.",
                because="flatout does not overwrite files",
                fix="give another folder: flatout monitor grafana DIR",
            )
    for name, text in files.items():
        path = folder / name
        with atomic_files.mapped_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_atomically(path, text.encode())
    return GrafanaFolder(
        folder=str(folder),
        files=tuple(str(folder / name) for name in files),
        monitor=command_line(["flatout", "monitor", "--prometheus", address]),
        compose=command_line(["docker", "compose", "-f", str(folder / "compose.yaml"), "up", "-d"]),
    )


def has_host_network() -> bool:
    """Whether containers can share the network of this computer: Docker Desktop's cannot."""
    return sys.platform == "linux" and not is_wsl()


def grafana_files(host: str, port: int, *, is_host_network: bool) -> dict[str, str]:
    """The text of each file by its path.

    is_host_network: the containers share the network of this computer, and so reach a monitor that
    only this computer can reach.
    """
    is_local = host in (LOOPBACK, "localhost", "::1", "0.0.0.0", "::")
    inside = LOOPBACK if is_host_network else "host.docker.internal"
    target = f"{inside if is_local else f'[{host}]' if ':' in host else host}:{port}"
    source = LOOPBACK if is_host_network else "prometheus"
    return {
        "compose.yaml": _compose(is_host_network=is_host_network),
        "prometheus.yml": _PROMETHEUS_YML.replace("TARGET", target),
        "grafana/provisioning/datasources/flatout.yaml": _DATASOURCE.replace(
            "URL", f"http://{source}:{_PROMETHEUS_PORT}"
        ),
        "grafana/provisioning/dashboards/flatout.yaml": _PROVIDER,
        "grafana/dashboards/flatout.json": _json(dashboard()),
    }


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _compose(*, is_host_network: bool) -> str:
    if is_host_network:
        network = ["    network_mode: host"]
        ports: dict[str, list[str]] = {"prometheus": network, "grafana": network}
    else:
        ports = {
            "prometheus": [
                "    ports:", f'      - "{LOOPBACK}:{_PROMETHEUS_PORT}:{_PROMETHEUS_PORT}"',
                "    extra_hosts:", '      - "host.docker.internal:host-gateway"',
            ],
            "grafana": ["    ports:", f'      - "{LOOPBACK}:{_GRAFANA_PORT}:{_GRAFANA_PORT}"'],
        }  # fmt: skip
    # In a network of its own, a container is reached only through what is published above.
    listens = LOOPBACK if is_host_network else "0.0.0.0"
    lines = [
        "# Written by `flatout monitor grafana`. Start: docker compose up -d",
        "services:",
        "  prometheus:",
        f"    image: {_PROMETHEUS}",
        "    command:",
        "      - --config.file=/etc/prometheus/prometheus.yml",
        "      - --storage.tsdb.path=/prometheus",
        "      - --storage.tsdb.retention.time=30d",
        f"      - --web.listen-address={listens}:{_PROMETHEUS_PORT}",
        "    restart: unless-stopped",
        "    volumes:",
        "      - ./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
        "      - prometheus:/prometheus",
        *ports["prometheus"],
        "  grafana:",
        f"    image: {_GRAFANA}",
        "    environment:",
        f"      GF_SERVER_HTTP_ADDR: {listens}",
        f'      GF_SERVER_HTTP_PORT: "{_GRAFANA_PORT}"',
        '      GF_AUTH_ANONYMOUS_ENABLED: "true"',
        "      GF_AUTH_ANONYMOUS_ORG_ROLE: Viewer",
        '      GF_ANALYTICS_REPORTING_ENABLED: "false"',
        '      GF_ANALYTICS_CHECK_FOR_UPDATES: "false"',
        "    restart: unless-stopped",
        "    depends_on:",
        "      - prometheus",
        "    volumes:",
        "      - ./grafana/provisioning:/etc/grafana/provisioning:ro",
        "      - ./grafana/dashboards:/var/lib/grafana/dashboards:ro",
        "      - grafana:/var/lib/grafana",
        *ports["grafana"],
        "volumes:",
        "  prometheus:",
        "  grafana:",
    ]
    return "\n".join(lines) + "\n"


_PROMETHEUS_YML = """\
# Written by `flatout monitor grafana`.
global:
  scrape_interval: 5s
scrape_configs:
  - job_name: flatout
    static_configs:
      - targets: ["TARGET"]
"""

_DATASOURCE = """\
apiVersion: 1
datasources:
  - name: Prometheus
    uid: prometheus
    type: prometheus
    access: proxy
    url: URL
    isDefault: true
"""

_PROVIDER = """\
apiVersion: 1
providers:
  - name: flatout
    type: file
    options:
      path: /var/lib/grafana/dashboards
"""
