"""`flatout serve` under load: replicas are killed, the model is swapped, nothing is lost.

    python campaigns/serving_soak.py [--minutes 10] [--load 0.8] [--replicas 2]

Two runs of `mnist` with different weights. Every input has a known answer by each of them, asked
for before. The limit of the server is measured, all connections are used at once for some seconds,
then requests come at `--load` of the limit on a schedule.
Every minute a replica is killed; the model is swapped to the other run after a third of the time,
and back after two thirds. Counted: answers that are not the known one of the model that had to
answer, requests without any answer, refusals (503 with Retry-After), other statuses; the memory of
the server and its replicas over time; every 10 s throughput, latency, queue, batches and CPUs. Then
SIGTERM under load: what was sent before is answered.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from serving_contestants import (
    GENERATOR,
    Contestant,
    Work,
    load,
    request_bodies,
    rows_of,
    sample_inputs,
    serving,
    train,
)
from soak_timeline import INTERVAL_S, Reading, read_server, timeline
from support import dated, http_load

from flatout.serve import load_search
from flatout.serve.answer_check import is_expected
from flatout.serve.load_records import quantile

RESULTS = Path(__file__).with_name("results")
RUNS = ("serving-mnist", "serving-mnist-other")
SAMPLE_EVERY_S, KILL_EVERY_S = 5.0, 60.0
# A process that has just started still grows.
YOUNG_S = 20.0
# Of all connections at once: the server's memory is that of the most requests it ever had, which
# would otherwise come with a kill or a swap, and look like growth.
FILL_S = 10.0
# More growth than this in the whole soak is not flat.
LARGEST_GROWTH = 0.03


@dataclass(frozen=True)
class Swap:
    """A change of the model, by wall clock."""

    to: int
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class MemorySample:
    """Bytes of the server and of its replicas that are not young; at_s: since the start."""

    at_s: float
    server_bytes: int
    replica_bytes: tuple[int, ...]


@dataclass
class Soak:
    """What was done, and what was seen."""

    swaps: list[Swap] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def main() -> int:
    """Runs the soak, writes the result; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.minutes < 3:
        parser.error("--minutes must be at least 3: two swaps have no room between kills otherwise")
    machine = dated.read_machine()
    work = Work(options.work or Path(tempfile.mkdtemp(prefix="flatout-soak-")))
    for seed, run in enumerate(RUNS):
        train(work, "mnist", run, seed)
    contestant = Contestant(
        "flatout",
        (sys.executable, "-P", "-m", "flatout", "serve", RUNS[0], "--port", "{port}",
         "--replicas", str(options.replicas)),
        environment=work.environment,
    )  # fmt: skip
    bodies = request_bodies(sample_inputs("mnist"))
    log = work.folder / "server.log"
    soak = Soak()
    with serving(contestant, {}, bodies[0], log) as (port, server):
        known = known_answers(work, port, bodies)
        limit = measured_limit(port, bodies, known)
        print(f"limit     {limit:,.0f} answers/s with p99 <= 50 ms")
        rate = options.load * limit
        job = http_load.Job(
            port=port, path="/predict", bodies=bodies, expected=known, users=512, rate_per_s=rate,
            fill_s=FILL_S, warmup_s=2.0, duration_s=60 * options.minutes,
            records=str(work.folder / "records"),
        )  # fmt: skip
        attack(work, job, server, soak)
    records = Path(str(job.records))
    counts = judged(records, soak)
    rows = timeline(
        _read(records), soak.readings, rate_per_s=rate, duration_s=job.duration_s
    )  # fmt: skip
    stop = stopped_under_load(work, contestant, bodies, known, rate / 2)
    more = {"limit": limit, "rate": rate, "stop": stop, "timeline": rows}
    return report(options, machine, soak, counts, more)


