"""What a run's folder has for trackers: how far each has come, and the lines it lacks.

trackers/KEY.json   TrackerPosition, replaced whole
trackers/KEY.lock   held by the process that sends
trackers/wandb/     what Weights & Biases keeps, offline or until it has sent it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.addresses import masked
from flatout.schema.finding import Finding, Fix
from flatout.schema.suggested_command import show_command
from flatout.schema.tracking import TrackerPosition, TrackerTarget
from flatout.system import atomic_files
from flatout.system.atomic_files import mapped_os_errors, open_file
from flatout.system.store.run_folder import RunFolder

_FOLDER = "trackers"


class TrackerFiles:
    """The files of one tracker in a run's folder."""

    def __init__(self, folder: RunFolder, target: TrackerTarget) -> None:
        self.folder = folder.path / _FOLDER
        self._target = target.kept
        self._path = self.folder / f"{target.key}.json"
        self.lock = atomic_files.FileLock(self.folder / f"{target.key}.lock")

    def read(self) -> TrackerPosition:
        """How far it has come; from the beginning where that is not known."""
        with contextlib.suppress(FlatoutError, OSError):
            return atomic_files.read_json(self._path, TrackerPosition)
        return TrackerPosition(target=self._target)

    def write(self, position: TrackerPosition) -> None:
        """Keeps how far it has come; when this returns it is on the disk."""
        # Not its parents: a run that was removed stays so.
        with mapped_os_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        atomic_files.write_json(self._path, position)


def positions(folder: RunFolder) -> tuple[TrackerPosition, ...]:
    """Of all trackers that a run was sent to."""
    found = []
    for path in sorted((folder.path / _FOLDER).glob("*.json")):
        with contextlib.suppress(FlatoutError, OSError):
            found.append(atomic_files.read_json(path, TrackerPosition))
    return tuple(found)


def not_received(folder: RunFolder, target: TrackerTarget, because: str) -> Finding:
    """The warning about a tracker that has not received all of a run."""
    again = show_command(folder.typed, "--track", str(target))
    return Finding(
        rule="tracker-not-reached",
        severity="warning",
        problem=f"{target} has not received everything of run {folder.path.name}; the run itself "
        "is unaffected.",
        because=masked(_without_password(because, target)),
        fixes=(Fix(text=f"send the rest: {again}"),),
    )


def _without_password(text: str, target: TrackerTarget) -> str:
    """A text of a package, which may have taken an address to pieces."""
    try:
        password = urlsplit(target.where or "").password
    except ValueError:
        return text
    return text.replace(password, "****").replace(unquote(password), "****") if password else text


def lines_after(path: Path, offset: int, kind: Any) -> Iterator[tuple[Any, int]]:
    """The whole lines from a byte offset on, each with the offset behind it; one at a time.

    A damaged line is left out: it must not keep the others from being sent.
    """
    decoder = msgspec.json.Decoder(kind)
    with mapped_os_errors(path):
        try:
            file = open_file(path)
        except FileNotFoundError:
            return
        with file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    yield decoder.decode(line), offset
