"""The settings of a cluster, as Compose reads them from .env."""

from __future__ import annotations

import re
from typing import cast, get_args

from flatout.cluster.compose_file import PORTS
from flatout.errors import UsageError, nearest
from flatout.nouns.cluster import Engine

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def parse_settings(text: str) -> dict[str, str]:
    """Names and values; the last of a name counts. Comments and quotes are not part of a value."""
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        value = match[2].strip()
        quoted = re.match(r"""(['"])(.*?)\1""", value)
        found[match[1]] = quoted[2] if quoted else re.sub(r"\s+#.*", "", value).strip()
    return found


def with_setting(text: str, name: str, value: str) -> str:
    """The same text with another value of one name; a name that is not there is added."""
    pattern = re.compile(rf"^(?:export[ \t]+)?{re.escape(name)}[ \t]*=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: f"{name}={value}", text)
    return f"{text.rstrip()}\n{name}={value}\n"


def engine_in(settings: dict[str, str]) -> Engine:
    """Which engine a cluster's settings name.

    Raises:
        UsageError: bad-cluster-setting.
    """
    name = settings.get("CLUSTER_ENGINE", "")
    if name not in get_args(Engine):
        raise UsageError(
            "bad-cluster-setting",
            f"CLUSTER_ENGINE={name} in .env names no engine.",
            fix=nearest(name, get_args(Engine)),
        )
    return cast(Engine, name)


def address_in(settings: dict[str, str], variable: str) -> str:
    """Where this machine reaches a published port, like "127.0.0.1:8265".

    Raises:
        UsageError: bad-cluster-setting.
    """
    default = dict(PORTS[engine_in(settings)]).get(variable)
    port = settings.get(variable, str(default))
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UsageError(
            "bad-cluster-setting",
            f"{variable}={port} in .env is no port.",
            fix=f"a number from 1 to 65535, like {default}",
        )
    host = settings.get("CLUSTER_PUBLISHED_ON", "127.0.0.1")
    return f"{'127.0.0.1' if host in ('', '0.0.0.0', '::') else host}:{port}"
