"""A training as a job of a Ray cluster, by Ray's Jobs API over HTTP: no Ray is needed here.

Other requests to its dashboard are here, too.

Source: docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html; of the nodes,
docs.ray.io/en/latest/ray-observability/reference/cli.html (`ray list nodes` asks the same).
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import secrets
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.cluster.compose import cluster_folder
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.placement import LAUNCHER_LOST, NOT_SHARED
from flatout.system import clock
from flatout.system.atomic_files import mapped_os_errors

_LIMIT_S = 15.0
_POLL_EVERY_S = 1.0
_STOP_LIMIT_S = 30.0
# Ray refuses to list more.
_MOST_NODES = 10_000
_ALIVE = ("PENDING", "RUNNING")
# How often a head that does not answer, or not about the job, is queried before both count as gone:
# one that was started again has never heard of the job.
_MOST_SILENCES = 10


class RayHead(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a Ray dashboard, and the token that it requires; None if there is none."""

    address: str
    token: str | None = None

    def __repr__(self) -> str:
        """Without the token, which must not be printed."""
        return f"RayHead({self.address!r})"


class _Details(msgspec.Struct):
    status: str = ""
    message: str | None = None
    driver_exit_code: int | None = None


class _NodeRow(msgspec.Struct):
    node_ip: str
    state: str


class _NodeRows(msgspec.Struct):
    result: list[_NodeRow]


class _NodeResult(msgspec.Struct):
    result: _NodeRows


class _NodeResponse(msgspec.Struct):
    data: _NodeResult


class RayJob:
    """A job submitted to a Ray cluster, watched from here.

    head: where it was handed in. log: of the run; where it failed, what Ray says of it is added.
    """

    def __init__(self, head: RayHead, id: str, log: Path) -> None:
        self.head = head
        self.id = id
        self.log = log
        self._details = _Details(status="PENDING")
        self._polled_s = 0.0
        self._silences = 0

    def is_running(self) -> bool:
        """Whether it has not ended; asked once a second at most."""
        if self._details.status in _ALIVE and clock.elapsed_s() - self._polled_s > _POLL_EVERY_S:
            self._polled_s = clock.elapsed_s()
            self._query_status()
        return self._details.status in _ALIVE

    def _query_status(self) -> None:
        try:
            details = _call(self.head, f"/api/jobs/{self.id}")
        except FlatoutError:
            self._silences += 1
            if self._silences >= _MOST_SILENCES:
                self._details = _Details(status="LOST")
            return
        self._silences = 0
        self._details = msgspec.convert(details, _Details)
        if self._details.status == "FAILED" and self._details.message:
            with mapped_os_errors(self.log), open(self.log, "ab") as log:
                log.write(f"Ray: {self._details.message.strip()}\n".encode())

    def exit_code(self) -> int | None:
        """The exit code of the job; None while it is running. -15: it was stopped. 1: unknown.

        LAUNCHER_LOST: Ray's head does not answer any more.
        """
        status = self._details.status
        if status in _ALIVE:
            return None
        code = self._details.driver_exit_code
        if code is not None:
            return code
        return {"SUCCEEDED": 0, "STOPPED": -15, "LOST": LAUNCHER_LOST}.get(status, 1)

    def kill(self) -> None:
        """Makes Ray stop it, and waits for that, up to a limit."""
        if not self.is_running():
            return
        # An unreachable head is noticed below.
        with contextlib.suppress(FlatoutError):
            _call(self.head, f"/api/jobs/{self.id}/stop", {})
        end = clock.elapsed_s() + _STOP_LIMIT_S
        while self.is_running() and clock.elapsed_s() < end:
            clock.sleep_s(0.2)


def submit(head: RayHead, command: Sequence[str], inside: str, log: Path) -> RayJob:
    """Submits a command to a cluster; Ray runs it on the head, once.

    A head that is busy may take a job and answer too late. So the job has a name chosen here, by
    which it is found, and which Ray accepts only once.

    Args:
        head: of the cluster.
        command: the program and its arguments.
        inside: the file, as the head sees it, that what it prints is added to; where the head does
            not see its folder, the job ends with NOT_SHARED.
        log: the same file as it is seen here.

    Raises:
        RunFailed: ray-not-answering; UsageError: not-a-ray-address, ray-token-refused.
    """
    folder = shlex.quote(posixpath.dirname(inside))
    entrypoint = (
        f"test -d {folder} || exit {NOT_SHARED}; "
        f"exec {shlex.join(command)} >> {shlex.quote(inside)} 2>&1"
    )
    job = RayJob(head, f"flatout-{secrets.token_hex(8)}", log)
    is_last = False
    while True:
        try:
            submitted = _call(
                head, "/api/jobs/", {"entrypoint": entrypoint, "submission_id": job.id}
            )
        except FlatoutError as error:
            if _is_known(job):
                return job
            if is_last or isinstance(error, UsageError):
                raise
            is_last = True
            continue
        if "submission_id" not in submitted:
            raise _no_address(head.address, "the server there does not accept jobs")
        return job


