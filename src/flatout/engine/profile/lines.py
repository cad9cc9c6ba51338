"""The lines of the user's code in which the time goes: samples of a thread's stack.

Cheaper than torch.profiler's `with_stack`, which records each call of a Python function and makes
Python several times slower, and more exact: it knows functions, this knows lines.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import random
import signal
import site
import sys
import sysconfig
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from flatout.schema.step_profile import LineTime
from flatout.system.clock import elapsed_s

_EVERY_S = 0.001
_LONGEST_S = 1.5 * _EVERY_S
# The package: engine/profile/lines.py is two folders deep in it.
_OWN_FOLDER = Path(__file__).resolve().parents[2]
# Built-in experiments are written as a user would write them.
_EXPERIMENTS = str(_OWN_FOLDER / "experiments")
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")
# What reads samples: a line that is called from there belongs to the data.
_READERS = (
    os.path.join("torch", "utils", "data", ""),
    str(_OWN_FOLDER / "engine" / "feed"),
    str(_OWN_FOLDER / "engine" / "data"),
)


@dataclass(frozen=True)
class _Place:
    file: str
    line: int
    function: str
    part: Literal["data", "step"]


class LineSampler:
    """Looks about a thousand times a second where the main thread is.

    A timer interrupts the thread itself. Another thread that looks at its frames would keep what
    they hold alive, and end it at any moment: steps of torch have failed by that.

    problem: why lines cannot be sampled here; None if they can.

    Args:
        part: of all lines; None: as what has called them says.
    """

    def __init__(self, *, part: Literal["data", "step"] | None = None) -> None:
        self.problem = _why_not()
        self._part = part
        self._seconds: dict[_Place, float] = defaultdict(float)
        self._counts: Counter[_Place] = Counter()
        self._through: dict[_Place, Counter[str]] = defaultdict(Counter)
        self._in_model: Counter[_Place] = Counter()
        self._is_user: dict[str, bool] = {}
        self._is_reader: dict[str, bool] = {}
        self._loops = _Loops()
        # Its own: the numbers that the user draws stay the same.
        self._random = random.Random(0)
        self._last_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Samples while the value is open, unless there is a problem."""
        # Since the last time, the program may have begun to use the timer itself.
        if sys.platform == "win32" or self.problem is not None or _why_not() is not None:
            yield
            return
        before = signal.signal(signal.SIGALRM, self._sample)
        # Reads and writes of C libraries go on after a sample.
        signal.siginterrupt(signal.SIGALRM, False)
        self._last_s = elapsed_s()
        signal.setitimer(signal.ITIMER_REAL, _EVERY_S)
        try:
            yield
        finally:
            if self._is_own():
                # A longer one is the program's.
                if signal.getitimer(signal.ITIMER_REAL)[0] <= _LONGEST_S:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)

    def _is_own(self) -> bool:
        """Whether the signal is still ours: a program may set a handler meanwhile."""
        return sys.platform != "win32" and signal.getsignal(signal.SIGALRM) == self._sample

    def lines(self, num_steps: float) -> tuple[LineTime, ...]:
        """The lines of the user's code, the most time first; of as many steps as were sampled."""
        found = [
            LineTime(
                file=place.file,
                line=place.line,
                function=place.function,
                seconds=seconds / num_steps,
                text=linecache.getline(place.file, place.line).strip(),
                part=place.part,
                through=self._through[place].most_common(1)[0][0],
                num_samples=self._counts[place],
                loop=self._loops.of(place.file, place.line),
                is_in_model=2 * self._in_model[place] > self._counts[place],
            )
            for place, seconds in self._seconds.items()
        ]
        return tuple(sorted(found, key=lambda line: line.seconds, reverse=True))

    def _sample(self, number: int, frame: FrameType | None) -> None:
        if sys.platform == "win32":
            return
        now_s = elapsed_s()
        if frame is not None:
            self._count(frame, now_s - self._last_s)
        self._last_s = now_s
        if self._is_own():
            # Not at a fixed rate: a loop of the same rate would be seen at one line only.
            pause_s = self._random.uniform(0.5 * _EVERY_S, _LONGEST_S)
            signal.setitimer(signal.ITIMER_REAL, pause_s)

    def _count(self, innermost: FrameType, seconds: float) -> None:
        frame: FrameType | None = innermost
        through = f"{_short(innermost.f_code.co_filename)}: {innermost.f_code.co_name}"
        is_in_model = False
        while frame is not None and not self._is_of_user(frame.f_code.co_filename):
            is_in_model = is_in_model or _is_call_of_module(frame)
            frame = frame.f_back
        if frame is None:
            return
        place = _Place(
            frame.f_code.co_filename,
            _line_of(frame),
            frame.f_code.co_name,
            self._part or self._part_above(frame),
        )
        self._seconds[place] += seconds
        self._counts[place] += 1
        self._through[place][through if frame is not innermost else ""] += 1
        while frame is not None and not is_in_model:
            is_in_model = _is_call_of_module(frame)
            frame = frame.f_back
        self._in_model[place] += is_in_model

    def _part_above(self, frame: FrameType) -> Literal["data", "step"]:
        above: FrameType | None = frame
        while above is not None:
            file = above.f_code.co_filename
            is_reader = self._is_reader.get(file)
            if is_reader is None:
                is_reader = self._is_reader[file] = any(name in file for name in _READERS)
            if is_reader:
                return "data"
            above = above.f_back
        return "step"

    def _is_of_user(self, file: str) -> bool:
        known = self._is_user.get(file)
        if known is None:
            known = self._is_user[file] = is_user_code(file)
        return known