def known_answers(work: Work, port: int, bodies: list[str]) -> list[list[dict[str, Any]]]:
    """The answers of both runs to each body.

    Raises:
        RuntimeError: two inputs, or the two runs, have the same answer, so that a mistake would not
            be seen.
    """
    answers = [rows_of(port, bodies)]
    work.flatout("serve", "swap", RUNS[1], "--port", str(port))
    answers.append(rows_of(port, bodies))
    work.flatout("serve", "swap", "--back", "--port", str(port))
    if not all(map(is_expected, answers[0], rows_of(port, bodies))):
        raise RuntimeError("after a swap and back, the answers are other ones")
    every = [row for rows in answers for row in rows]
    for place, row in enumerate(every):
        twins = sum(is_expected(row, other) for other in every) - 1
        if twins > len(every) // 10:
            raise RuntimeError(f"{twins} other answers equal that to input {place}")
    return [list(pair) for pair in zip(*answers, strict=True)]


def measured_limit(port: int, bodies: list[str], known: list[list[dict[str, Any]]]) -> float:
    """The most answers per second with p99 within 50 ms, while the generator compares them, too."""
    levels: list[tuple[float, bool]] = []
    rates: dict[float, float] = {}
    level: float | None = 8.0
    while level is not None:
        job = http_load.Job(
            port=port, path="/predict", bodies=bodies, expected=known, users=int(level),
            duration_s=4.0,
        )  # fmt: skip
        result = load(job)
        rates[level] = result.answers_per_s
        levels.append((level, result.held_share >= load_search.HELD_SHARE))
        level = load_search.next_level(levels, is_whole=True, most=256.0)
    held = [rates[users] for users, is_held in levels if is_held]
    if not held:
        raise RuntimeError("not even one user gets answers within 50 ms")
    return max(held)


