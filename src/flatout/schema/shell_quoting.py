"""Commands as they are typed: for a POSIX shell, and for PowerShell."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

# What PowerShell takes as it is.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:\\=")
_QUOTES = re.compile("['\u2018-\u201b]")


def home_text(path: str) -> str:
    """A path with the user's home folder as ~."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except ValueError:
        return path


def typed_here(argv: Sequence[str]) -> str:
    """A command as the shell of this system takes it."""
    return powershell_line(argv) if sys.platform == "win32" else shlex.join(argv)


def powershell_line(argv: Sequence[str]) -> str:
    """A command as PowerShell takes it."""
    line = " ".join(map(powershell_word, argv))
    # A quoted word alone is a text there, and no program.
    return f"& {line}" if line.startswith("'") else line


def powershell_word(word: str) -> str:
    """A word as PowerShell takes it."""
    if word and set(word) <= _PLAIN:
        return word
    return powershell_text(word)


def powershell_text(text: str) -> str:
    """A text in quotes, in which PowerShell replaces nothing."""
    # It takes all of these quotes for one another.
    doubled = _QUOTES.sub(r"\g<0>\g<0>", text)
    return f"'{doubled}'"
