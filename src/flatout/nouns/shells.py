"""Commands as they are typed: for a POSIX shell, and for PowerShell."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

# What PowerShell takes as it is.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:\\=")


def typed_here(argv: Sequence[str]) -> str:
    """A command as the shell of this system takes it."""
    return powershell_line(argv) if sys.platform == "win32" else shlex.join(argv)


def powershell_line(argv: Sequence[str]) -> str:
    """A command as PowerShell takes it."""
    line = " ".join(word if _is_plain(word) else _quoted(word) for word in argv)
    # A quoted word alone is a text there, and no program.
    return f"& {line}" if line.startswith("'") else line


def _is_plain(word: str) -> bool:
    return bool(word) and set(word) <= _PLAIN


def _quoted(word: str) -> str:
    doubled = word.replace("'", "''")
    return f"'{doubled}'"
