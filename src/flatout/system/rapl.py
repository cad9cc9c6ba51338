"""Energy of the CPUs by RAPL, as Linux's powercap shows it; since 2020 mostly to root alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class RaplCounter:
    """Joules that all packages have used since this was made.

    Args:
        zones: a folder of powercap for each package, all of them readable.

    Source: https://docs.kernel.org/power/powercap/powercap.html.
    """

    def __init__(self, zones: Sequence[Path]) -> None:
        self._zones = zones
        self._last_uj = [_number(zone / "energy_uj") for zone in zones]
        self._used_uj = 0

    def joules(self) -> float:
        """Read at least once in the minutes in which a counter overflows.

        Raises:
            OSError, ValueError: it cannot be read any more.
        """
        for place, zone in enumerate(self._zones):
            now_uj = _number(zone / "energy_uj")
            used_uj = now_uj - self._last_uj[place]
            if used_uj < 0:
                used_uj += _number(zone / "max_energy_range_uj")
            self._used_uj += used_uj
            self._last_uj[place] = now_uj
        return self._used_uj / 1e6


def rapl_counter(folder: Path = POWERCAP) -> RaplCounter | str:
    """The counter of this computer, or why there is none."""
    # Also AMD's: the driver has kept its name. Zones within a package have a second colon.
    zones = sorted(zone for zone in folder.glob("intel-rapl:*") if zone.name.count(":") == 1)
    if not zones:
        return f"not readable: the kernel shows no RAPL counters ({folder})"
    try:
        return RaplCounter(zones)
    except PermissionError:
        return "not readable: RAPL counters are for root only"
    except (OSError, ValueError) as error:
        return f"not readable: {error}"


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
