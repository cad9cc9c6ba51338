"""Experiment trackers that a run is sent to, and how much of it each has received."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.addresses import masked, without_user
from flatout.schema.finding import Finding

TrackerKind = Literal["mlflow", "wandb"]
# In place of a tracker: none, not even those of the site file.
NO_TRACKER = "none"


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
        digest = hashlib.sha256(without_user(self.where).encode()).hexdigest()
        return f"{self.kind}-{digest[:8]}"

    @property
    def kept(self) -> TrackerTarget:
        """The same without user and password, for files and for what is shown."""
        return TrackerTarget(kind=self.kind, where=self.where and without_user(self.where))

    def __str__(self) -> str:
        """As it is typed, without user and password."""
        return f"{self.kind}:{self.kept.where}" if self.where else self.kind


class TrackerJob(msgspec.Struct, frozen=True, kw_only=True):
    """The order to a process that sends: on its stdin, because the target may hold a password.

    is_following: for as long as the run is trained; else only what it has now.
    """

    target: TrackerTarget
    is_following: bool = True


class TrackerPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What a tracker has received of a run for certain: `trackers/KEY.json` in the run's folder.

    num_rows: lines and samples. metrics_bytes, samples_bytes, events_bytes: how far the files were
    read; step: of the last line. sent_step: lines up to it had arrived before the run went back.
    is_sending: some of what follows may have arrived, too.
    is_done: its process has ended in good order, or with a finding. finding: what went wrong last.
    url: where to look at it.
    """

    target: TrackerTarget
    num_rows: int = 0
    metrics_bytes: int = 0
    samples_bytes: int = 0
    events_bytes: int = 0
    step: int = -1
    sent_step: int = -1
    is_sending: bool = False
    is_done: bool = False
    finding: Finding | None = None
    url: str | None = None


def parse_tracker(text: str, option: str = "--track") -> TrackerTarget:
    """A tracker from `mlflow`, `wandb:offline`, `mlflow:https://host` and so on.

    Raises:
        UsageError: bad-tracker.
    """
    kind, colon, where = text.strip().partition(":")
    kinds = get_args(TrackerKind)
    if kind not in kinds or (colon and not where.strip()):
        raise UsageError(
            "bad-tracker",
            f"`{option} {masked(text)}` does not name a tracker.",
            because="nothing follows the colon" if kind in kinds else None,
            fix=f"leave out the colon: {option} {kind}"
            if kind in kinds
            else nearest(kind, (*kinds, NO_TRACKER)),
        )
    return TrackerTarget(kind=kind, where=where.strip() or None)  # type: ignore[arg-type]


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