def _is_known(job: RayJob) -> bool:
    try:
        return "status" in _call(job.head, f"/api/jobs/{job.id}")
    except FlatoutError:
        return False


def version(head: RayHead) -> str:
    """The version of Ray at that address.

    Raises:
        RunFailed: ray-not-answering; UsageError: not-a-ray-address, ray-token-refused.
    """
    return str(_call(head, "/api/version").get("ray_version", "unknown"))


def nodes(head: RayHead, limit_s: float) -> dict[str, bool]:
    """Whether Ray counts the nodes as alive, by address; dropped nodes are included.

    A restarted node has the address of its predecessor; the newer one counts.

    Raises:
        RunFailed: ray-not-answering; UsageError: not-a-ray-address, ray-token-refused.
    """
    path = f"/api/v0/nodes?limit={_MOST_NODES}&timeout={max(1, int(limit_s))}"
    listed = _call(head, path, limit_s=limit_s)
    try:
        rows = msgspec.convert(listed, _NodeResponse).data.result.result
    except msgspec.ValidationError as error:
        raise _no_address(head.address, f"the server there lists no nodes: {error}") from error
    alive_by_address: dict[str, bool] = {}
    for row in rows:
        alive_by_address[row.node_ip] = (
            alive_by_address.get(row.node_ip, False) or row.state == "ALIVE"
        )
    return alive_by_address


def check_address(text: str) -> str:
    """An address of Ray's dashboard, without a slash at its end.

    Raises:
        UsageError: not-a-ray-address.
    """
    parts = urllib.parse.urlsplit(text)
    try:
        has_address = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # A port that is not a number.
        has_address = False
    if parts.scheme not in ("http", "https") or not has_address:
        raise _no_address(text, "it is not an address like http://HOST:8265")
    return text.rstrip("/")


def own_token() -> str | None:
    """The caller's token, from where Ray's own clients look for it; None if there is none.

    Source: docs.ray.io/en/latest/ray-security/token-auth.html.
    """
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return None
    if os.environ.get("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"]
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    return cluster_folder.read_secret(Path(path))


def _call(
    head: RayHead, path: str, body: dict[str, Any] | None = None, *, limit_s: float = _LIMIT_S
) -> dict[str, Any]:
    address = check_address(head.address)
    request = urllib.request.Request(
        address + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    if head.token is not None:
        # Not sent to redirect targets.
        request.add_unredirected_header("Authorization", f"Bearer {head.token}")
    # Proxies are for outside addresses; a cluster's head is inside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=limit_s) as response:
            document = json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise _refused(head) from error
        lines = error.read().decode(errors="replace").strip().splitlines()
        because = f"it answers {error.code}: {lines[-1] if lines else error.reason}"
        if error.code >= 500:
            raise _silent(address, because) from error
        raise _no_address(address, because) from error
    except (OSError, ValueError) as error:
        raise _silent(address, str(getattr(error, "reason", None) or error)) from error
    # Some answers are a bare `true`.
    return document if isinstance(document, dict) else {}


def _silent(address: str, because: str) -> RunFailed:
    return RunFailed(
        "ray-not-answering",
        f"Ray does not answer at {address}.",
        because=because,
        fix="start one here: flatout cluster up; for one on another machine use a tunnel: "
        "ssh -L 8265:127.0.0.1:8265 HOST",
    )


def _refused(head: RayHead) -> UsageError:
    return UsageError(
        "ray-token-refused",
        f"Ray at {head.address} requires a token"
        + (" and rejects this one." if head.token else "."),
        because="without one, anyone who reaches its dashboard could run programs there",
        fix="set RAY_AUTH_TOKEN_PATH to the token file; clusters made by flatout keep it in "
        "secrets/ray-token",
    )


def _no_address(text: str, because: str) -> UsageError:
    return UsageError(
        "not-a-ray-address",
        f"{text} is not the address of Ray's dashboard.",
        because=because,
        fix="give the address that flatout cluster status shows, like http://127.0.0.1:8265",
    )
