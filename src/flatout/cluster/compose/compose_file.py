"""compose.yaml and .env of a cluster, as text to be read and edited."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from flatout.cluster.compose.layout import SHARED_FOLDERS
from flatout.cluster.model.cluster import SHARED_GPU, ClusterLayout, Engine

# What only its network reaches unless .env publishes it: Ray's Jobs API runs whatever it is sent.
HEADS: Mapping[Engine, str] = MappingProxyType({
    "ray": "head", "dask": "scheduler", "torchrun": "head",
})  # fmt: skip
# Published ports: their names in .env, and inside a container.
PORTS: Mapping[Engine, tuple[tuple[str, int], ...]] = MappingProxyType({
    "ray": (("CLUSTER_DASHBOARD_PORT", 8265),),
    "dask": (("CLUSTER_SCHEDULER_PORT", 8786), ("CLUSTER_DASHBOARD_PORT", 8787)),
    "torchrun": (),
})  # fmt: skip
# Where a head waits for workers.
RENDEZVOUS_PORT: Mapping[Engine, int | None] = MappingProxyType({
    "ray": 6379, "dask": 8786, "torchrun": None,
})  # fmt: skip

_HEAD = """\
# Written by `flatout cluster init`: {engine} over containers of this machine. Review and edit it.
# What is likely to change is in .env. flatout cluster check | up | status | logs | stop | down

x-node: &node
  image: ${{COMPOSE_PROJECT_NAME}}
  # Not root, no way to become root, and no access to the machine but the folders below.
  user: "${{CLUSTER_UID}}:${{CLUSTER_GID}}"
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  init: true
  # Only flatout restarts a training, so that it is never started twice.
  restart: "no"
  networks: [cluster]
  volumes:
    - state:/flatout
    - cache:/cache
{shared}{token}  shm_size: ${{CLUSTER_SHARED_MEMORY}}
  ulimits:
    # For the stacks of many threads, and for pinned memory, which GPU transfers use.
{limits}  cpus: ${{CLUSTER_WORKER_CPUS}}
  mem_limit: ${{CLUSTER_WORKER_MEMORY}}

services:
"""

_BUILD = """\
    build:
      context: .
      network: ${CLUSTER_BUILD_NETWORK}
      args:
        BASE_IMAGE: ${CLUSTER_BASE_IMAGE}
        SYSTEM_PACKAGES: ${CLUSTER_SYSTEM_PACKAGES}
        PIP_INDEX_URL: ${CLUSTER_PIP_INDEX_URL}
        CA_BUNDLE: ${CLUSTER_CA_BUNDLE}
        RUN_UID: ${CLUSTER_UID}
        RUN_GID: ${CLUSTER_GID}
"""

_TAIL = """\
networks:
  cluster:
    name: ${COMPOSE_PROJECT_NAME}

volumes:
  state:
  cache:
