"""The cluster of the folder where flatout web was started: asked in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from flatout.cluster import containers, files
from flatout.cluster.model.cluster import ClusterState
from flatout.errors import FlatoutError
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.system.clock import elapsed_s, now_s

_EVERY_S = 10.0


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer. All None while the first one has not arrived.

    problem: why there is no state. at: when it was asked; seconds since the epoch, UTC.
    """

    state: ClusterState | None = None
    problem: Finding | None = None
    at: float | None = None


def state_here() -> ClusterState:
    """The cluster of the current folder, or of ./cluster."""
    return containers.state(files.open_folder(None))


class ClusterWatch:
    """Asks the cluster when someone looks, at most every few seconds: Docker and nodes are slow.

    Args:
        ask: takes seconds.
    """

    def __init__(self, ask: Callable[[], ClusterState] = state_here) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._report = ClusterReport()
        self._began_s: float | None = None
        self._is_asking = False

    def latest(self) -> ClusterReport:
        """What is known now; where that is old, the cluster is asked again."""
        with self._lock:
            is_due = self._began_s is None or elapsed_s() - self._began_s > _EVERY_S
            if is_due and not self._is_asking:
                self._is_asking, self._began_s = True, elapsed_s()
                threading.Thread(target=self._update, daemon=True).start()
            return self._report

    def _update(self) -> None:
        try:
            report = ClusterReport(state=self._ask(), at=now_s())
        except FlatoutError as error:
            report = ClusterReport(problem=finding_from(error), at=now_s())
        # A page that says so is better than a thread that ends unseen.
        except Exception as error:  # noqa: BLE001
            report = ClusterReport(problem=internal_error(error), at=now_s())
        with self._lock:
            self._report, self._is_asking = report, False
