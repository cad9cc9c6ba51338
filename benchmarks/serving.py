"""Requests per second within a latency, and latency at one user: flatout serve and its peers.

    python benchmarks/serving.py [--rounds 5] [--peer-python litserve=PATH] [--quick]

The same weights behind `flatout serve`, plain FastAPI (the model in its process), LitServe, BentoML
and Ray Serve: `mnist` as 28x28 numbers in JSON, and a small classifier of texts. A peer runs in its
own interpreter (`--peer-python NAME=PATH`); one that has none, or lacks the package, is left out.
Each peer is first measured with several settings, and uses its best. All servers answer the same
inputs, and their answers must be the same. In every round each is started afresh, in another order:
latency of one user, then as many users as hold p99 <= 50 ms. The generator is a process on the same
machine; its share of the CPUs is in the result.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from serving_contestants import (
    PEERS,
    Contestant,
    Work,
    load,
    request_bodies,
    rows_of,
    sample_inputs,
    serving,
    train,
)
from support import dated, http_load

from flatout.serve import load_search

RESULTS = Path(__file__).with_name("results")
MODELS = ("mnist", "text")
THROUGHPUT_GOAL, LATENCY_GOAL = 2.0, 1.1
MOST_USERS = 256.0
# Users with whom the settings of a peer are compared.
SETTINGS_USERS = 24

SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "fastapi": (
        {"threads": 1},
        {"threads": 2},
        {"workers": 2},
        {"is_async": True},
        {"is_async": True, "workers": 2},
    ),
    "litserve": (
        {"batch": 1},
        {"batch": 8, "wait_s": 0.001},
        {"batch": 32, "wait_s": 0.002},
        {"batch": 32, "wait_s": 0.002, "fast_queue": True},
        {"batch": 32, "wait_s": 0.002, "fast_queue": True, "api_servers": 2},
        {"batch": 16, "wait_s": 0.001, "workers": 2},
    ),
    "bentoml": ({"batch": 32}, {"batch": 32, "threads": 2}, {"batch": 16, "workers": 2}),
    "ray": (
        {"batch": 32},
        {"batch": 32, "wait_s": 0.002},
        {"batch": 16, "replicas": 2},
        {"batch": 32, "is_optimized": True},
    ),
}
PACKAGES = {"fastapi": "fastapi", "litserve": "litserve", "bentoml": "bentoml", "ray": "ray.serve"}


@dataclass(frozen=True)
class Effort:
    """How long is measured."""

    rounds: int
    warmup_s: float
    latency_s: float
    step_s: float


@dataclass
class Measured:
    """What a contestant has reached, by round."""

    answers_per_s: list[float] = field(default_factory=list)
    users: list[float] = field(default_factory=list)
    p50_s: list[float] = field(default_factory=list)
    p99_s: list[float] = field(default_factory=list)
    generator_cpus: list[float] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Measures, prints tables, writes the result; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--quick", action="store_true", help="one round, shorter measurements")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    effort = Effort(1, 0.5, 1.5, 1.5) if options.quick else Effort(options.rounds, 1.0, 5.0, 4.0)
    pythons = dict(one.split("=", 1) for one in options.peer_python)
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    work = Work(options.work or Path(tempfile.mkdtemp(prefix="flatout-serving-")))
    peers = available_peers(pythons)
    measurements: list[dated.Measurement] = []
    details: dict[str, Any] = {"peers": {name: version for name, _, version in peers}}
    is_reached = True
    for model in options.models.split(","):
        contestants = [flatout_contestant(work, model), *peer_contestants(work, model, peers)]
        found = measured(work, model, contestants, effort)
        measurements += measurements_of(model, found)
        details[model] = {name: one.settings for name, one in found.items()}
        is_reached &= report(model, found)
    path = dated.write_result("serving", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if is_reached else 1


def available_peers(pythons: dict[str, str]) -> list[tuple[str, str, str]]:
    """Name, interpreter and version of each peer that can be run."""
    found = []
    for name, package in PACKAGES.items():
        python = pythons.get(name, sys.executable)
        check = (
            # The two make uvicorn fast; the documentation of FastAPI installs them.
            f"import importlib.metadata as m, torch, uvloop, httptools, {package};"
            f"print(m.version('{package.partition('.')[0]}'))"
        )
        done = subprocess.run([python, "-c", check], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found.append((name, python, done.stdout.strip().splitlines()[-1]))
        else:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            print(f"skipped   {name}: {last[0]} (--peer-python {name}=PATH)")
    return found


def flatout_contestant(work: Work, model: str) -> Contestant:
    """`flatout serve` as a user starts it."""
    run = f"serving-{model}"
    train(work, model, run)
    return Contestant(
        "flatout",
        (sys.executable, "-P", "-m", "flatout", "serve", run, "--port", "{port}"),
        environment=work.environment,
    )


def peer_contestants(work: Work, model: str, peers: list[tuple[str, str, str]]) -> list[Contestant]:
    """The peers' programs with the weights of flatout's run."""
    weights = work.folder / f"{model}.pt"
    save_weights(work, f"serving-{model}", weights)
    return [
        Contestant(
            name,
            (python, str(PEERS / f"with_{name}.py"), "--kind", model, "--weights", str(weights),
             "--port", "{port}", "--settings", "{settings}"),
            SETTINGS[name],
        )
        for name, python, _ in peers
    ]  # fmt: skip


def save_weights(work: Work, run: str, path: Path) -> None:
    """A run's weights as a file that torch alone can read."""
    code = (
        "import sys, flatout, torch;"
        "torch.save(flatout.load(sys.argv[1], device='cpu').model.state_dict(), sys.argv[2])"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", code, run, str(path)], env=work.environment, check=True
    )


