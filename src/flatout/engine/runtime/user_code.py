"""Places in the user's own code: for errors that name the line and show it.

This file does not import torch: an experiment is described without it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import linecache
import re
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import flatout

_OWN = Path(flatout.__file__).parent
_EXPERIMENTS = _OWN / "experiments"
_SHOWN_CODE = 90


@dataclass(frozen=True)
class CodeLocation:
    """A line of the user's code. name: of the function it is in; empty where that says nothing."""

    file: str
    line: int
    name: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" + (f" in {self.name}" if self.name else "")

    @property
    def with_code(self) -> str:
        """The place and what is written there."""
        code = linecache.getline(self.file, self.line).strip()
        return f"{self}: {textwrap.shorten(code, _SHOWN_CODE)}" if code else str(self)


def user_locations(trace: Iterable[traceback.FrameSummary]) -> list[CodeLocation]:
    """The frames in code that is neither ours nor installed, outermost first."""
    return [
        CodeLocation(frame.filename, frame.lineno or 0, frame.name)
        for frame in trace
        if is_user_file(frame.filename)
    ]


def is_user_file(filename: str) -> bool:
    """Whether this is a user's file: neither flatout's nor installed."""
    if _is_cell(filename):
        return True
    path = Path(filename)
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    is_installed = any(folder in path.parents for folder in installed)
    return not (is_own_file(filename) or is_installed) and path.exists()


def _is_cell(filename: str) -> bool:
    """A notebook's cell has no file; IPython gives its text to `linecache`."""
    return filename.startswith("<ipython-input") or "ipykernel_" in filename


def is_own_file(filename: str) -> bool:
    """Whether that file is flatout's; built-in experiments count as user code."""
    path = Path(filename)
    return _OWN in path.parents and _EXPERIMENTS not in path.parents


def own_file(filename: str) -> str | None:
    """The path of flatout's own file from the package: `engine/step/step.py`; None for others."""
    return Path(filename).relative_to(_OWN).as_posix() if is_own_file(filename) else None


def kind_text(value: Any) -> str:
    """A description of a value for messages: None, a class, or "a <type>"."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def location_of(function: Any) -> CodeLocation | None:
    """The file and line of a function or a callable object's class; None if unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    if code is not None:
        return CodeLocation(code.co_filename, code.co_firstlineno)
    if inspect.isclass(function):
        return None
    call = getattr(type(function), "__call__", None)  # noqa: B004 - it is wanted, not asked for
    return location_of(call) if isinstance(call, FunctionType) else None


@dataclass(frozen=True)
class Given:
    """A field of the user's `Experiment(...)` as written. code: None if unknown."""

    location: CodeLocation | None = None
    code: ast.expr | None = None


def given_as(field: str) -> Given:
    """The source text of a field in the call that is being made further up this stack."""
    frame = inspect.currentframe()
    skipped = (dataclasses.__file__, "<string>", "<frozen runpy>")
    while frame is not None and (
        is_own_file(frame.f_code.co_filename) or frame.f_code.co_filename in skipped
    ):
        frame = frame.f_back
    if frame is None:
        return Given()
    file, line = frame.f_code.co_filename, frame.f_lineno
    calls = _calls_around(file, line)
    for call in calls:
        for keyword in call.keywords:
            if keyword.arg == field:
                return Given(CodeLocation(file, keyword.value.lineno), keyword.value)
    return Given(CodeLocation(file, line))


def _calls_around(file: str, line: int) -> list[ast.Call]:
    """The calls that a line is part of, the innermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return sorted(calls, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)


def lines_with(text: str) -> list[CodeLocation]:
    """The lines of all imported files of the user's own that hold that text."""
    locations = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file):
            for number, line in enumerate(linecache.getlines(file), start=1):
                if text in line.partition("#")[0]:
                    locations.append(CodeLocation(file, number))
    return locations


def function_refusing(qualified: str, refusal: str, own: bool) -> Callable[..., Any] | None:
    """A function of that qualified name, wherever it is held, that a call's refusal is about.

    refusal: what Python said, such as "missing 1 required positional argument: 'epoch'".
    own: one of flatout's.
    """
    import gc

    # What was loaded with torch is left out by the collector until it is put back.
    gc.unfreeze()
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__qualname__ != qualified:
            continue
        # One that was defined before in a notebook, or in a file that was read again, is none.
        module = sys.modules.get(function.__module__)
        is_current = module is not None and vars(module) is function.__globals__
        if not is_current or is_own_file(function.__code__.co_filename) != own:
            continue
        if _can_refuse(function, refusal):
            return function
    return None


def _can_refuse(function: FunctionType, refusal: str) -> bool:
    """Whether these parameters fit what was said: two classes of one name may have one method."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional, keyword_only = parameters[: code.co_argcount], parameters[code.co_argcount :]
    if refusal.startswith("missing "):
        kind = keyword_only if "keyword-only" in refusal else positional
        return set(re.findall(r"'(\w+)'", refusal)) <= {*kind}
    if (unexpected := re.match(r"got an unexpected keyword argument '(\w+)'", refusal)) is not None:
        takes_any = code.co_flags & inspect.CO_VARKEYWORDS
        return not takes_any and unexpected[1] not in parameters
    if (most := re.match(r"takes (?:from \d+ to )?(\d+) positional", refusal)) is not None:
        takes_any = code.co_flags & inspect.CO_VARARGS
        return not takes_any and int(most[1]) == len(positional)
    return True
