"""Parsers for the output of Docker and Compose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from flatout.cluster.model.cluster import Container, Port, Service

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LABEL = "com.docker.compose."


def parse_containers(text: str) -> tuple[Container, ...]:
    """Containers of a project from `docker inspect`, by service and number.

    What was started for one command (`compose run`) is left out.

    Raises:
        ValueError: it is not the output of `docker inspect`.
    """
    try:
        inspected = msgspec.json.decode(text or "[]", type=list[_Inspected])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    parsed = [container for entry in inspected if (container := _container(entry))]
    return tuple(sorted(parsed, key=lambda container: (container.service, container.number)))


class _Health(msgspec.Struct, rename="pascal"):
    status: str = ""


class _State(msgspec.Struct, rename="pascal"):
    status: str = ""
    exit_code: int = 0
    finished_at: str = ""
    o_o_m_killed: bool = False
    health: _Health | None = None


class _Config(msgspec.Struct, rename="pascal"):
    labels: dict[str, str] | None = None
    user: str = ""


class _HostConfig(msgspec.Struct, rename="pascal"):
    nano_cpus: int = 0
    cpu_quota: int = 0
    cpu_period: int = 0
    memory: int = 0


class _Network(msgspec.Struct):
    ip: str = msgspec.field(default="", name="IPAddress")


class _NetworkSettings(msgspec.Struct, rename="pascal"):
    ports: dict[str, list[dict[str, str]] | None] | None = None
    networks: dict[str, _Network] | None = None


class _Inspected(msgspec.Struct, rename="pascal"):
    id: str
    name: str = ""
    state: _State = msgspec.field(default_factory=_State)
    config: _Config = msgspec.field(default_factory=_Config)
    host_config: _HostConfig = msgspec.field(default_factory=_HostConfig)
    network_settings: _NetworkSettings = msgspec.field(default_factory=_NetworkSettings)


def _container(entry: _Inspected) -> Container | None:
    labels = entry.config.labels or {}
    if f"{_LABEL}service" not in labels or labels.get(f"{_LABEL}oneoff") == "True":
        return None
    limits, network = entry.host_config, entry.network_settings
    quota = limits.cpu_quota / limits.cpu_period if limits.cpu_period else None
    addresses = [endpoint.ip for endpoint in (network.networks or {}).values() if endpoint.ip]
    health = entry.state.health.status if entry.state.health else None
    return Container(
        id=entry.id,
        name=entry.name.removeprefix("/"),
        service=labels[f"{_LABEL}service"],
        number=int(labels.get(f"{_LABEL}container-number", "1")),
        state=entry.state.status,
        health=health if health not in ("", "none") else None,
        exit_code=entry.state.exit_code if entry.state.status in ("exited", "dead") else None,
        ended_at=entry.state.finished_at or None,
        is_out_of_memory=entry.state.o_o_m_killed,
        address=addresses[0] if addresses else None,
        ports=_published(network.ports or {}),
        cpus=limits.nano_cpus / 1e9 if limits.nano_cpus else quota,
        memory_bytes=limits.memory or None,
        user=entry.config.user or None,
    )


def _published(ports: dict[str, list[dict[str, str]] | None]) -> tuple[Port, ...]:
    return tuple(
        Port(
            address=binding.get("HostIp") or "0.0.0.0",
            published=int(binding["HostPort"]),
            target=int(inside.partition("/")[0]),
        )
        for inside, bindings in ports.items()
        for binding in bindings or ()
        if binding.get("HostPort", "").isdigit()
    )


def parse_services(document: Any) -> tuple[Service, ...]:
    """Services from `compose config`, by v1's YAML or v2's JSON.

    Raises:
        ValueError: it has no services.
    """
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict):
        raise ValueError("it has no services")
    return tuple(_service(str(name), _object(spec)) for name, spec in services.items())


def _service(name: str, spec: dict[str, Any]) -> Service:
    deploy = _object(spec.get("deploy"))
    resources = _object(deploy.get("resources"))
    limits = _object(resources.get("limits"))
    devices = _object(resources.get("reservations")).get("devices")
    user = spec.get("user")
    count = spec.get("scale", deploy.get("replicas", 1))
    return Service(
        name=name,
        user=None if user is None else str(user),
        is_privileged=bool(spec.get("privileged")),
        is_on_host_network=spec.get("network_mode") == "host",
        ports=tuple(_ports(_list(spec.get("ports")))),
        cpus=_number(spec.get("cpus", limits.get("cpus"))),
        memory_bytes=parse_size(spec.get("mem_limit", limits.get("memory"))),
        shared_bytes=parse_size(spec.get("shm_size")),
        num_containers=int(str(count)) if _is_number(count) else 1,
        profiles=tuple(str(profile) for profile in _list(spec.get("profiles"))),
        is_with_gpu=bool(devices) or bool(spec.get("gpus")) or spec.get("runtime") == "nvidia",
        variables=_variables(spec.get("environment")),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _variables(variables: Any) -> dict[str, str]:
    if isinstance(variables, list):
        variables = dict(str(pair).partition("=")[::2] for pair in variables)
    items = _object(variables).items()
    return {str(name): "" if value is None else str(value) for name, value in items}


def _ports(specs: Iterable[Any]) -> Iterable[Port]:
    """The ports in v2's objects, or in v1's texts like "127.0.0.1:8265:8265/tcp"."""
    for spec in specs:
        if isinstance(spec, dict):
            address, published = spec.get("host_ip"), spec.get("published")
            target = spec.get("target")
        else:
            *rest, target = str(spec).partition("/")[0].rsplit(":", 2)
            published = rest[-1] if rest else None
            address = rest[0].strip("[]") if len(rest) == 2 else None
        # A range, or one that Docker chooses, is on no port that can be looked at before.
        if _is_number(published) and _is_number(target):
            yield Port(
                address=address or "0.0.0.0", published=int(str(published)), target=int(str(target))
            )


def parse_size(size: Any) -> int | None:
    """A size as Compose has it: 2048m, "2147483648", 1.5g; None if it is not a size."""
    if size is None:
        return None
    match = re.fullmatch(r"([0-9.]+)\s*([bkmgt]?)(?:i?b)?", str(size).strip().lower())
    number = _number(match[1]) if match else None
    return int(number * _UNITS[match[2]]) if match and number is not None else None


def _is_number(value: Any) -> bool:
    return re.fullmatch("[0-9]{1,9}", str(value)) is not None


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