def measured(
    work: Work, model: str, contestants: list[Contestant], effort: Effort
) -> dict[str, Measured]:
    """Every contestant in every round; those that fail are said and left out."""
    bodies = request_bodies(sample_inputs(model))
    found: dict[str, Measured] = {}
    known: list[dict[str, Any]] | None = None
    racing = []
    for contestant in contestants:
        try:
            settings, rows = best_settings(work, contestant, bodies, effort)
        except RuntimeError as error:
            print(f"skipped   {contestant.name}: {error}")
            continue
        known = known or rows
        wrong = sum(not is_same(one, other) for one, other in zip(known, rows, strict=True))
        if wrong:
            raise RuntimeError(f"{contestant.name} answers {wrong} inputs differently")
        found[contestant.name] = Measured(settings=settings)
        racing.append(contestant)
    for number in range(effort.rounds):
        # Each is first once, so that none is always next to the same one.
        turn = number % len(racing)
        for contestant in racing[turn:] + racing[:turn]:
            measure_round(work, contestant, found[contestant.name], bodies, effort)
    return found


def is_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two rows agree."""
    names = ("label", "probability")
    return http_load.is_same_row({name: first[name] for name in names}, second)


def best_settings(
    work: Work, contestant: Contestant, bodies: list[str], effort: Effort
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings with the highest throughput, and the answers to all bodies."""
    rates, rows, problem = [], [], "no settings"
    for settings in contestant.settings:
        log = work.folder / f"{contestant.name}.log"
        try:
            with serving(contestant, settings, bodies[0], log) as (port, _):
                rows = rows_of(port, bodies)
                if len(contestant.settings) == 1:
                    return settings, rows
                job = http_load.Job(
                    port=port, path="/predict", bodies=bodies, users=SETTINGS_USERS,
                    warmup_s=effort.warmup_s, duration_s=effort.step_s,
                )  # fmt: skip
                rates.append((load(job).answers_per_s, settings))
        except RuntimeError as error:
            problem = str(error)
            continue
        print(f"settings  {contestant.name} {settings}: {rates[-1][0]:,.0f} answers/s", flush=True)
    if not rates:
        raise RuntimeError(problem)
    return max(rates, key=lambda one: one[0])[1], rows