@contextlib.contextmanager
def generating(job: http_load.Job) -> Iterator[subprocess.Popen[bytes]]:
    """The generator of requests, in a process of its own that ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(GENERATOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()


def attack(work: Work, job: http_load.Job, server: psutil.Process, soak: Soak) -> None:
    """Sends the requests, kills replicas and swaps models meanwhile."""
    with generating(job) as process:
        kill_and_swap(work, job, server, soak, process)
        assert process.stdout is not None
        result = msgspec.json.decode(process.stdout.read(), type=http_load.LoadResult)
    print(f"load      {result.num_requests:,} requests, generator {result.cpus:.2f} CPUs")


def kill_and_swap(
    work: Work,
    job: http_load.Job,
    server: psutil.Process,
    soak: Soak,
    generator: subprocess.Popen[bytes],
) -> None:
    """Kills replicas and swaps models until the generator has ended."""
    began_s = time.time() + job.fill_s + job.warmup_s
    # Between two kills.
    swaps_at_s = {1: job.duration_s / 3, 0: 2 * job.duration_s / 3}
    swaps_at_s = {to: _off_kills(at_s) for to, at_s in swaps_at_s.items()}
    kill_at_s, sample_at_s, read_at_s = KILL_EVERY_S / 3, 0.0, 0.0
    swapping: threading.Thread | None = None
    while generator.poll() is None:
        now_s = time.time() - began_s
        if not server.is_running():
            soak.problems.append("the server has ended")
            break
        if now_s >= sample_at_s:
            soak.memory.append(memory_sample(server, now_s))
            sample_at_s = now_s + SAMPLE_EVERY_S
        if now_s >= read_at_s:
            replicas = replicas_of(server)
            soak.readings.append(read_server(job.port, now_s, server, replicas, generator.pid))
            read_at_s += INTERVAL_S
        if kill_at_s <= now_s < job.duration_s - 5:
            kill_replica(server, soak)
            kill_at_s += KILL_EVERY_S
        for to, at_s in list(swaps_at_s.items()):
            if now_s >= at_s:
                # It takes as long as a replica needs to start; kills do not wait for it.
                swapping = threading.Thread(target=swap, args=(work, job.port, to, soak))
                swapping.start()
                del swaps_at_s[to]
        time.sleep(0.1)
    if swapping is not None:
        swapping.join()


def _off_kills(at_s: float) -> float:
    """A time 25 s after a kill, when another replica is warm."""
    return math.floor(at_s / KILL_EVERY_S) * KILL_EVERY_S + KILL_EVERY_S / 3 + 25


def replicas_of(server: psutil.Process) -> list[psutil.Process]:
    """The processes that compute, the oldest first."""
    found = []
    for one in server.children(recursive=True):
        try:
            if any("engine.serve" in word for word in one.cmdline()):
                found.append(one)
        except psutil.Error:
            continue
    return sorted(found, key=lambda one: one.create_time())


def kill_replica(server: psutil.Process, soak: Soak) -> None:
    """Kills the oldest replica."""
    replicas = replicas_of(server)
    if not replicas:
        soak.problems.append("there was no replica to kill")
        return
    replicas[0].kill()
    soak.kills.append(time.time())


def swap(work: Work, port: int, to: int, soak: Soak) -> None:
    """Swaps to a run; back by `--back`."""
    began_s = time.time()
    words = ["--back"] if to == 0 else [RUNS[to]]
    try:
        work.flatout("serve", "swap", *words, "--port", str(port))
    except RuntimeError as error:
        soak.problems.append(str(error))
        return
    soak.swaps.append(Swap(to, began_s, time.time()))


def memory_sample(server: psutil.Process, at_s: float) -> MemorySample:
    """What server and replicas hold now."""
    replicas = []
    for one in replicas_of(server):
        try:
            if time.time() - one.create_time() > YOUNG_S:
                replicas.append(one.memory_info().rss)
        except psutil.Error:
            continue
    return MemorySample(at_s, server.memory_info().rss, tuple(replicas))


def judged(records: Path, soak: Soak) -> dict[str, Any]:
    """Counts of answers by what they were."""
    counts: Counter[str] = Counter()
    latencies = []
    for due_s, latency_s, status, _, what in _read(records):
        counts["requests"] += 1
        if status == 200:
            latencies.append(latency_s)
            allowed = allowed_models(due_s, due_s + latency_s, soak.swaps)
            is_right = any(what & (1 << model) for model in allowed)
            counts["right" if is_right else "wrong"] += 1
        elif status == 503 and what:
            counts["refused"] += 1
        elif status == 0:
            counts["timed_out" if what == http_load.TIMED_OUT else "lost"] += 1
        else:
            counts[f"status_{status}"] += 1
    latencies.sort()
    counts["answered"] = len(latencies)
    found: dict[str, Any] = {name: counts[name] for name in sorted(counts)}
    if latencies:
        found["p50_s"], found["p99_s"] = quantile(latencies, 0.5), quantile(latencies, 0.99)
    return found


def _read(records: Path) -> Iterator[tuple[float, float, int, int, int]]:
    size = http_load.RECORD.size
    with open(records, "rb") as file:
        while block := file.read(size * 65536):
            yield from http_load.RECORD.iter_unpack(block[: len(block) // size * size])


def allowed_models(due_s: float, done_s: float, swaps: Sequence[Swap]) -> set[int]:
    """Which models may have answered a request."""
    allowed, current = set[int](), 0
    for one in swaps:
        if done_s < one.began_s:
            break
        if due_s > one.ended_s:
            current = one.to
            continue
        allowed |= {current, one.to}
        current = one.to
    return allowed or {current}


def stopped_under_load(
    work: Work,
    contestant: Contestant,
    bodies: list[str],
    known: list[list[dict[str, Any]]],
    rate: float,
) -> dict[str, Any]:
    """SIGTERM in the middle of a load: what was sent before must be answered."""
    records = work.folder / "stop-records"
    with serving(contestant, {}, bodies[0], work.folder / "server.log") as (port, server):
        job = http_load.Job(
            port=port, path="/predict", bodies=bodies, expected=known, users=64, rate_per_s=rate,
            warmup_s=1.0, duration_s=5.0, timeout_s=5.0, records=str(records),
        )  # fmt: skip
        with generating(job) as process:
            time.sleep(4.0)
            stopped_s = time.time()
            server.send_signal(signal.SIGTERM)
            try:
                code = server.wait(30)
                took_s: float | None = time.time() - stopped_s
            except psutil.TimeoutExpired:
                code, took_s = None, None
            process.wait()
    before = [one for one in _read(records) if one[0] < stopped_s]
    lost = sum(status == 0 for _, _, status, _, _ in before)
    wrong = sum(status == 200 and not what & 1 for _, _, status, _, what in before)
    return {
        "before": len(before), "lost": lost, "wrong": wrong, "exit_code": code, "took_s": took_s
    }  # fmt: skip


def growth(samples: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Growth over the whole time as a share of the mean, with its 95 % interval.

    By least squares; the samples count for fewer, as far as neighbors resemble each other.
    """
    num = len(samples)
    if num < 10:
        return None
    times, values = [at for at, _ in samples], [value for _, value in samples]
    mean_t, mean_v = sum(times) / num, sum(values) / num
    spread = sum((at - mean_t) ** 2 for at in times)
    slope = sum((a - mean_t) * (b - mean_v) for a, b in samples) / spread
    rest = [b - mean_v - slope * (a - mean_t) for a, b in samples]
    variance = sum(one * one for one in rest) / (num - 2)
    together = sum(a * b for a, b in zip(rest[:-1], rest[1:], strict=True))
    alike = min(max(together / max(sum(one * one for one in rest), 1e-9), 0.0), 0.9)
    error = math.sqrt(variance / spread * (1 + alike) / (1 - alike))
    span = (max(times) - min(times)) / mean_v
    return slope * span, (slope - 1.96 * error) * span, (slope + 1.96 * error) * span


