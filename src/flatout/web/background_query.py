"""What takes seconds to find out, in the background: a page shows what is known."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from flatout.cluster import containers, files
from flatout.cluster.model.cluster import ClusterState
from flatout.doctor import api as doctor_api
from flatout.doctor.model.diagnosis import Examined
from flatout.doctor.model.doctor_request import DoctorRequest
from flatout.errors import FlatoutError
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.system.clock import elapsed_s, now_s
from flatout.system.store.sample_index import index_samples

T = TypeVar("T")


class LastAnswer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The last answer. All None while the first one has not arrived.

    problem: why there is no value. at: when it came; seconds since the epoch, UTC.
    """

    value: T | None = None
    problem: Finding | None = None
    at: float | None = None


class BackgroundQuery(Generic[T]):
    """Asks again when someone looks, in a thread, and not too often.

    Args:
        ask: takes seconds.
        every_s: the least time from one start to the next.
    """

    def __init__(self, ask: Callable[[], T], every_s: float) -> None:
        self._ask = ask
        self._every_s = every_s
        self._lock = threading.Lock()
        self._report: LastAnswer[T] = LastAnswer()
        self._began_s: float | None = None
        self._is_asking = False

    def latest(self) -> LastAnswer[T]:
        """What is known now; where that is old, it is asked again meanwhile."""
        with self._lock:
            is_due = self._began_s is None or elapsed_s() - self._began_s > self._every_s
            if is_due and not self._is_asking:
                self._is_asking, self._began_s = True, elapsed_s()
                threading.Thread(target=self._update, daemon=True).start()
            return self._report

    def forget(self) -> None:
        """Something has changed: at the next look it is asked again."""
        with self._lock:
            self._began_s = None

    def _update(self) -> None:
        try:
            report = LastAnswer(value=self._ask(), at=now_s())
        except FlatoutError as error:
            report = LastAnswer(problem=finding_from(error), at=now_s())
        # A page that says so is better than a thread that ends unseen.
        except Exception as error:  # noqa: BLE001
            report = LastAnswer(problem=internal_error(error), at=now_s())
        with self._lock:
            self._report, self._is_asking = report, False


def machine_health(examine: Callable[[], Examined] | None = None) -> BackgroundQuery[Examined]:
    """This machine as `flatout doctor` examines it."""
    return BackgroundQuery(examine or (lambda: doctor_api.examine(DoctorRequest())), 300.0)


def cluster_here(ask: Callable[[], ClusterState] | None = None) -> BackgroundQuery[ClusterState]:
    """The cluster of the folder where flatout web was started, or of ./cluster in it."""
    return BackgroundQuery(ask or (lambda: containers.state(files.open_folder(None))), 10.0)


def sample_indexing() -> BackgroundQuery[None]:
    """The index of the machine's history, brought up to date."""
    return BackgroundQuery(index_samples, 20.0)
