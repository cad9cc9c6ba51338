"""`flatout monitor`: a live line on a terminal, alarms everywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.live import Live
from rich.text import Text

from flatout.cli.render import show, wording
from flatout.monitor.api import Began, Tick
from flatout.monitor.grafana import GrafanaFolder
from flatout.schema.alarm import Alarm
from flatout.schema.machine_sample import GpuSample, MachineSample
from flatout.schema.run_lines import Progress
from flatout.schema.units import (
    bytes_text,
    count_text,
    counted_text,
    percent_text,
    rate_text,
)

_MOST_RUNS = 3
_GPUS_IN_FULL = 2


class MonitorDisplay:
    """Shows a monitor at work, and sums it up.

    Args:
        is_quiet: everything goes to stderr, since stdout carries a document.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._console = show.make_console(is_error=is_quiet)
        is_alive = show.is_alive(self._console)
        self._live = Live(console=self._console, auto_refresh=False) if is_alive else None
        self._began: Began | None = None
        self._alarms: list[Alarm] = []
        self._num_samples = 0
        self._source = ""

    def __enter__(self) -> MonitorDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def summary(self) -> dict[str, Any]:
        """What has happened, for `--json`."""
        began = self._began
        return {
            "folder": began.folder if began else None,
            "metrics": began.url if began else None,
            "source": self._source,
            "num_samples": self._num_samples,
            "alarms": self._alarms,
        }

    def take(self, news: Began | Tick) -> None:
        """Shows what is new."""
        if isinstance(news, Began):
            self._began = news
            stored = wording.home_text(news.folder) if news.folder else "not stored (--demo)"
            lines = [("samples", stored)]
            if news.url:
                lines.append(("metrics", news.url))
            show.print_lines(self._console, [*lines, ("end", "Ctrl-C")])
            return
        self._num_samples += 1
        self._source = news.sample.source
        for alarm in news.alarms:
            self._alarms.append(alarm)
            self._print_alarm(alarm)
        for finding in news.problems:
            show.print_finding(finding, self._console)
        if self._live is not None:
            self._live.start()
            text = Text(live_text(news), no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)

    def _print_alarm(self, alarm: Alarm) -> None:
        at = datetime.fromtimestamp(alarm.at, UTC).astimezone().strftime("%H:%M:%S")
        is_raised = alarm.state == "raised"
        head = Text.assemble(
            (f"{at}  ", "dim"), (alarm.subject, "bold"),
            ("" if is_raised else f"  cleared: {alarm.finding.rule}", "green"),
        )  # fmt: skip
        self._console.print(head, soft_wrap=True)
        if is_raised:
            show.print_finding(alarm.finding, self._console)


def live_text(tick: Tick) -> str:
    """The present state in one line."""
    parts = [*_gpu_texts(tick.sample), *_host_texts(tick.sample)]
    runs = list(tick.runs.items())
    parts += [_run_text(name, line) for name, line in runs[:_MOST_RUNS]]
    if len(runs) > _MOST_RUNS:
        parts.append(f"{len(runs) - _MOST_RUNS} more")
    if tick.num_raised:
        # First: the end of a line is cut where the terminal is narrow.
        parts.insert(0, counted_text(tick.num_raised, "alarm"))
    return wording.DOT.join(parts)


def _gpu_texts(sample: MachineSample) -> list[str]:
    if not sample.gpus:
        return [] if sample.reason is None else ["no GPU"]
    is_short = len(sample.gpus) > _GPUS_IN_FULL
    return [_gpu_text(gpu, is_short=is_short) for gpu in sample.gpus]


def _gpu_text(gpu: GpuSample, *, is_short: bool) -> str:
    used = "-" if gpu.utilization is None else percent_text(gpu.utilization, 0)
    parts = [f"GPU {gpu.index} {used}"]
    if not is_short:
        if gpu.temperature_c is not None:
            parts.append(f"{gpu.temperature_c:.0f} °C")
        if gpu.power_w is not None:
            parts.append(f"{gpu.power_w:.0f} W")
        if gpu.used_bytes is not None:
            parts.append(bytes_text(gpu.used_bytes))
    return " ".join(parts)


def _host_texts(sample: MachineSample) -> list[str]:
    host = sample.host
    texts = []
    if host.utilization is not None:
        texts.append(f"CPU {percent_text(host.utilization, 0)}")
    if host.available_bytes is not None and host.memory_bytes is not None:
        used = host.memory_bytes - host.available_bytes
        texts.append(f"memory {bytes_text(used)} of {bytes_text(host.memory_bytes)}")
    return texts


def _run_text(name: str, line: Progress | None) -> str:
    if line is None:
        return f"{name} starting"
    rate = f" {rate_text(line.samples_per_s)}" if line.samples_per_s is not None else ""
    return f"{name} step {count_text(line.step)}{rate}"


def print_grafana(written: GrafanaFolder) -> None:
    """Prints the result of `flatout monitor grafana`."""
    console = show.make_console()
    show.print_lines(console, [("wrote", name) for name in written.files])
    console.print()
    show.print_command(console, "1", written.monitor)
    show.print_command(console, "2", written.compose)
    show.print_lines(console, [("3", f"open {written.url}")])
