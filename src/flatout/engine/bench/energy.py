"""Energy of some updates: a GPU's own counter, or RAPL for CPUs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flatout.engine.runtime.energy import gpu_joules
from flatout.system.clock import elapsed_s
from flatout.system.rapl import rapl_counter

# The driver brings its counter up to date every tenth of a second or so.
_LEAST_S = 1.0


class StepEnergy:
    """Joules since this was made.

    Args:
        device: whose energy; on a CPU that of all packages, with what others use.
    """

    def __init__(self, device: torch.device) -> None:
        self._joules: Callable[[], float | None]
        counter: Callable[[], float | None] | str
        self._problem: str | None = None
        if device.type == "cuda":
            counter = gpu_joules(device)
        else:
            rapl = rapl_counter()
            counter = rapl if isinstance(rapl, str) else rapl.joules
        if isinstance(counter, str):
            self._problem = counter
        else:
            self._joules = counter
        self._began_s = elapsed_s()
        self._began_j = None if self._problem else self._joules()

    def is_early(self) -> bool:
        """Whether there is a counter, but it has not been read for long enough."""
        return self._began_j is not None and elapsed_s() - self._began_s < _LEAST_S

    def used(self) -> tuple[float | None, str | None]:
        """Joules, or None with the reason."""
        if self._problem is not None or self._began_j is None:
            return None, self._problem or "not readable"
        if elapsed_s() - self._began_s < _LEAST_S:
            return None, "not readable: measured for less than a second"
        try:
            now_j = self._joules()
        except (OSError, ValueError) as error:
            return None, f"not readable: {error}"
        if now_j is None or now_j <= self._began_j:
            return None, "not readable: the counter stood at the same value"
        return now_j - self._began_j, None
