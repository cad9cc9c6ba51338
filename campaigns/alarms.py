"""Planted faults are found within 30 s, and healthy trainings raise no alarm.

    python campaigns/alarms.py [--seeds 3] [--hours 1] [--real] [--only RULE ...]
    python campaigns/alarms.py --healthy-only --healthy-minutes 60

On a simulated clock, every kind of fault is planted in a training, and every shape of healthy
training runs for hours, second by second through the monitor's own state machine. With --real,
what can be planted on a CPU is planted in real trainings by `flatout train`, watched by a real
`flatout monitor`, which hands its alarms to a command; their own recorders must have warned in the
run as well. Then a healthy training runs for some minutes, next to a busy neighbor for half of it.
--healthy-only makes nothing but that healthy training, on one thread, next to whatever else runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import Measurement, measurement, read_machine, write_result
from support.simulated_run import BEGAN, FAULTS, HEALTHY, Fault, Shape, Simulation

from flatout.monitor.alarms import Alarms

RESULTS = Path(__file__).with_name("results")
LIMIT_S = 30.0


def simulated(
    shape: Shape, fault: Fault | None, seconds: int, seed: int
) -> list[tuple[str, float]]:
    """The rules of the alarms that were raised, with the simulated second."""
    alarms = Alarms(can_spill=True)
    return [
        (alarm.finding.rule, alarm.at - BEGAN)
        for machine, runs in Simulation(shape, fault, seed).samples(seconds)
        for alarm in alarms.take(machine, runs)
        if alarm.state == "raised"
    ]


def plant(seeds: int) -> tuple[list[Measurement], list[str]]:
    """Plants each fault at several times; gives how long each took, and what went wrong."""
    measured, broken = [], []
    for shape, fault in FAULTS:
        delays = []
        for seed in range(seeds):
            # Flatness is about a run's beginning.
            later = 0.0 if fault.rule == "loss-flat" else 37.0 * seed
            planted = replace(fault, at_s=fault.at_s + later)
            found = simulated(shape, planted, int(planted.at_s) + 60, seed + 1)
            delays += [at - planted.at_s for rule, at in found if rule == fault.rule][:1]
            others = [rule for rule, _ in found if rule != fault.rule]
            if others:
                broken.append(f"{fault.rule}: also raised {', '.join(others)}")
        if len(delays) < seeds or max(delays) > LIMIT_S:
            broken.append(f"{fault.rule}: found after {delays} s")
        if delays:
            where = {"clock": "simulated", "planted": seeds}
            measured.append(measurement(f"{fault.rule} until raised", "s", tuple(delays), where))
            print(f"{fault.rule:24} found {len(delays)}/{seeds}, at most {max(delays):5.1f} s")
    return measured, broken


def watch_healthy(hours: float, seeds: int) -> tuple[int, list[str]]:
    """Runs every healthy shape; gives the number of trainings, and what was raised."""
    broken = []
    for shape in HEALTHY:
        found = [
            f"{shape.name}: {rule} after {at:.0f} s"
            for seed in range(seeds)
            for rule, at in simulated(shape, None, int(hours * 3600), seed + 1)
        ]
        print(f"{shape.name:34} {seeds} x {hours:g} h, alarms: {len(found)}")
        broken += found
    return len(HEALTHY) * seeds, broken


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="so many of each")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated, of each healthy one")
    parser.add_argument("--real", action="store_true", help="real trainings, too")
    parser.add_argument("--only", nargs="*", default=[], help="of the real faults, these")
    parser.add_argument("--healthy-minutes", type=float, default=10.0, help="of a real one")
    parser.add_argument(
        "--healthy-only", action="store_true", help="nothing but a real healthy one"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    return parser.parse_args()


def only_healthy(minutes: float, out: Path) -> int:
    """A healthy training and nothing else; writes the result; 1 if an alarm was raised."""
    from alarm_runs import real_healthy

    details, broken = real_healthy(minutes, has_neighbors=False)
    print(*broken, sep="\n")
    print(write_result("alarms-healthy", read_machine(), [], details, out))
    return 1 if broken else 0


def main() -> int:
    """Runs both parts, writes the result; 1 if a fault was missed or an alarm was false."""
    options = _options()
    if options.healthy_only:
        return only_healthy(options.healthy_minutes, options.out)
    began_s = time.monotonic()
    measured, broken = plant(options.seeds)
    num_healthy, false = watch_healthy(options.hours, options.seeds)
    details = {
        "healthy": {
            "trainings": num_healthy, "hours_each": options.hours, "alarms": false,
            "shapes": [shape.name for shape in HEALTHY],
        },
        "simulated_s": round(time.monotonic() - began_s, 1),
    }  # fmt: skip
    broken += false
    if options.real:
        from alarm_runs import real_faults, real_healthy

        more, problems = real_faults(options.only)
        measured += more
        details["real_healthy"], false = real_healthy(options.healthy_minutes)
        broken += [*problems, *false]
    details["broken"] = broken
    print(*broken, sep="\n")
    print(write_result("alarms", read_machine(), measured, details, options.out))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
