"""The errors of flatout, worded for the user who sees them.

    FlatoutError            has a rule id, a problem, a cause, a fix          exit code
    ├── UsageError          the request is invalid: name, value, file      2
    └── RunFailed           the request was started and could not finish     1

Anything else that escapes is a bug (exit code 3): its traceback goes to a file, one line to
the screen. Foreign exceptions become one of these once, at the seam where they enter, with `from`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FlatoutError(Exception):
    """An error in the one shape that all errors have here.

    Args:
        rule: id of the problem in kebab case; its page and tests carry the same name.
        problem: one sentence: what is wrong, with the value that is wrong.
        because: the evidence or cause, or None if the problem says it all.
        fix: what to type or change.
    """

    exit_code = 1

    def __init__(self, rule: str, problem: str, *, fix: str, because: str | None = None) -> None:
        super().__init__(problem)
        self.rule = rule
        self.problem = problem
        self.because = because
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled where it is raised in a process that reads data.
        return _again, (type(self), self.rule, self.problem, self.because, self.fix)

    def __str__(self) -> str:
        """The full text, for tracebacks, such as in a notebook."""
        because = f"\n  because: {self.because}" if self.because else ""
        return f"{self.problem}{because}\n  fix: {self.fix}\n  see: flatout explain {self.rule}"


def _again(
    kind: type[FlatoutError], rule: str, problem: str, because: str | None, fix: str
) -> FlatoutError:
    return kind(rule, problem, because=because, fix=fix)


class UsageError(FlatoutError):
    """The request cannot be carried out: a wrong name, value or file."""

    exit_code = 2


class RunFailed(FlatoutError):
    """The operation could not continue; what it had saved is untouched.

    Args:
        rule, problem, because, fix: see FlatoutError.
        printed: the output of the failed program, which may contain the cause.
    """

    exit_code = 1

    def __init__(
        self, rule: str, problem: str, *, fix: str, because: str | None = None, printed: str = ""
    ) -> None:
        super().__init__(rule, problem, fix=fix, because=because)
        self.printed = printed


# Below it, names are as similar as any two words: `list` and `ingest` have 0.6.
_LEAST_LIKENESS = 0.7
_FEWEST_LETTERS = 3
# A longer list does not help.
_MOST_NAMES = 40


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A fix for a mistyped name: the nearest valid one, or all of them when none is near."""
    names = sorted(right)
    near = nearest_name(wrong, names)
    if near is not None:
        others = f" (all: {', '.join(names)})" if len(names) <= _MOST_NAMES else ""
        return f"did you mean `{near}`?{others}"
    if len(names) > _MOST_NAMES:
        return f"use one of the {len(names)}: {', '.join(names[:_MOST_NAMES])} ..."
    return f"use one of: {', '.join(names)}" if names else "there are none to choose from"


def nearest_name(wrong: str, right: Iterable[str]) -> str | None:
    """The valid name that a mistyped one stands for; None where none is near."""
    names = sorted(right)
    # Another order of the letters, or the beginning of one name alone.
    swapped = [name for name in names if sorted(name) == sorted(wrong)]
    begun = [name for name in names if len(wrong) >= _FEWEST_LETTERS and name.startswith(wrong)]
    near = difflib.get_close_matches(wrong, names, n=1, cutoff=_LEAST_LIKENESS)
    matches = swapped[:1] or (begun if len(begun) == 1 else []) or near
    return matches[0] if matches else None
