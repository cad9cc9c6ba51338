"""Who writes a run: a word in its folder, for disks that carry no lock from machine to machine."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from flatout.errors import UsageError
from flatout.nouns.typed import show_command
from flatout.system import store


class Claim:
    """That this process writes in a folder, until another one claims it.

    The lock keeps two writers apart wherever it holds. Where a shared disk does not carry it, the
    later one wins: what it has written, the earlier one finds before it would overwrite anything.

    Args:
        path: of the file that holds the word.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._word = secrets.token_hex(8).encode()
        store.write_atomically(path, self._word)

    def require(self) -> None:
        """Makes sure that nobody else has claimed the folder meanwhile.

        Raises:
            UsageError: run-in-use.
        """
        found = claimed(self._path)
        if found not in (None, self._word):
            name = self._path.parent.name
            raise UsageError(
                "run-in-use",
                f"another process has taken over the run {name}.",
                because="the lock of its folder did not keep it out: the disk does not carry locks "
                "between the machines that share it",
                fix=f"let one of them train: {show_command(name, '--follow')}",
            )


def claimed(path: Path) -> bytes | None:
    """The word that lies there, of whoever trains or has trained last; None where nobody has."""
    with store.mapped_os_errors(path), contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None
