"""Does a run of `flatout train` ever take longer with a search than without?

    python benchmarks/never_slower.py [--models charlm,mnist] [--seconds 75] [--rounds 1]
    python benchmarks/never_slower.py --models mnist --neighbours none,loop,training,compile

Each model is trained for as many steps as the plain loop makes in about so many seconds, from an
empty folder: by the plain loop in a script of its own, by `flatout train --tune off` (flatout's
defaults), and with `--tune auto`, including its search. Timed from the start of the process to its
end, in turns, next to each kind of neighbour. The run with a search may take 1.03 x the time of
either, plus 5 s. Each row is stored in the work file as soon as it is measured. Next to others, the
plain loop may take a hundred times as long: it is stopped after six times so many seconds, and not
before it has taken 1.2 times as long as the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from disturbance import Disturbance
from neighbours import KINDS, chosen, neighbours
from support import dated

RESULTS = Path(__file__).with_name("results")
HERE = Path(__file__).resolve().parent
FACTOR, SECONDS = 1.03, 5.0
# name: size. Steps that are short and long, made of convolutions, products and recurrences; one
# whose search finds little.
MODELS = {"mnist": "", "charlm": "tiny", "lstm-text": "tiny", "resnet50": "tiny"}
_TRIED_S = 3.0
# Of the seconds asked for, and of the longest of the others: the plain loop is stopped then.
_MOST_PLAIN = 6
_LONGER_THAN_OTHERS = 1.2
# Of one core: beyond it, a row says that it was disturbed.
OTHERS_SHARE = 0.15


def main() -> int:
    """Measures, prints a table, writes the result; 1 if a run took too long."""
    options = _options()
    if options.child:
        plain(options.child, options.steps)
        return 0
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    print(f"{'':10}{'next to':10}{'steps':>8}{'plain':>9}{'defaults':>9}{'auto':>9}{'allowed':>9}"
          "  trained by auto")  # fmt: skip
    measurements, details, is_reached = [], {}, True
    most_s = _MOST_PLAIN * options.seconds
    for name in options.models:
        steps = steps_in(name, options.seconds)
        for kind in options.neighbours:
            rows: dict[str, list[float]] = {"plain": [], "defaults": [], "auto": []}
            reported: dict[str, Any] = {}
            stopped: list[float] = []
            with neighbours(kind), Disturbance() as others:
                for number in range(options.rounds):
                    # The plain loop is last in the first round: from then on it is known how
                    # long it has to run.
                    order = ["defaults", "auto", "plain"]
                    for way in order[number % 3 :] + order[: number % 3]:
                        longest_s = max((*rows["defaults"], *rows["auto"]), default=0.0)
                        plain_s = max(most_s, _LONGER_THAN_OTHERS * longest_s)
                        took_s, found = timed(name, steps, way, plain_s)
                        rows[way].append(took_s)
                        if way == "plain" and took_s == plain_s:
                            stopped.append(took_s)
                        reported |= found
            is_reached &= _reported(name, kind, steps, rows, reported, stopped)
            if others.share > OTHERS_SHARE and kind == "none":
                print(
                    f"{name:10}disturbed: other programs used {others.share:.0%} of a core",
                    flush=True,
                )
            conditions = {
                "model": name, "size": MODELS[name], "steps": steps, "neighbours": kind,
                "others_share": others.share,
            }  # fmt: skip
            with open(options.work, "a", encoding="utf-8") as file:
                file.write(json.dumps({**conditions, "seconds": rows, "reported": reported}) + "\n")
            measurements += [
                dated.measurement(f"{name} beside {kind}: {way}", "s", tuple(taken), conditions)
                for way, taken in rows.items()
            ]
            details[f"{name} beside {kind}"] = reported
    print(f"goal      auto <= {FACTOR} x plain or defaults + {SECONDS:.0f} s: "
          f"{'reached' if is_reached else 'MISSED'}")  # fmt: skip
    path = dated.write_result("never-slower", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if is_reached else 1


def _reported(
    name: str,
    kind: str,
    steps: int,
    rows: dict[str, list[float]],
    reported: dict[str, Any],
    stopped: list[float],
) -> bool:
    """Prints a row; returns whether the run with its search was fast enough.

    With several rounds the medians are compared: next to others, single runs vary by factors.
    """
    plain_s, defaults_s, auto_s = (statistics.median(taken) for taken in rows.values())
    allowed_s = FACTOR * min(plain_s, defaults_s) + SECONDS
    plain_text = f"{'>' if is_median_stopped(rows['plain'], stopped) else ''}{plain_s:.1f} s"
    print(f"{name:10}{kind:10}{steps:8,}{plain_text:>9}{defaults_s:7.1f} s{auto_s:7.1f} s"
          f"{allowed_s:7.1f} s  {reported.get('search', '')}", flush=True)  # fmt: skip
    return auto_s <= allowed_s


def is_median_stopped(times_s: list[float], stopped_s: list[float]) -> bool:
    """Whether the median is one of the runs that were stopped, or would be above it without.

    A run that was stopped later than the median leaves it where it is.
    """
    return bool(stopped_s) and min(stopped_s) <= statistics.median_high(times_s)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help=f"some of: {', '.join(MODELS)}")
    parser.add_argument(
        "--seconds", type=float, default=75.0, help="approximate seconds of the plain loop"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--neighbours", default="none", help=f"some of: {', '.join(KINDS)}")
    parser.add_argument("--work", type=Path, default=Path("never_slower.jsonl"),
                        help="file with the rows measured so far")  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.models = options.models.split(",") if options.models else list(MODELS)
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    options.neighbours = chosen(options.neighbours)
    return options


def plain(name: str, steps: int) -> None:
    """A plain script: builds everything, trains, saves the weights; prints the step time."""
    import torch
    from never_slower_experiment import experiment

    from flatout.engine.session.session import build
    from flatout.engine.tuner.baseline_loop import BaselineLoop

    built = build(dataclasses.replace(experiment(name, MODELS[name]), steps=steps), 0, None)
    loop = BaselineLoop(built)
    loop.run(2)
    begin_s = time.perf_counter()
    loop.run(steps - 2)
    step_s = (time.perf_counter() - begin_s) / (steps - 2)
    with tempfile.NamedTemporaryFile() as file:
        torch.save(built.model.state_dict(), file)
    print(json.dumps({"step_s": step_s}))


def steps_in(name: str, seconds: float) -> int:
    """How many steps the plain loop makes in about so many seconds."""
    steps = 10
    while True:
        step_s = _plain_step_s(name, steps)
        if steps * step_s >= _TRIED_S:
            return max(10, round(seconds / step_s))
        steps = max(2 * steps, round(1.2 * _TRIED_S / step_s))


def _plain_step_s(name: str, steps: int, most_s: float | None = None) -> float:
    done = _run([sys.executable, str(HERE / "never_slower.py"), "--child", name,
                 "--steps", str(steps)], {}, most_s)  # fmt: skip
    step_s: float = json.loads(done.splitlines()[-1])["step_s"]
    return step_s


def timed(name: str, steps: int, way: str, most_s: float) -> tuple[float, dict[str, Any]]:
    """Seconds from the process's start to its end; of `auto` also the result of its search.

    most_s: of the plain loop, which is stopped then.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        if way == "plain":
            try:
                _plain_step_s(name, steps, most_s)
            except subprocess.TimeoutExpired:
                return most_s, {}
            return time.perf_counter() - begin_s, {}
        argv = [sys.executable, "-m", "flatout", "train", str(HERE / "never_slower_experiment.py"),
                "-s", f"name={name}", "-s", f"size={MODELS[name]}", "-s", f"steps={steps}",
                "--tune", "auto" if way == "auto" else "off", "--json"]  # fmt: skip
        _run(argv, {"FLATOUT_STATE": folder})
        took_s = time.perf_counter() - begin_s
        return took_s, _search_reported(Path(folder)) if way == "auto" else {}


def _run(argv: list[str], environment: dict[str, str], most_s: float | None = None) -> str:
    done = subprocess.run(
        argv, env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=most_s,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _search_reported(folder: Path) -> dict[str, Any]:
    """What the run's events report about its search."""
    for path in folder.rglob("events.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if "decision" in event:
                decision = event["decision"]
                what = "defaults" if decision["is_default"] else ", ".join(
                    rung["name"] for rung in decision["rungs"][2:]
                )  # fmt: skip
                return {"search": f"{what} ({decision['search_s']:.1f} s)", "decision": decision}
    return {"search": "no search"}


if __name__ == "__main__":
    sys.exit(main())