"""

# The secret by which Ray's nodes and clients authenticate: its place in the cluster's folder,
# and in the nodes.
TOKEN_FILE = "secrets/ray-token"
_TOKEN_INSIDE = "/run/flatout/ray-token"
_TOKEN = f"    - ./{TOKEN_FILE}:{_TOKEN_INSIDE}:ro\n"
_KEPT_SECRET = "# Secrets of this machine.\nsecrets/\n"

# A worker stops by itself when its head is gone, which its exit code shows.
_COMMANDS: Mapping[Engine, tuple[str, str]] = MappingProxyType({
    "ray": (
        "ray start --head --block --port=6379 --num-cpus=0 --num-gpus=0 --disable-usage-stats"
        " --dashboard-host=0.0.0.0 --dashboard-port=8265",
        "ray start --block --address=head:6379 --num-cpus=${CLUSTER_WORKER_CPUS}"
        " --num-gpus={gpus} --disable-usage-stats"
        " --object-store-memory=${CLUSTER_OBJECT_STORE_BYTES}",
    ),
    "dask": (
        "dask scheduler --host 0.0.0.0 --port 8786 --dashboard-address :8787",
        "dask worker tcp://scheduler:8786 --nthreads ${CLUSTER_WORKER_CPUS}"
        " --memory-limit ${CLUSTER_WORKER_MEMORY_BYTES} --dashboard-address :8790"
        " --local-directory /tmp",
    ),
    # Ranks are started in them when a training begins.
    "torchrun": ("sleep infinity", "sleep infinity"),
})  # fmt: skip
_HEALTH_URLS: Mapping[Engine, tuple[str, str]] = MappingProxyType({
    "ray": ("127.0.0.1:8265/api/gcs_healthz", "127.0.0.1:52365/api/local_raylet_healthz"),
    "dask": ("127.0.0.1:8787/health", "127.0.0.1:8790/health"),
    "torchrun": ("", ""),
})  # fmt: skip

# The token that clients of `flatout serve` must send.
SERVE_TOKEN = "FLATOUT_SERVE_TOKEN"
# Further roles, started when they are wanted: `docker compose run --rm ingestion flatout ...`.
_ROLES: Mapping[str, tuple[str, str]] = MappingProxyType({
    "ingestion": ("cleans and splits data into shards below /data", "flatout ingest --help"),
    "training": ("trains on its own, in a separate container", "flatout train digits"),
    # A run may have been trained elsewhere, with another interpreter.
    "inference": ("answers requests from the cluster's network with the weights of the last run; "
                  "also computes for commands with `--on cluster`",
                  "flatout serve last --host 0.0.0.0 --python python3"),
})  # fmt: skip


def compose_files(layout: ClusterLayout) -> dict[str, str]:
    """compose.yaml, .env, and what keeps a secret out of git and out of the image, by name."""
    files = {"compose.yaml": compose_text(layout), ".env": settings_text(layout)}
    if layout.engine == "ray":
        files |= {".gitignore": _KEPT_SECRET, ".dockerignore": _KEPT_SECRET}
    return files


def compose_text(layout: ClusterLayout) -> str:
    """All services of a cluster, by role."""
    engine = layout.engine
    head = HEADS[engine]
    services = [_head(layout)]
    if layout.num_workers > len(layout.gpus):
        services.append(_service("worker", layout, is_scaled=True))
    services += [
        _service(_name_of(layout.gpus, number), layout, gpu=gpu)
        for number, gpu in enumerate(layout.gpus)
    ]
    services += [_role(name, layout) for name in _ROLES]
    # Some engines may not raise this limit, and it is only needed with a GPU.
    limits = "    stack: 67108864\n" + ("    memlock: -1\n" if layout.gpus else "")
    token = _TOKEN if engine == "ray" else ""
    shared = "".join(
        f"    - ${{{name}}}:{mount_point}\n" for name, mount_point in SHARED_FOLDERS.items()
    )
    text = _HEAD.format(engine=engine, limits=limits, shared=shared, token=token)
    text += "\n".join(services) + "\n" + _TAIL
    return text.replace("{head}", head)


def _name_of(gpus: tuple[int, ...], number: int) -> str:
    """A service's name by its GPU; with a second number where others have the same."""
    nth = gpus[: number + 1].count(gpus[number])
    return f"gpu-{gpus[number]}" if nth == 1 else f"gpu-{gpus[number]}-{nth}"


def settings_text(layout: ClusterLayout) -> str:
    """.env: the settings of the cluster that users are likely to change."""
    share = layout.share
    lines = [
        "# Read by Docker Compose. After a change: flatout cluster check, then flatout cluster up",
        f"COMPOSE_PROJECT_NAME={layout.name}",
        f"CLUSTER_ENGINE={layout.engine}",
        "",
        "# CPU workers, and the limits of each container.",
        f"CLUSTER_WORKERS={layout.num_workers - len(layout.gpus)}",
        f"CLUSTER_WORKER_CPUS={share.cpus}",
        f"CLUSTER_WORKER_MEMORY={share.memory_bytes // 2**20}m",
        f"CLUSTER_HEAD_MEMORY={share.head_bytes // 2**20}m",
        f"CLUSTER_SHARED_MEMORY={share.shared_bytes // 2**20}m",
    ]
    if layout.engine == "ray":
        # Below /dev/shm's size, or Ray takes a slow folder instead.
        lines.append(f"CLUSTER_OBJECT_STORE_BYTES={int(share.shared_bytes * 0.9)}")
    if layout.engine == "dask":
        # A worker that approaches it spills to disk and then restarts, before the kernel kills it.
        lines.append(f"CLUSTER_WORKER_MEMORY_BYTES={int(share.memory_bytes * 0.9)}")
    lines += [
        "",
        "# Folders of this machine that all nodes share, and the owner of the files in them.",
        f"CLUSTER_RUNS={layout.runs}",
        f"CLUSTER_DATA={layout.data}",
        f"CLUSTER_UID={layout.uid}",
        f"CLUSTER_GID={layout.gid}",
    ]
    if PORTS[layout.engine]:
        lines += [
            "",
            "# Anyone who reaches these ports can run programs in the cluster: an address other "
            "than",
            "# loopback publishes them to the network.",
            "CLUSTER_PUBLISHED_ON=127.0.0.1",
            *(f"{name}={port}" for name, port in PORTS[layout.engine]),
        ]
    if layout.engine == "ray":
        lines += [
            "# Ray requires the token in secrets/ray-token; `disabled` turns this off.",
            "CLUSTER_RAY_AUTH=token",
        ]
    lines += [
        "",
        "# What the image is built from. The index and the bundle (a file in certificates/) are "
        "for",
        "# networks that have their own; the build network may be `host`.",
        f"CLUSTER_BASE_IMAGE={layout.base_image}",
        "CLUSTER_SYSTEM_PACKAGES=gcc g++",
        "CLUSTER_PIP_INDEX_URL=",
        "CLUSTER_CA_BUNDLE=",
        "CLUSTER_BUILD_NETWORK=default",
    ]
    return "\n".join(lines) + "\n"


