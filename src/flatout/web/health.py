"""This machine as the doctor sees it: examined in the background, since that takes seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from flatout.doctor import api as doctor_api
from flatout.doctor.model.diagnosis import Examined
from flatout.doctor.model.doctor_request import DoctorRequest
from flatout.errors import FlatoutError
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.system.clock import elapsed_s, now_s

_EVERY_S = 300.0


class MachineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The last examination. All None while the first one is not finished.

    problem: why the machine could not be examined. at: when it was; seconds since the epoch, UTC.
    """

    examined: Examined | None = None
    problem: Finding | None = None
    at: float | None = None


def examine_here() -> Examined:
    """This machine, as `flatout doctor` examines it."""
    return doctor_api.examine(DoctorRequest())


class HealthWatch:
    """Examines the machine when it is asked for, at most every few minutes.

    Args:
        examine: takes seconds.
    """

    def __init__(self, examine: Callable[[], Examined] = examine_here) -> None:
        self._examine_machine = examine
        self._lock = threading.Lock()
        self._health = MachineHealth()
        self._began_s: float | None = None
        self._is_examining = False

    def latest(self) -> MachineHealth:
        """What is known now; an old examination is repeated meanwhile."""
        with self._lock:
            is_due = self._began_s is None or elapsed_s() - self._began_s > _EVERY_S
            if is_due and not self._is_examining:
                self._is_examining, self._began_s = True, elapsed_s()
                threading.Thread(target=self._examine, daemon=True).start()
            return self._health

    def forget(self) -> None:
        """The machine has changed: the next look at it examines it again."""
        with self._lock:
            self._began_s = None

    def _examine(self) -> None:
        try:
            health = MachineHealth(examined=self._examine_machine(), at=now_s())
        except FlatoutError as error:
            health = MachineHealth(problem=finding_from(error), at=now_s())
        # A page that says so is better than a thread that ends unseen.
        except Exception as error:  # noqa: BLE001
            health = MachineHealth(problem=internal_error(error), at=now_s())
        with self._lock:
            self._health, self._is_examining = health, False
