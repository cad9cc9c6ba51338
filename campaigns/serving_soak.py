"""`flatout serve` under load: replicas are killed, the model is swapped, nothing is lost.

    python campaigns/serving_soak.py [--minutes 10] [--load 0.8] [--replicas 2]

Two runs of `mnist` with different weights. Every input has a known answer by each of them, asked
for before. Warm-up: all connections are used at once while the model is swapped to the other run
and back. Then, minute by minute, the limit of the server is measured, and requests come at `--load`
of it on a schedule: the speed of a machine changes, and 80 % of a limit that it had a while ago may
be more than it can do. The limit is measured once more at the end.

In every minute a replica is killed; the model is swapped to the other run after a third of the
time, and back after two thirds. Counted: answers that are not the known one of the model that had
to answer, requests without any answer, refusals (503 with Retry-After), other statuses; every 10 s
throughput, latency, queue, batches and CPUs. Then SIGTERM under load: what was sent before is
answered.

Memory of the server and of its replicas is flat if its slope over the time after the warm-up is
(`growth`). A step is left out only where batches become larger than any before them: more requests
are then on their way to replicas at once, and a process keeps the memory of the most that it had.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
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
from soak_timeline import INTERVAL_S, Reading, read_metrics, read_server, timeline
from support import dated, http_load

from flatout.serve import load_search
from flatout.serve.answer_check import is_expected
from flatout.serve.load_records import quantile

RESULTS = Path(__file__).with_name("results")
RUNS = ("serving-mnist", "serving-mnist-other")
MINUTE_S, SAMPLE_EVERY_S = 60.0, 5.0
# In a minute; another replica is warm when a model is swapped in.
KILL_AT_S, SWAP_AT_S = 20.0, 45.0
MOST_CONNECTIONS = 512
# Both swaps of the warm-up take about 10 s.
WARM_UP_S = 30.0
PROBE_S = 3.0
# A process that has just started still grows.
YOUNG_S = 20.0
# More growth than this in the whole soak is not flat.
LARGEST_GROWTH = 0.03
# A limit that differs by more has not been one limit.
STEADY = 0.8


@dataclass(frozen=True)
class Swap:
    """A change of the model, by wall clock."""

    to: int
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class MemorySample:
    """Bytes of the server and of its replicas that are not young; at_s: since the warm-up.

    batch_limit: the most samples in a batch; 0 where it is not known.
    """

    at_s: float
    server_bytes: int
    replica_bytes: tuple[int, ...]
    batch_limit: float


@dataclass(frozen=True)
class Minute:
    """limit: measured right before it, in answers/s. num_unsent: requests that were due and not
    even sent, long after its end: it was an overload.
    """

    limit: float
    rate: float
    records: Path
    readings: tuple[Reading, ...]
    num_unsent: int


@dataclass
class Soak:
    """What was done, and what was seen. began_s: wall clock."""

    began_s: float = field(default_factory=time.time)
    minutes: list[Minute] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """A server with requests for it, and their known answers."""

    work: Work
    port: int
    process: psutil.Process
    bodies: list[str]
    known: list[list[dict[str, Any]]]

    def job(self, users: int, duration_s: float, **more: Any) -> http_load.Job:
        """Requests to it."""
        return http_load.Job(
            port=self.port, path="/predict", bodies=self.bodies, expected=self.known, users=users,
            duration_s=duration_s, **more,
        )  # fmt: skip


def main() -> int:
    """Runs the soak, writes the result; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.minutes < 3:
        parser.error("--minutes must be at least 3: two swaps have no room otherwise")
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
    with serving(contestant, {}, bodies[0], log) as (port, process):
        known = known_answers(work, port, bodies)
        target = Target(work, port, process, bodies, known)
        warm_up(target)
        limit, users = measured_limit(target)
        print(f"limit     {limit:,.0f} answers/s with p99 <= 50 ms, {users} users", flush=True)
        soak = Soak()
        swap_to = {options.minutes // 3: 1, 2 * options.minutes // 3: 0}
        for number in range(options.minutes):
            if number:
                limit = probed_limit(target, users)
            attack(target, soak, limit, options.load, swap_to.get(number))
        limits = [*(one.limit for one in soak.minutes), probed_limit(target, users)]
    counts = judged([one.records for one in soak.minutes], soak)
    stop = stopped_under_load(work, contestant, bodies, known, soak.minutes[-1].rate / 2)
    more = {"limits": limits, "stop": stop, "timeline": list(timeline_of(soak))}
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


def warm_up(target: Target) -> None:
    """All connections at once, and a swap there and back meanwhile: memory that a server takes once
    is taken.
    """
    with generating(target.job(MOST_CONNECTIONS, WARM_UP_S)) as process:
        time.sleep(2.0)
        target.work.flatout("serve", "swap", RUNS[1], "--port", str(target.port))
        target.work.flatout("serve", "swap", "--back", "--port", str(target.port))
        process.wait()


def measured_limit(target: Target) -> tuple[float, int]:
    """The most answers per second with p99 within 50 ms, while the generator compares them, too;
    and the number of users who got them.
    """
    levels: list[tuple[float, bool]] = []
    rates: dict[float, float] = {}
    level: float | None = 8.0
    while level is not None:
        result = load(target.job(int(level), 4.0))
        rates[level] = result.answers_per_s
        levels.append((level, result.held_share >= load_search.HELD_SHARE))
        level = load_search.next_level(levels, is_whole=True, most=256.0)
    held = {users: rates[users] for users, is_held in levels if is_held}
    if not held:
        raise RuntimeError("not even one user gets answers within 50 ms")
    best = max(held, key=lambda users: held[users])
    return held[best], int(best)


def probed_limit(target: Target, users: int) -> float:
    """The limit once more, in a few seconds: with as many users as before, or fewer."""
    while True:
        result = load(target.job(users, PROBE_S, warmup_s=0.5))
        if result.held_share >= load_search.HELD_SHARE or users == 1:
            return result.answers_per_s
        users //= 2


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


def attack(target: Target, soak: Soak, limit: float, share: float, swap_to: int | None) -> None:
    """A minute of requests at a share of the limit, with a kill, and a swap if there is one."""
    number, rate = len(soak.minutes), share * limit
    records = target.work.folder / f"records-{number}"
    job = target.job(
        MOST_CONNECTIONS, MINUTE_S, rate_per_s=rate, warmup_s=1.0, records=str(records)
    )  # fmt: skip
    with generating(job) as process:
        readings = kill_and_swap(target, soak, process, job.warmup_s, swap_to)
        assert process.stdout is not None
        result = msgspec.json.decode(process.stdout.read(), type=http_load.LoadResult)
    soak.minutes.append(Minute(limit, rate, records, tuple(readings), result.num_unsent))
    p99 = "none" if result.p99_s is None else f"{1e3 * result.p99_s:,.0f} ms"
    print(
        f"minute    {number + 1}: limit {limit:,.0f}, {rate:,.0f} due, "
        f"{result.num_answered / MINUTE_S:,.0f} answered a second, p99 {p99}, generator "
        f"{result.cpus:.2f} CPUs",
        flush=True,
    )


def kill_and_swap(
    target: Target,
    soak: Soak,
    generator: subprocess.Popen[bytes],
    warmup_s: float,
    swap_to: int | None,
) -> list[Reading]:
    """Kills a replica and swaps models until the generator has ended."""
    began_s = time.time() + warmup_s
    kill_at_s, sample_at_s, read_at_s = KILL_AT_S, 0.0, 0.0
    readings = []
    swapping: threading.Thread | None = None
    while generator.poll() is None:
        now_s = time.time() - began_s
        if not target.process.is_running():
            soak.problems.append("the server has ended")
            break
        if now_s >= sample_at_s:
            soak.memory.append(memory_sample(target, time.time() - soak.began_s))
            sample_at_s = now_s + SAMPLE_EVERY_S
        if now_s >= read_at_s:
            replicas = replicas_of(target.process)
            readings.append(
                read_server(target.port, now_s, target.process, replicas, generator.pid)
            )
            read_at_s += INTERVAL_S
        if now_s >= kill_at_s:
            kill_replica(target.process, soak)
            kill_at_s = math.inf
        if swap_to is not None and swapping is None and now_s >= SWAP_AT_S:
            # It takes as long as a replica needs to start.
            words = (target.work, target.port, swap_to, soak)
            swapping = threading.Thread(target=swap, args=words)
            swapping.start()
        time.sleep(0.1)
    if swapping is not None:
        swapping.join()
    return readings


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


def memory_sample(target: Target, at_s: float) -> MemorySample:
    """What server and replicas hold now."""
    replicas = []
    for one in replicas_of(target.process):
        try:
            if time.time() - one.create_time() > YOUNG_S:
                replicas.append(one.memory_info().rss)
        except psutil.Error:
            continue
    limit = read_metrics(target.port).get("flatout_serve_batch_limit_samples", 0.0)
    return MemorySample(at_s, target.process.memory_info().rss, tuple(replicas), limit)


def judged(records: Sequence[Path], soak: Soak) -> dict[str, Any]:
    """Counts of answers by what they were."""
    counts: Counter[str] = Counter(unsent=sum(one.num_unsent for one in soak.minutes))
    latencies = []
    for due_s, latency_s, status, _, what in itertools.chain.from_iterable(map(_read, records)):
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


def timeline_of(soak: Soak) -> Iterator[dict[str, Any]]:
    """The timelines of all minutes, one after the other."""
    for number, one in enumerate(soak.minutes):
        rows = timeline(
            _read(one.records), one.readings, rate_per_s=one.rate, duration_s=MINUTE_S
        )  # fmt: skip
        for row in rows:
            yield {"minute": number + 1, "limit": one.limit, "rate": one.rate, **row}


def growth(
    samples: Sequence[tuple[float, float]], levels: Sequence[float] | None = None
) -> tuple[float, float, float] | None:
    """Growth over the whole time as a share of the mean, with its 95 % interval.

    By least squares; the samples count for fewer, as far as neighbors resemble each other.

    Args:
        samples: time and value.
        levels: of each sample; those of a level have a mean of their own, and all the same slope.
            None: there is one.
    """
    num = len(samples)
    if num < 10:
        return None
    grouped: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for level, sample in zip(levels or [0.0] * num, samples, strict=True):
        grouped[level].append(sample)
    pairs: list[tuple[float, float]] = []
    for members in grouped.values():
        mean_t, mean_v = (sum(column) / len(members) for column in zip(*members, strict=True))
        pairs += [(at - mean_t, value - mean_v) for at, value in members]
    spread = sum(at**2 for at, _ in pairs)
    free = num - 1 - len(grouped)
    if spread == 0 or free <= 0:
        return None
    slope = sum(at * value for at, value in pairs) / spread
    rest = [value - slope * at for at, value in pairs]
    variance = sum(one * one for one in rest) / free
    together = sum(a * b for a, b in zip(rest[:-1], rest[1:], strict=True))
    alike = min(max(together / max(sum(one * one for one in rest), 1e-9), 0.0), 0.9)
    error = math.sqrt(variance / spread * (1 + alike) / (1 - alike))
    times = [at for at, _ in samples]
    span = (max(times) - min(times)) * num / sum(value for _, value in samples)
    return slope * span, (slope - 1.96 * error) * span, (slope + 1.96 * error) * span


def memory_growth(memory: Sequence[MemorySample]) -> dict[str, tuple[float, float, float] | None]:
    """Growth of the server and of its replicas, with a level for each size of batches that is
    larger than all before it.
    """
    with_replicas = [one for one in memory if one.replica_bytes]
    server = [float(one.server_bytes) for one in memory]
    replicas = [sum(one.replica_bytes) / len(one.replica_bytes) for one in with_replicas]
    found = {}
    for name, kept, values in (
        ("server", memory, server), ("replicas", with_replicas, replicas)
    ):  # fmt: skip
        samples = [(one.at_s, value) for one, value in zip(kept, values, strict=True)]
        largest = itertools.accumulate((one.batch_limit for one in kept), max)
        found[name] = growth(samples, list(largest))
    return found


def steps_of(memory: Sequence[MemorySample]) -> list[tuple[float, float]]:
    """Each size of batches that was larger than all before, and the server's mean memory then."""
    grouped: dict[float, list[int]] = defaultdict(list)
    largest = itertools.accumulate((one.batch_limit for one in memory), max)
    for limit, one in zip(largest, memory, strict=True):
        grouped[limit].append(one.server_bytes)
    return [(limit, sum(values) / len(values)) for limit, values in grouped.items()]


def report(
    options: argparse.Namespace,
    machine: Any,
    soak: Soak,
    counts: dict[str, Any],
    more: dict[str, Any],
) -> int:
    """Prints and writes the result; 1 if a promise was broken."""
    grown, problems = memory_growth(soak.memory), list(soak.problems)
    for name in ("wrong", "lost", "timed_out"):
        if counts.get(name):
            problems.append(f"{counts[name]:,} {name}")
    problems += [f"{count:,} of {name}" for name, count in counts.items() if "status_" in name]
    for name, found in grown.items():
        text = "too few samples" if found is None else "{:+.1%} [{:+.1%}, {:+.1%}]".format(*found)
        print(f"memory    {name}: {text}")
        if found is not None and found[1] > LARGEST_GROWTH:
            problems.append(f"the memory of the {name} grows ({text})")
    for limit, mean in steps_of(soak.memory):
        print(f"memory    with batches of up to {limit:.0f}: {mean / 2**20:.1f} MiB")
    stop, limits = more["stop"], more["limits"]
    if stop["lost"] or stop["wrong"] or stop["exit_code"] != 0:
        problems.append(f"stopped under load: {stop}")
    print(f"answers   {counts}")
    print(f"attacks   {len(soak.kills)} kills, {len(soak.swaps)} swaps; stop: {stop}")
    if len(soak.swaps) < 2:
        problems.append("fewer than two swaps")
    notes = list(doubts(limits, soak))
    rows = [
        dated.measurement(name, "count", (float(counts.get(name, 0)),), {})
        for name in ("requests", "right", "wrong", "lost", "timed_out", "refused")
    ]
    rates = tuple(one.rate for one in soak.minutes)
    rows.append(dated.measurement("rate", "requests/s", rates, {}))
    rows.append(dated.measurement("limit", "answers/s", tuple(limits), {}))
    details = {
        "counts": counts, **more, "minutes": options.minutes, "kills": len(soak.kills),
        "swaps": [one.ended_s - one.began_s for one in soak.swaps], "growth": grown,
        "steps": steps_of(soak.memory), "problems": problems, "notes": notes,
        "memory": [msgspec.to_builtins(one) for one in soak.memory],
    }  # fmt: skip
    path = dated.write_result("serving-soak", machine, rows, details, options.out)
    print(f"written   {path}")
    for label, texts in (("note", notes), ("broken", problems)):
        for text in texts:
            print(f"{label:10}{text}")
    return 1 if problems else 0


def doubts(limits: Sequence[float], soak: Soak) -> Iterator[str]:
    """What keeps the result from being one at a share of one limit."""
    low, high = min(limits), max(limits)
    if low < STEADY * high:
        yield (
            f"the machine's speed has changed: the limit was {limits[0]:,.0f} answers/s at the "
            f"start, {limits[-1]:,.0f} at the end, and between {low:,.0f} and {high:,.0f}"
        )
    for number, one in enumerate(soak.minutes):
        if one.num_unsent:
            yield f"minute {number + 1} was an overload: {one.num_unsent:,} requests were not sent"


if __name__ == "__main__":
    sys.exit(main())
