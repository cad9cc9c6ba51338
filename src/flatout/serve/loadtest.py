"""Load tests of a server: one load, or loads that rise until a latency breaks."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import RunFailed
from flatout.schema.finding import Finding, Fix
from flatout.schema.loadtest import (
    FromGenerator,
    LoadBegan,
    LoadEnded,
    LoadFile,
    LoadJob,
    LoadSettings,
    LoadStep,
    LoadTick,
)
from flatout.schema.tuning import Load
from flatout.schema.units import counted_text
from flatout.serve import load_records, load_search, server_metrics
from flatout.serve.load_target import LoadRequest, LoadTarget, find_target, short
from flatout.system import atomic_files, clock, cpu_name, port_owner
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.load import LoadWatch
from flatout.system.optional_packages import require_packages

# Of a schedule: with more answers outstanding than connections, requests wait, and are timed.
_LEAST_CONNECTIONS, _MOST_CONNECTIONS = 16, 400
# So much of a core, and the generator itself may be what is slow; so late, and it is.
_SATURATED_CPUS, _LATE_S = 0.95, 0.01
# Fewer requests say little about the slowest hundredth.
_LEAST_REQUESTS = 500


class LoadStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The server was found, and answers. machine: of the generator."""

    settings: LoadSettings
    machine: str


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A second of one load. tick: None in the warm-up."""

    level: float
    duration_s: float
    tick: LoadTick | None = None
    queue_depth: float | None = None


LoadEvent = LoadStarted | LoadProgress | LoadStep


class LoadTest:
    """A load test; what was measured is there even if it is interrupted.

    Raises:
        UsageError: loadtest-not-installed; what `find_target` says.
    """

    def __init__(self, request: LoadRequest) -> None:
        require_packages(
            "loadtest-not-installed", "`flatout loadtest`", ["locust"], extra="loadtest"
        )
        self._request = request
        self._target: LoadTarget | None = None
        self._is_interrupted = False
        self._steps: list[LoadStep] = []
        self._measured: _Measured | None = None
        self._watch: LoadWatch | None = None
        self._at = clock.now_text()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> LoadTest:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def events(self) -> Iterator[LoadEvent]:
        """Measures; gives what is shown.

        Raises:
            RunFailed: loadtest-generator-failed.
        """
        request = self._request
        self._target = find_target(request)
        yield LoadStarted(settings=self._settings(self._target), machine=_machine_text())
        self._watch = LoadWatch()
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="flatout-loadtest-"))
        process = self._open.enter_context(
            JsonProcess(sys.executable, "flatout.serve.load_generator")
        )
        level: float | None = request.first_level
        while level is not None:
            self._measured = _Measured(
                self._job(level, folder), self._target, level, request.until_latency_s
            )
            yield from self._measured.events(process)
            self._end_step()
            yield self._steps[-1]
            level = self._next_level()

    def interrupt(self) -> None:
        """Takes what was measured so far as the result."""
        self._is_interrupted = True
        self._end_step()

    @property
    def has_started(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._steps)

    def result(self) -> LoadFile:
        """What was measured."""
        assert self._target is not None
        best: int | None = 0 if self._steps else None
        if self._request.until_latency_s is not None:
            levels = [level for level, _ in _levels(self._steps)]
            highest = load_search.best_level(_levels(self._steps))
            best = None if highest is None else levels.index(highest)
        file = LoadFile(
            flatout=__version__,
            at=self._at,
            machine=_machine_text(),
            settings=self._settings(self._target),
            steps=tuple(self._steps),
            best=best,
            is_interrupted=self._is_interrupted,
            warnings=tuple(_warnings(self._steps, self._others())),
        )
        return msgspec.structs.replace(file, finding=_finding(file))

    def _others(self) -> Load | None:
        """What other programs took; unknown where the server, on this machine, is one of them."""
        assert self._target is not None
        is_local = port_owner.is_this_machine(self._target.host)
        return None if is_local or self._watch is None else self._watch.load()

    def _settings(self, target: LoadTarget) -> LoadSettings:
        request = self._request
        return LoadSettings(
            url=target.url,
            method=target.method,
            users=None if request.is_rate else int(request.first_level),
            rate_per_s=request.rate_per_s,
            until_latency_s=request.until_latency_s,
            duration_s=request.measured_s,
            warmup_s=request.warmup_s,
            timeout_s=request.timeout_s,
            num_inputs=len(target.bodies),
            request_bytes=max(map(len, target.bodies)),
            is_checked=bool(target.expected),
            model=target.model,
            server=target.server,
        )

    def _job(self, level: float, folder: str) -> LoadJob:
        request, target = self._request, self._target
        assert target is not None
        connections = min(max(math.ceil(level), _LEAST_CONNECTIONS), _MOST_CONNECTIONS)
        return LoadJob(
            url=target.url,
            method=target.method,
            headers=target.headers,
            bodies=target.bodies,
            expected=target.expected,
            users=connections if request.is_rate else int(level),
            rate_per_s=level if request.is_rate else None,
            warmup_s=request.warmup_s,
            duration_s=request.measured_s,
            timeout_s=request.timeout_s,
            records=str(Path(folder) / "records"),
        )

    def _end_step(self) -> None:
        if self._measured is not None and self._measured.has_begun:
            self._steps.append(self._measured.step())
        self._measured = None

    def _next_level(self) -> float | None:
        if self._request.until_latency_s is None or self._steps[-1].num_answered == 0:
            return None
        if self._steps[-1].is_generator_late and not self._steps[-1].is_held:
            return None
        most = math.inf if self._request.is_rate else float(_MOST_CONNECTIONS)
        return load_search.next_level(
            _levels(self._steps), is_whole=not self._request.is_rate, most=most
        )


class _Measured:
    """One load: what its generator reports, and what the server uses and says meanwhile."""

    def __init__(
        self, job: LoadJob, target: LoadTarget, level: float, latency_s: float | None
    ) -> None:
        self._job, self._target, self._level, self._latency_s = job, target, level, latency_s
        self.has_begun = False
        self._ended: LoadEnded | None = None
        self._last_at_s = 0.0
        self._queue_depths: dict[float, float] = {}
        self._pid: int | None = None
        self._cpu_before: dict[tuple[int, float], float] = {}
        self._cpu_after: dict[tuple[int, float], float] = {}
        self._cpu_began_s = self._cpu_ended_s = 0.0
        self._metrics: list[server_metrics.ServerCounts | None] = []

    def events(self, process: JsonProcess) -> Iterator[LoadProgress]:
        """Carries out the job.

        Raises:
            RunFailed: loadtest-generator-failed.
        """
        yield self._progress()
        process.send(self._job)
        while self._ended is None:
            try:
                message = process.receive(FromGenerator)
            except ProcessEnded as error:
                raise RunFailed(
                    "loadtest-generator-failed",
                    "the process that sends the requests has failed.",
                    because=f"it ended with exit code {error.exit_code}",
                    fix="see what it printed, and try fewer --users or a lower --rate",
                    printed=process.printed(),
                ) from error
            if isinstance(message, LoadBegan):
                self._begin()
            elif isinstance(message, LoadTick):
                self._last_at_s = message.at_s
                depth = self._read_metrics()
                if depth is not None:
                    self._queue_depths[message.at_s - 1] = depth
                yield self._progress(message, depth)
            else:
                self._ended = message
                self._read_cpu()
                self._read_metrics()

    def step(self) -> LoadStep:
        """What was measured; up to the last second, if it was interrupted."""
        ended = self._ended
        if ended is None:
            self._read_cpu()
            ended = LoadEnded(measured_s=self._last_at_s, cpu_s=0.0, wall_s=0.0)
        content = b""
        with contextlib.suppress(OSError), atomic_files.open_file(Path(self._job.records)) as file:
            content = file.read()
        records = load_records.unpack_records(content)
        step = load_records.summarized(records, ended, [len(body) for body in self._job.bodies])
        is_held = None
        if self._latency_s is not None:
            num_held = sum(
                one.kind == load_records.ANSWERED and one.latency_s <= self._latency_s
                for one in records
            )
            is_held = bool(records) and num_held >= load_search.HELD_SHARE * len(records)
        return msgspec.structs.replace(
            step,
            users=None if self._job.rate_per_s else self._job.users,
            rate_per_s=self._job.rate_per_s,
            is_held=is_held,
            is_generator_late=(step.generator_cpus or 0.0) > _SATURATED_CPUS
            or (step.lag_s or 0.0) > _LATE_S,
            seconds=tuple(
                msgspec.structs.replace(one, queue_depth=self._queue_depths.get(one.at_s))
                for one in step.seconds
            ),
            server=server_metrics.load_between(self._metrics, self._queue_depths.values()),
            **self._server_cpus(),
        )

    def _progress(self, tick: LoadTick | None = None, depth: float | None = None) -> LoadProgress:
        return LoadProgress(
            level=self._level, duration_s=self._job.duration_s, tick=tick, queue_depth=depth
        )

    def _begin(self) -> None:
        self.has_begun = True
        if port_owner.is_this_machine(self._target.host):
            self._pid = port_owner.pid_on_port(self._target.port)
        if self._pid is not None:
            self._cpu_before = port_owner.tree_cpu_s(self._pid)
        self._cpu_began_s = clock.elapsed_s()
        self._read_metrics()

    def _read_cpu(self) -> None:
        if self._pid is not None:
            self._cpu_after = port_owner.tree_cpu_s(self._pid)
        self._cpu_ended_s = clock.elapsed_s()

    def _read_metrics(self) -> float | None:
        """The depth of the server's queue, if it is a flatout server."""
        if self._target.server is None:
            return None
        counts = server_metrics.read(self._target)
        self._metrics.append(counts)
        return None if counts is None else counts.queue_depth

    def _server_cpus(self) -> dict[str, object]:
        took_s = self._cpu_ended_s - self._cpu_began_s
        if self._pid is None or took_s <= 0 or not self._cpu_after:
            why = "its process was not found on this machine"
            return {"server_cpus": None, "unread": {"server_cpus": why}}
        used_s = port_owner.cpu_s_between(self._cpu_before, self._cpu_after)
        return {"server_cpus": used_s / took_s}