def _line_of(frame: FrameType) -> int:
    """The line where a frame is; of what has none, such as the jump back of a loop, the one before.

    Python runs handlers of signals just there.
    """
    line: int | None = frame.f_lineno
    if line is not None:
        return line
    before = frame.f_code.co_firstlineno
    for start, _, line in frame.f_code.co_lines():
        if start > frame.f_lasti:
            break
        before = line or before
    return before


def _is_call_of_module(frame: FrameType) -> bool:
    """Whether it is torch's own frame around the forward pass of a module."""
    code = frame.f_code
    return code.co_name == "_call_impl" and code.co_filename.endswith(_MODULE_FILE)


def count_lines(act: Callable[[], object], files: Collection[str]) -> Counter[tuple[str, int]]:
    """How often each line of some files runs in a call, in functions that it enters.

    Empty if a debugger or coverage traces this thread already.
    """
    counts: Counter[tuple[str, int]] = Counter()
    if sys.gettrace() is not None:
        return counts

    def see_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            counts[frame.f_code.co_filename, frame.f_lineno] += 1
        return see_line

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return see_line if frame.f_code.co_filename in files else None

    sys.settrace(enter)
    try:
        act()
    finally:
        # A debugger may have begun meanwhile.
        if sys.gettrace() is enter:
            sys.settrace(None)
    return counts


class _Loops:
    """The loops of source files, by the lines in them."""

    def __init__(self) -> None:
        self._by_file: dict[str, dict[int, int]] = {}

    def of(self, file: str, line: int) -> int | None:
        """The first line of the innermost loop that a line is in; None if it is in none."""
        if file not in self._by_file:
            self._by_file[file] = _loop_lines("".join(linecache.getlines(file)))
        return self._by_file[file].get(line)


def _loop_lines(text: str) -> dict[int, int]:
    """Of each line in a loop, or a comprehension over several lines, the loop's first line."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, int] = {}
    # Outer loops come first, and inner ones in their place.
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While | ast.ListComp | ast.GeneratorExp):
            first, last = node.lineno, node.end_lineno or node.lineno
            for line in range(first, last + 1):
                found[line] = max(first, found.get(line, 0))
    return found


def _why_not() -> str | None:
    if sys.platform == "win32":
        return "lines cannot be sampled on Windows, which has no timer that interrupts a thread"
    if threading.current_thread() is not threading.main_thread():
        return "lines can be sampled in the main thread only"
    is_unused = signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
    if signal.getitimer(signal.ITIMER_REAL)[0] or not is_unused:
        return "the program has a timer of its own"
    return None


def is_user_code(file: str) -> bool:
    """Whether a file is the user's own: neither Python's, nor an installed package, nor flatout."""
    if file.startswith("<"):
        # A notebook's cell has a name like that, too, and a line that can be read.
        return file.startswith("<ipython-input")
    path = os.path.abspath(file)
    if path.startswith(_EXPERIMENTS):
        return True
    # Of another environment, too, which a .pth file or PYTHONPATH has put there.
    if {"site-packages", "dist-packages"} & set(Path(path).parts):
        return False
    return not any(path.startswith(folder) for folder in _library_folders())


def _library_folders() -> list[str]:
    paths = sysconfig.get_paths()
    folders = [
        paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"],
        str(_OWN_FOLDER), *site.getsitepackages(), site.getusersitepackages(),
    ]  # fmt: skip
    return [os.path.join(os.path.abspath(folder), "") for folder in folders]


def _short(file: str) -> str:
    """`torch/_tensor.py`: a library's file without the folders that lead to it."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return "/".join(parts[-2:])
