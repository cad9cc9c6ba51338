"""Experiment trackers that a run is sent to, and how much of it each has received."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.addresses import without_secrets
from flatout.schema.finding import Finding

TrackerKind = Literal["mlflow", "wandb"]
# In place of a tracker: none, not even those of the site file.
NO_TRACKER = "none"
# Host and port, then a path with an @: perhaps the end of a password with a slash in it.
_UNCLEAR = re.compile(r"://[^/?#@]*:[^@]*[/?#][^@]*@")


class TrackerTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A tracker and its place.

    where: an address, file or project; None leaves it to the tracker's own settings. It may hold a
    password, which is only for the process that sends.
    """

    kind: TrackerKind
    where: str | None = None

    @property
    def key(self) -> str:
        """The name of its files in a run's folder, whatever password was given."""
        if self.where is None:
            return self.kind
        return f"{self.kind}-{hashlib.sha256(without_secrets(self.where).encode()).hexdigest()[:8]}"

    @property
    def kept(self) -> TrackerTarget:
        """The same without secrets, for files and for what is shown."""
        return TrackerTarget(kind=self.kind, where=self.where and without_secrets(self.where))

    def __str__(self) -> str:
        """As it is typed, without secrets."""
        return f"{self.kind}:{self.kept.where}" if self.where else self.kind


class TrackerJob(msgspec.Struct, frozen=True, kw_only=True):
    """The order to a process that sends: on its stdin, because the target may hold a password.

    is_following: for as long as the run is trained; else only what it has now.
    events_bytes: the size of events.jsonl before this training. Until it has begun, a run that is
        resumed still has the lines after its checkpoint, which it will compute again.
    """

    target: TrackerTarget
    is_following: bool = True
    events_bytes: int = 0


class TrackerPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What a tracker has received of a run: `trackers/KEY.json` in the run's folder.

    metrics_bytes, samples_bytes, events_bytes: how far the files were read.
    steps: of each value, by name, the last step that was sent.
    is_sending: more than that may have arrived; it is looked up when sending begins again.
    is_done: its process has ended in good order, or with a finding. finding: what went wrong last.
    url: where to look at it.
    """

    target: TrackerTarget
    metrics_bytes: int = 0
    samples_bytes: int = 0
    events_bytes: int = 0
    steps: dict[str, int] = {}
    is_sending: bool = False
    is_done: bool = False
    finding: Finding | None = None
    url: str | None = None


def parse_tracker(text: str) -> TrackerTarget:
    """A tracker from `mlflow`, `wandb:offline`, `mlflow:https://host` and so on.

    Raises:
        UsageError: bad-tracker.
    """
    kind, colon, where = (part.strip() for part in text.partition(":"))
    kinds = get_args(TrackerKind)
    if kind not in kinds:
        # Not all of it: what follows may hold a password.
        problem = f"`--track {kind}` does not name a tracker."
        raise UsageError("bad-tracker", problem, fix=nearest(kind, {*kinds, NO_TRACKER} - {kind}))
    if colon and not where:
        raise UsageError("bad-tracker", f"`--track {kind}:` names no place.", fix=f"--track {kind}")
    if _UNCLEAR.search(where):
        raise UsageError(
            "bad-tracker",
            f"the address of `--track {kind}` is ambiguous.",
            because="there is an @ after the host; a / ? or # in a password ends the host",
            fix="write / ? # @ in a user, password or path as %2F %3F %23 %40",
        )
    return TrackerTarget(kind=kind, where=where or None)  # type: ignore[arg-type]


def parse_trackers(texts: Sequence[str]) -> tuple[TrackerTarget, ...]:
    """Trackers as they were requested; none for `none`.

    Raises:
        UsageError: bad-tracker.
    """
    if NO_TRACKER in texts:
        if len(texts) > 1:
            raise UsageError(
                "bad-tracker",
                f"`--track {NO_TRACKER}` cannot be combined with another tracker.",
                fix="leave out one of them",
            )
        return ()
    return tuple({target.key: target for target in map(parse_tracker, texts)}.values())
