"""The settings of a cluster, as Compose reads them from .env."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast, get_args

from flatout.cluster.compose.compose_file import PORTS
from flatout.cluster.compose.layout import SHARED_FOLDERS
from flatout.cluster.model.cluster import Engine
from flatout.errors import UsageError, nearest

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
# \$, ${NAME}, ${NAME:-else}, ${NAME-else}, $NAME.
_FILLED = re.compile(r"\\\$|\$(?:\{(\w+)(?:(:?-)([^}]*))?\}|([A-Za-z_]\w*))")
# Names that a shell may have for Compose, whether .env has them or not.
_OURS = ("CLUSTER_", "COMPOSE_PROJECT_NAME")
_NO_SHELL: Mapping[str, str] = MappingProxyType({})


def parse_settings(text: str, shell: Mapping[str, str] = _NO_SHELL) -> dict[str, str]:
    """Names and values; the last of a name counts. Comments and quotes are not part of a value.

    Source: docs.docker.com/compose/how-tos/environment-variables/env-file.

    Args:
        text: of .env.
        shell: the environment of the Compose command, which takes precedence.
    """
    settings: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        value = match[2].strip()
        quoted = re.match(r"""(['"])(.*?)\1""", value)
        value = quoted[2] if quoted else re.sub(r"\s+#.*", "", value).strip()
        is_literal = quoted is not None and quoted[1] == "'"
        settings[match[1]] = value if is_literal else _filled(value, {**settings, **shell})
    settings |= {name: shell[name] for name in shell if name in settings or name.startswith(_OURS)}
    home = shell.get("HOME") or shell.get("USERPROFILE")
    for name in SHARED_FOLDERS:
        if home and re.match(r"~(?=[/\\]|$)", settings.get(name, "")):
            settings[name] = home + settings[name][1:]
    return settings


def _filled(value: str, known: Mapping[str, str]) -> str:
    """A value in which the names of variables are replaced by what these hold."""

    def fill(match: re.Match[str]) -> str:
        if match[0] == r"\$":
            return "$"
        given = known.get(match[1] or match[4])
        if match[2] and (given is None or (match[2] == ":-" and not given)):
            return match[3]
        return given or ""

    return _FILLED.sub(fill, value)


def with_setting(text: str, name: str, value: str) -> str:
    """The same text with another value for one name; a missing name is added."""
    pattern = re.compile(rf"^(?:export[ \t]+)?{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: f"{name}={value}", text)
    return f"{text.rstrip()}\n{name}={value}\n"


def engine_in(settings: dict[str, str]) -> Engine:
    """The engine that a cluster's settings name.

    Raises:
        UsageError: bad-cluster-setting.
    """
    name = settings.get("CLUSTER_ENGINE", "")
    if name not in get_args(Engine):
        raise UsageError(
            "bad-cluster-setting",
            f"CLUSTER_ENGINE={name} in .env is not a known engine.",
            fix=nearest(name, get_args(Engine)),
        )
    return cast(Engine, name)


def folder_in(settings: dict[str, str], variable: str) -> str:
    """A folder that all nodes share; a relative path starts at the cluster's folder.

    Raises:
        UsageError: bad-cluster-setting.
    """
    text = settings.get(variable, "")
    if not text:
        raise UsageError(
            "bad-cluster-setting",
            f"{variable} in .env does not name a folder.",
            because=f"all nodes see this folder of the machine as {SHARED_FOLDERS[variable]}",
            fix=f"{variable}=/path/to/a/folder; or write a new file with flatout cluster init",
        )
    return text


def user_in(settings: dict[str, str]) -> tuple[int, int]:
    """IDs of the user and group that a cluster's programs run as.

    Raises:
        UsageError: bad-cluster-setting.
    """
    uid = _number_in(settings, "CLUSTER_UID", "id -u")
    return uid, _number_in(settings, "CLUSTER_GID", "id -g")


def _number_in(settings: dict[str, str], variable: str, command: str) -> int:
    text = settings.get(variable, "1000")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(
            "bad-cluster-setting",
            f"{variable}={text} in .env is not a user or group ID.",
            because="file ownership is numeric, and a name may have another number in the image",
            fix=f"use the output of `{command}`, like 1000",
        )
    return int(text)


def address_in(settings: dict[str, str], variable: str) -> str:
    """The address of a published port on this machine, like "127.0.0.1:8265".

    Raises:
        UsageError: bad-cluster-setting.
    """
    default = dict(PORTS[engine_in(settings)]).get(variable)
    port = settings.get(variable, str(default))
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UsageError(
            "bad-cluster-setting",
            f"{variable}={port} in .env is not a port.",
            fix=f"use a number from 1 to 65535, like {default}",
        )
    host = settings.get("CLUSTER_PUBLISHED_ON", "127.0.0.1")
    return f"{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{port}"
