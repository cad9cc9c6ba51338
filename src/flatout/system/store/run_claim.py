"""The writer of a run: a word in its folder, for disks without locks from machine to machine."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from flatout.errors import UsageError
from flatout.schema.suggested_command import show_command
from flatout.system import atomic_files


class RunClaim:
    """The claim of this process to write in a folder, until another one claims it.

    The lock keeps two writers apart wherever it holds. Where a shared disk does not carry it, the
    later one wins: what it has written, the earlier one finds before it would overwrite anything.

    Args:
        path: of the file that holds the word.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._word = secrets.token_hex(8).encode()
        atomic_files.write_atomically(path, self._word)

    def require(self) -> None:
        """Makes sure that no one else has claimed the folder in the meantime.

        Raises:
            UsageError: run-in-use.
        """
        claim = claimed(self._path)
        if claim not in (None, self._word):
            name = self._path.parent.name
            raise UsageError(
                "run-in-use",
                f"another process has taken over run {name}.",
                because="the lock on its folder did not prevent it: this disk does not share "
                "locks between machines",
                fix=f"let only one of them train: {show_command(name, '--follow')}",
            )


def claimed(path: Path) -> bytes | None:
    """The word of the process that trains or trained last; None if there is none."""
    with atomic_files.mapped_os_errors(path), contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None