def report(
    options: argparse.Namespace,
    machine: Any,
    soak: Soak,
    counts: dict[str, Any],
    more: dict[str, Any],
) -> int:
    """Prints and writes the result; 1 if a promise was broken."""
    # The first minute is for caches to fill.
    kept = [one for one in soak.memory if one.at_s > min(60.0, options.minutes * 6)]
    server = growth([(one.at_s, float(one.server_bytes)) for one in kept])
    replicas = growth(
        [(one.at_s, sum(one.replica_bytes) / len(one.replica_bytes))
         for one in kept if one.replica_bytes]
    )  # fmt: skip
    problems = list(soak.problems)
    for name in ("wrong", "lost", "timed_out"):
        if counts.get(name):
            problems.append(f"{counts[name]:,} {name}")
    problems += [f"{count:,} of {name}" for name, count in counts.items() if "status_" in name]
    for name, found in (("server", server), ("replicas", replicas)):
        text = "too few samples" if found is None else "{:+.1%} [{:+.1%}, {:+.1%}]".format(*found)
        print(f"memory    {name}: {text}")
        if found is not None and found[1] > LARGEST_GROWTH:
            problems.append(f"the memory of the {name} grows ({text})")
    stop = more["stop"]
    if stop["lost"] or stop["wrong"] or stop["exit_code"] != 0:
        problems.append(f"stopped under load: {stop}")
    print(f"answers   {counts}")
    print(f"attacks   {len(soak.kills)} kills, {len(soak.swaps)} swaps; stop: {stop}")
    if len(soak.swaps) < 2:
        problems.append("fewer than two swaps")
    rows = [
        dated.measurement(name, "count", (float(counts.get(name, 0)),), {})
        for name in ("requests", "right", "wrong", "lost", "timed_out", "refused")
    ]
    rows.append(dated.measurement("rate", "requests/s", (more["rate"],), {}))
    details = {
        "counts": counts, **more, "minutes": options.minutes, "kills": len(soak.kills),
        "swaps": [one.ended_s - one.began_s for one in soak.swaps], "server_growth": server,
        "replica_growth": replicas, "problems": problems,
        "memory": [(one.at_s, one.server_bytes, one.replica_bytes) for one in soak.memory],
    }  # fmt: skip
    path = dated.write_result("serving-soak", machine, rows, details, options.out)
    print(f"written   {path}")
    for problem in problems:
        print(f"broken    {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