def measure_round(
    work: Work, contestant: Contestant, found: Measured, bodies: list[str], effort: Effort
) -> None:
    """One start of a server: latency of one user, then the most answers in time."""
    log = work.folder / f"{contestant.name}.log"
    with serving(contestant, found.settings, bodies[0], log) as (port, _):
        one = http_load.Job(
            port=port, path="/predict", bodies=bodies, warmup_s=effort.warmup_s,
            duration_s=effort.latency_s,
        )  # fmt: skip
        single = load(one)
        if single.p50_s is None or single.p99_s is None:
            raise RuntimeError(f"{contestant.name} does not answer")
        found.p50_s.append(single.p50_s)
        found.p99_s.append(single.p99_s)
        levels: list[tuple[float, bool]] = []
        results: dict[float, http_load.LoadResult] = {}
        # Where it ended the last time, so that the search is short.
        level: float | None = found.users[-1] if found.users else 8.0
        while level is not None:
            job = http_load.Job(
                port=port, path="/predict", bodies=bodies, users=int(level),
                warmup_s=effort.warmup_s, duration_s=effort.step_s,
            )  # fmt: skip
            results[level] = load(job)
            levels.append((level, results[level].held_share >= load_search.HELD_SHARE))
            level = load_search.next_level(levels, is_whole=True, most=MOST_USERS)
    held = [results[users] for users, is_held in levels if is_held]
    best = max(held, key=lambda one: one.answers_per_s, default=None)
    found.users.append(max((users for users, is_held in levels if is_held), default=1.0))
    found.answers_per_s.append(best.answers_per_s if best else 0.0)
    found.generator_cpus.append(best.cpus if best else 0.0)
    print(
        f"round     {contestant.name:9} {found.answers_per_s[-1]:>8,.0f} answers/s"
        f" with {found.users[-1]:.0f} users, one user {1e3 * found.p50_s[-1]:.2f} ms"
        f" (generator {found.generator_cpus[-1]:.2f} CPUs)",
        flush=True,
    )


def measurements_of(model: str, found: dict[str, Measured]) -> list[dated.Measurement]:
    """The rows of the result."""
    rows = []
    for name, one in found.items():
        for what, unit, samples in (
            ("answers_per_s_in_50ms", "answers/s", one.answers_per_s),
            ("one_user_p50_s", "s", one.p50_s),
            ("one_user_p99_s", "s", one.p99_s),
            ("generator_cpus", "CPUs", one.generator_cpus),
        ):
            conditions = {"settings": one.settings, "users": one.users}
            row = f"{model}/{name}/{what}"
            rows.append(dated.measurement(row, unit, tuple(samples), conditions))
    return rows


def report(model: str, found: dict[str, Measured]) -> bool:
    """Prints a table; whether the goals are reached."""
    print(f"\n{model:10}{'answers/s, p99 <= 50 ms':>26}{'one user p50':>16}{'p99':>10}")
    for name, one in found.items():
        low, high = min(one.answers_per_s), max(one.answers_per_s)
        print(
            f"{name:10}{median(one.answers_per_s):>10,.0f}  [{low:,.0f}, {high:,.0f}]"
            f"{1e3 * median(one.p50_s):>14.2f} ms{1e3 * median(one.p99_s):>8.2f} ms"
        )
    ours, peers = found.get("flatout"), {k: v for k, v in found.items() if k != "flatout"}
    if ours is None or not peers:
        print("nothing to compare with")
        return ours is not None
    best = max(peers, key=lambda name: median(peers[name].answers_per_s))
    ratios = [
        mine / max(theirs, 1e-9)
        for mine, theirs in zip(ours.answers_per_s, peers[best].answers_per_s, strict=True)
    ]
    is_reached = median(ratios) >= THROUGHPUT_GOAL
    print(
        f"throughput x{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of {best},"
        f" goal x{THROUGHPUT_GOAL}"
    )
    if "fastapi" in peers:
        slower = [
            mine / theirs for mine, theirs in zip(ours.p50_s, peers["fastapi"].p50_s, strict=True)
        ]
        is_reached &= median(slower) <= LATENCY_GOAL
        print(
            f"latency    x{median(slower):.2f} [{min(slower):.2f}, {max(slower):.2f}] of plain"
            f" FastAPI, goal x{LATENCY_GOAL}"
        )
    return is_reached


if __name__ == "__main__":
    sys.exit(main())
