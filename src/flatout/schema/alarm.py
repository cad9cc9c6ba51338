"""An alarm of `flatout monitor`: a finding about this machine or a run, raised or cleared."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.finding import Finding


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Sent to a webhook or a command as JSON.

    at: seconds since the epoch. subject: "run digits-0001", "GPU 0", "disk /".
    host: the name of this computer.
    """

    at: float
    state: Literal["raised", "cleared"]
    subject: str
    finding: Finding
    host: str = ""

    @property
    def text(self) -> str:
        """The alarm in one line."""
        word = "" if self.state == "raised" else "cleared: "
        return f"{self.subject}: {word}{self.finding.problem}"


class WorkerSample(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a run's worker on this machine at one moment.

    is_stopped: by SIGSTOP, Ctrl-Z or a debugger. cpu_s: processor time of the worker and its
    children so far. memory_bytes: of all of them, without what they share with others.
    left_bytes: of memory, that their container or group may still take; None without a limit.
    """

    pid: int
    is_stopped: bool
    cpu_s: float
    memory_bytes: int | None = None
    left_bytes: int | None = None


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a rank other than the first went: see `run_lines.py: Progress`."""

    at: float
    rank: int
    split_s: dict[str, float]
