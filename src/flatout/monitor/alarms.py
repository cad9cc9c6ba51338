"""Alarms as a state machine over samples: raised once, cleared when they have been away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.monitor.gpu_alarms import KEPT_S, MachineHistory, machine_findings
from flatout.monitor.run_alarms import newest_gpus_of, reported_errors, run_findings
from flatout.monitor.run_sample import RunSample
from flatout.monitor.run_state import RunState
from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import GpuSample, MachineSample

# What comes and goes is one alarm, not many.
_AWAY_S = 60.0
# After a longer pause, the computer has slept, or this process was stopped.
_PAUSE_S = 30.0
_FEWEST_KEPT = 8
# A run that hangs writes no lines, and so takes no finding into its events.
_NOT_IN_RUN = "run-hung"

_Key = tuple[str, str]


class Alarms:
    """Decides from samples, and from nothing else, what to warn of.

    Args:
        host: the name of this computer, for the alarms.
        can_spill: the driver moves memory out of a full GPU rather than refuse it (Windows, WSL).
        every_s: how often samples are taken.
        is_in_run: they go into the run's events, where its own errors are already.
    """

    def __init__(
        self,
        host: str = "",
        *,
        can_spill: bool = False,
        every_s: float = 1.0,
        is_in_run: bool = False,
    ) -> None:
        self._is_in_run = is_in_run
        self._host = host
        self._can_spill = can_spill
        self._pause_s = max(_PAUSE_S, 5 * every_s)
        # Enough samples for every alarm, also where they are rare.
        self._kept_s = max(KEPT_S, _FEWEST_KEPT * every_s)
        self._machine = MachineHistory(self._kept_s)
        self._runs: dict[str, RunState] = {}
        # What is raised, with when it was last true.
        self._raised: dict[_Key, tuple[Finding, float]] = {}

    @property
    def present(self) -> list[Finding]:
        """What is raised now."""
        return [finding for finding, _ in self._raised.values()]

    def take(self, sample: MachineSample, runs: Sequence[RunSample]) -> list[Alarm]:
        """The alarms that this sample raises or clears."""
        self._notice_pause(sample.at)
        self._machine.add(sample)
        for run in runs:
            state = self._runs.get(run.id)
            if state is None:
                state = self._runs[run.id] = RunState(run, self._kept_s)
            state.take(run)
        gone = self._runs.keys() - {run.id for run in runs}
        for name in gone:
            del self._runs[name]
        return [*self._news(sample.at, dict(self._findings()))]

    def _findings(self) -> Iterator[tuple[_Key, Finding]]:
        for subject, finding in machine_findings(self._machine, self._gpus()):
            yield (_distinct(finding), subject), finding
        for name, state in self._runs.items():
            found = run_findings(state, self._machine, can_spill=self._can_spill)
            news = () if self._is_in_run else reported_errors(state)
            for finding in (*news, *found):
                if not (self._is_in_run and finding.rule == _NOT_IN_RUN):
                    yield (finding.rule, f"run {name}"), finding

    def _gpus(self) -> tuple[GpuSample, ...]:
        """The GPUs to warn of: in a run, only those that it uses."""
        newest = self._machine.samples[-1].gpus
        if not self._is_in_run:
            return newest
        used = [
            gpu for state in self._runs.values() for gpu in newest_gpus_of(state, self._machine)
        ]
        return tuple(gpu for gpu in newest if gpu in used)

    def _news(self, at: float, found: dict[_Key, Finding]) -> Iterator[Alarm]:
        for key, finding in found.items():
            if key not in self._raised:
                yield Alarm(at=at, state="raised", subject=key[1], finding=finding, host=self._host)
            # The first evidence stays: it says when and why.
            first = self._raised[key][0] if key in self._raised else finding
            self._raised[key] = (first, at)
        for key, (finding, seen_at) in list(self._raised.items()):
            if at - seen_at >= _AWAY_S:
                del self._raised[key]
                yield Alarm(
                    at=at, state="cleared", subject=key[1], finding=finding, host=self._host
                )

    def _notice_pause(self, at: float) -> None:
        if not self._machine.samples:
            return
        pause_s = at - self._machine.samples[-1].at
        if 0 <= pause_s <= self._pause_s:
            return
        self._machine.forget()
        for state in self._runs.values():
            state.forget(at)


def _distinct(finding: Finding) -> str:
    """An Xid of another number is another alarm, and so are new ECC errors after old ones."""
    if finding.rule == "gpu-xid":
        return f"{finding.rule} {finding.problem}"
    if finding.rule == "gpu-ecc-errors":
        return f"{finding.rule} {finding.severity}"
    return finding.rule
