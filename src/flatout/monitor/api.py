"""`flatout monitor`: samples into daily files, alarms, an exporter."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.errors import FlatoutError
from flatout.monitor.alarms import Alarms
from flatout.monitor.run_sample import RunSample, run_sample
from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding, finding_from
from flatout.schema.machine_sample import MachineSample
from flatout.schema.run_lines import Progress
from flatout.schema.units import parse_bytes
from flatout.system import metrics_server, paths
from flatout.system.alarm_delivery import AlarmDelivery, check_webhook
from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.machine_sampler import MachineSampler
from flatout.system.signals import Interrupts
from flatout.system.store import daily_files
from flatout.system.store.daily_files import DailyFiles
from flatout.system.store.run_watch import RunWatch
from flatout.system.wsl import has_windows_driver

if TYPE_CHECKING:
    from flatout.monitor.exporter import MetricsServer, Report, ReportCollector

# So often Ctrl-C is noticed.
_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class MonitorRequest:
    """What is asked of a monitor.

    every_s: between samples. days, keep: of the daily files. address: of the exporter, as typed;
    None: no exporter. has_dcgm_names: it gives dcgm-exporter's names. is_demo: an invented machine,
    of which nothing is stored.
    """

    every_s: float = 2.0
    days: int = 14
    keep: str = "1GiB"
    address: str | None = None
    has_dcgm_names: bool = False
    webhook: str | None = None
    command: str | None = None
    is_demo: bool = False


@dataclass(frozen=True, kw_only=True)
class Began:
    """The monitor has begun. folder: of its files; None for a demo. url: of its metrics."""

    folder: str | None
    url: str | None


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A sample, the runs that train with their newest progress, and the news.

    alarms: raised or cleared by it. num_raised: alarms that are raised now.
    problems: of the monitor itself, each reported once.
    """

    sample: MachineSample
    runs: dict[str, Progress | None]
    alarms: list[Alarm]
    num_raised: int
    problems: list[Finding]


def interrupts() -> Interrupts:
    """Ctrl-C as a count, while the value is open."""
    return Interrupts()


def monitor(request: MonitorRequest, interrupts: Interrupts) -> Iterator[Began | Tick]:
    """Samples until it is interrupted.

    Raises:
        UsageError: bad-address, bad-size, bad-webhook, port-in-use, monitor-running,
            folder-not-writable.
    """
    keep_bytes = parse_bytes(request.keep, "--keep")
    if request.webhook is not None:
        check_webhook(request.webhook)
    folder = None if request.is_demo else daily_files.monitor_folder()
    with ExitStack() as stack:
        # First, what may be refused.
        collector, url = _exporter(request, stack)
        files = None
        if folder is not None:
            opened = DailyFiles(folder, days=request.days, keep_bytes=keep_bytes)
            files = stack.enter_context(opened)
        delivery = stack.enter_context(AlarmDelivery(request.webhook, request.command))
        sampler = stack.enter_context(
            MachineSampler(
                "demo" if request.is_demo else "auto",
                every_s=request.every_s,
                paths=[str(path) for path in _watched_folders()],
            )
        )
        yield Began(folder=None if folder is None else str(folder), url=url)
        session = _Session(request, sampler, files, delivery)
        next_s = elapsed_s()
        while not interrupts.count:
            tick = session.tick()
            if collector is not None:
                collector.report = session.report(tick)
            yield tick
            next_s = max(next_s + request.every_s, elapsed_s())
            while not interrupts.count and elapsed_s() < next_s:
                sleep_s(max(0.0, min(_POLL_S, next_s - elapsed_s())))


class _Session:
    """What is kept from tick to tick."""

    def __init__(
        self,
        request: MonitorRequest,
        sampler: MachineSampler,
        files: DailyFiles | None,
        delivery: AlarmDelivery,
    ) -> None:
        self._sampler = sampler
        self._files = files
        self._delivery = delivery
        self._watch = None if request.is_demo else RunWatch()
        self._alarms = Alarms(
            socket.gethostname(), can_spill=has_windows_driver(), every_s=request.every_s
        )
        self._progress: dict[str, Progress] = {}
        self._num_samples = 0
        # The rule of what keeps samples from being stored; None where they are.
        self._unstored: str | None = None

    def tick(self) -> Tick:
        """Takes a sample, stores it, and decides what is wrong."""
        sample = self._sampler.take()
        self._num_samples += 1
        readings = self._watch.take() if self._watch is not None else []
        runs = [run_sample(reading, sample.at) for reading in readings]
        alarms = self._alarms.take(sample, runs)
        problems = self._store(sample, alarms)
        for alarm in alarms:
            self._delivery.send(alarm)
        return Tick(
            sample=sample,
            runs=self._newest(runs),
            alarms=alarms,
            num_raised=len(self._alarms.present),
            problems=[*problems, *self._delivery.problems()],
        )

    def report(self, tick: Tick) -> Report:
        """The tick for the exporter."""
        from flatout.monitor.exporter import Report, RunReport

        return Report(
            sample=tick.sample,
            runs=tuple(
                RunReport(id=name, progress=line) for name, line in tick.runs.items() if line
            ),
            alarms=tuple(self._alarms.present),
            num_samples=self._num_samples,
        )

    def _newest(self, runs: list[RunSample]) -> dict[str, Progress | None]:
        for run in runs:
            lines = [line for line in run.lines if isinstance(line, Progress)]
            if lines:
                self._progress[run.id] = lines[-1]
        training = [run.id for run in runs if run.is_in_use]
        self._progress = {
            name: line for name, line in self._progress.items() if name in {run.id for run in runs}
        }
        return {name: self._progress.get(name) for name in training}

    def _store(self, sample: MachineSample, alarms: list[Alarm]) -> list[Finding]:
        """Stores a sample and the alarms that it raises or clears; of what goes on keeping it from
        that, only the first is reported.
        """
        if self._files is None:
            return []
        try:
            self._files.append(sample)
            for alarm in alarms:
                self._files.append_alarm(alarm)
        except FlatoutError as error:
            if self._unstored == error.rule:
                return []
            self._unstored = error.rule
            return [finding_from(error, "warning")]
        self._unstored = None
        return []


def _watched_folders() -> list[Path]:
    return [paths.state_folder(), *paths.data_folders()]


def _exporter(
    request: MonitorRequest, stack: ExitStack
) -> tuple[ReportCollector | None, str | None]:
    """The exporter and the address of its metrics; None where none is wanted."""
    if request.address is None:
        return None, None
    host, port = metrics_server.parse_address(request.address)
    from flatout.monitor import dcgm, exporter

    hostname = socket.gethostname()
    collector = exporter.ReportCollector(
        (lambda report: dcgm.dcgm_families(report, hostname))
        if request.has_dcgm_names
        else exporter.families
    )

    def start(host: str, port: int) -> MetricsServer:
        return exporter.MetricsServer(collector, host, port)

    server = metrics_server.started(host, port, start)
    stack.callback(server.close)
    return collector, f"http://{f'[{host}]' if ':' in host else host}:{server.port}/metrics"