def _levels(steps: Sequence[LoadStep]) -> list[tuple[float, bool]]:
    return [(step.rate_per_s or float(step.users or 0), bool(step.is_held)) for step in steps]


def _warnings(steps: Sequence[LoadStep], others: Load | None) -> Iterator[str]:
    late = sum(step.is_generator_late for step in steps)
    if late:
        where = f" in {late} of {len(steps)} loads" if len(steps) > 1 else ""
        yield (
            f"the generator itself was at its limit{where}: latencies and rates are partly its own;"
            " run it on another machine, or with less load"
        )
    few = min((step.num_requests for step in steps), default=_LEAST_REQUESTS)
    if few < _LEAST_REQUESTS:
        yield (
            f"{counted_text(few, 'request')} in a load: its p99 depends on a few of them; measure"
            " longer (--duration)"
        )
    if others is not None and others.is_busy:
        yield f"other programs used {others.text} of the generator's machine"


def _machine_text() -> str:
    num_cores = cpu_name.num_usable_cores()
    return f"{cpu_name.processor_name()}, {counted_text(num_cores, 'core')}"


def _finding(file: LoadFile) -> Finding | None:
    """What makes a result worthless."""
    num_requests = sum(step.num_requests for step in file.steps)
    last = file.steps[-1] if file.steps else None
    if last is None or not num_requests:
        return None
    errors = last.errors
    because = None
    if errors:
        status = f" {errors[0].status}" if errors[0].status else ""
        because = f"{counted_text(errors[0].count, 'request')}: {errors[0].kind}{status}"
        because += f" ({short(errors[0].example)})" if errors[0].example else ""
    is_gone = last.measured_s < file.settings.duration_s - 1 and bool(errors)
    if file.is_interrupted or not is_gone:
        if any(step.num_answered for step in file.steps):
            return None
        is_gone = False
    return Finding(
        rule="loadtest-server-gone" if is_gone else "loadtest-all-failed",
        severity="error",
        problem="the server stopped answering." if is_gone else "no request got a good answer.",
        because=because,
        fixes=(Fix(text="look at the output of the server, and at what `--input` sends"),),
    )
