"""The changes at a resume: crosses the border as `--change`."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that continues with another text of its experiment file.

    sha256: of the text that it continues with. diff: from the text before, as `diff -u` gives it;
    the worker makes it itself.
    """

    sha256: str
    diff: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recipe fields by name with their values, the epochs or steps in all, and what should be left
    free of the device's memory; None keeps it as it is.

    file: the run continues with another text of its experiment file.
    is_after_kill: the kernel ended the process before, because memory had run out.
    on, python: who starts the ranks, and the interpreter, where it is not flatout's own; both as
        they were typed, also for a new run. The engine only keeps them, for what it suggests.
    """

    fixed: dict[str, Any] = {}
    epochs: int | None = None
    steps: int | None = None
    file: ChangedFile | None = None
    leave_free_bytes: int | None = None
    is_after_kill: bool = False
    on: str | None = None
    python: str | None = None

    def again(self, *, is_after_kill: bool = False) -> Change:
        """The change for another process that continues: all that is not in the run's history."""
        return Change(
            leave_free_bytes=self.leave_free_bytes,
            is_after_kill=is_after_kill,
            on=self.on,
            python=self.python,
        )

    def as_option(self) -> str:
        """The value of `--change`: without the diff, which may be too long for an argument."""
        file = self.file and ChangedFile(sha256=self.file.sha256)
        return msgspec.json.encode(msgspec.structs.replace(self, file=file)).decode()


def diff_of(before: str, after: str, names: tuple[str, str]) -> str:
    """The difference of two texts, as `diff -u` gives it. names: of the two files."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="")
    return "\n".join(lines)