def _head(layout: ClusterLayout) -> str:
    name = HEADS[layout.engine]
    command, _ = _COMMANDS[layout.engine]
    ports = PORTS[layout.engine]
    text = f"  {name}:\n    <<: *node\n{_BUILD}    command: {command}\n"
    text += f"    hostname: {name}\n"
    if ports:
        text += "    ports:\n" + "".join(
            f'      - "${{CLUSTER_PUBLISHED_ON}}:${{{variable}}}:{port}"\n'
            for variable, port in ports
        )
    text += "    mem_limit: ${CLUSTER_HEAD_MEMORY}\n"
    gpu = layout.gpus[0] if layout.is_gpu_shared and layout.gpus else None
    if gpu is not None:
        text += _gpu(layout, gpu)
    return text + _environment(layout, gpu) + _health(_HEALTH_URLS[layout.engine][0])


def _service(
    name: str, layout: ClusterLayout, *, gpu: int | None = None, is_scaled: bool = False
) -> str:
    _, command = _COMMANDS[layout.engine]
    command = command.replace("{gpus}", "0" if gpu is None else "1")
    text = f"  {name}:\n    <<: *node\n    command: {command}\n"
    if is_scaled:
        text += "    scale: ${CLUSTER_WORKERS}\n"
    text += "    depends_on:\n      {head}: {condition: service_healthy}\n"
    if gpu is not None:
        text += _gpu(layout, gpu)
    return text + _environment(layout, gpu) + _health(_HEALTH_URLS[layout.engine][1])


def _role(name: str, layout: ClusterLayout) -> str:
    description, command = _ROLES[name]
    text = f"  # {description}: docker compose run --rm {name} {command}\n"
    text += f"  {name}:\n    <<: *node\n    profiles: [{name}]\n    command: {command}\n"
    # It may share the first GPU with a worker: they are not ranks of one training.
    gpu = layout.gpus[0] if layout.gpus else None
    if gpu is not None:
        text += _gpu(layout, gpu)
    text += _environment(layout, gpu)
    # Without it, all containers of the network may ask.
    return text + (f'      {SERVE_TOKEN}: "${{{SERVE_TOKEN}:-}}"\n' if name == "inference" else "")


def _environment(layout: ClusterLayout, gpu: int | None) -> str:
    values = {"CLUSTER_HEAD": HEADS[layout.engine]}
    if layout.engine == "ray":
        values |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "${CLUSTER_RAY_AUTH}",
            "RAY_AUTH_TOKEN_PATH": _TOKEN_INSIDE,
        }
    if layout.engine == "dask":
        # What `flatout ingest --on dask` looks for.
        values |= {"DASK_SCHEDULER_ADDRESS": "scheduler:8786"}
    if gpu is not None and layout.is_gpu_shared:
        values[SHARED_GPU] = str(gpu)
    if gpu is not None and layout.is_by_variable:
        values["CUDA_VISIBLE_DEVICES"] = str(gpu)
    elif gpu is None and layout.gpus:
        values["NVIDIA_VISIBLE_DEVICES"] = "void"
    return "    environment:\n" + "".join(
        f'      {name}: "{value}"\n' for name, value in values.items()
    )


def _gpu(layout: ClusterLayout, gpu: int) -> str:
    """The device entry of a GPU, for this machine's runtime."""
    if layout.gpu_form == "cdi":
        name = "all" if layout.is_by_variable else str(gpu)
        device = f'{{driver: cdi, device_ids: ["nvidia.com/gpu={name}"], capabilities: [gpu]}}'
    elif layout.is_by_variable:
        device = "{driver: nvidia, count: all, capabilities: [gpu]}"
    else:
        device = f'{{driver: nvidia, device_ids: ["{gpu}"], capabilities: [gpu]}}'
    return (
        "    deploy:\n      resources:\n        reservations:\n          devices:\n"
        f"            - {device}\n"
    )


def _health(url: str) -> str:
    if url:
        program = f"import urllib.request as r; r.urlopen('http://{url}', timeout=3)"
    else:
        program = "import flatout"
    test = msgspec.json.encode(["CMD", "python3", "-c", program]).decode()
    return (
        f"    healthcheck:\n      test: {test}\n"
        "      interval: 5s\n      timeout: 5s\n      retries: 6\n      start_period: 60s\n"
    )
