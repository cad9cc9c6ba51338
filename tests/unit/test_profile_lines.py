"""Samples of a thread's stack: which lines are the user's, and how long they take."""

from __future__ import annotations

import json
import signal
import sys
import sysconfig
import time
import types
from pathlib import Path

import pytest

from flatout.engine.profile.lines import LineSampler, count_lines, is_user_code


def spin(seconds: float) -> int:
    until, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        count += 1
    return count


def test_sampler_finds_the_lines_in_which_the_time_goes() -> None:
    sampler = LineSampler()
    began_s = time.perf_counter()
    with sampler.running():
        spin(0.15)
    took_s = time.perf_counter() - began_s
    lines = sampler.lines(1)
    own = sum(line.seconds for line in lines if line.function == "spin")
    assert 0.1 < own < took_s
    assert {Path(line.file).name for line in lines} == {"test_profile_lines.py"}
    # The loop, not its function.
    assert lines[0].loop is not None
    assert lines[0].text.startswith(("while", "count"))


def test_sampler_gives_the_time_of_libraries_to_the_line_that_calls_them() -> None:
    value = {str(number): [number] * 20 for number in range(20_000)}
    sampler = LineSampler(part="data")
    with sampler.running():
        text = json.dumps(value, indent=1)
    assert text
    [line] = [one for one in sampler.lines(2) if "json.dumps" in one.text]
    assert line.part == "data"
    assert "json/" in line.through
    assert line.seconds > 0.01


def test_sampler_counts_nothing_when_it_does_not_run() -> None:
    sampler = LineSampler()
    with sampler.running():
        pass
    before = sampler.lines(1)
    spin(0.05)
    assert sampler.lines(1) == before


def jump_without_line(until: float) -> int:
    count = 0
    for _ in iter(time.perf_counter, 0.0):
        if time.perf_counter() > until:
            break
        if count >= 0:
            count += 1
    return count


def test_sampler_takes_the_line_before_where_python_has_none() -> None:
    first = jump_without_line.__code__.co_firstlineno
    sampler = LineSampler()
    with sampler.running():
        jump_without_line(time.perf_counter() + 0.1)
    own = [one for one in sampler.lines(1) if one.function == "jump_without_line"]
    # The first line is where a signal is handled that came before the call.
    assert own and {one.line - first for one in own} <= {0, 2, 3, 4, 5, 6}
    assert max(own, key=lambda one: one.num_samples).line > first


def test_sampler_takes_the_first_line_of_a_function_that_has_none() -> None:
    without_lines = types.FunctionType(spin.__code__.replace(co_linetable=b""), globals())
    sampler = LineSampler()
    with sampler.running():
        without_lines(0.05)
    own = [one for one in sampler.lines(1) if one.function == "spin"]
    assert {one.line for one in own} == {spin.__code__.co_firstlineno}


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces: coverage")
def test_lines_are_counted_in_the_given_files_only() -> None:
    def summed() -> int:
        total = 0
        for number in range(5):
            total += number
        return len(json.dumps([total]))

    counts = count_lines(summed, {__file__})
    first = summed.__code__.co_firstlineno
    assert counts[__file__, first + 3] == 5
    assert {file for file, _ in counts} == {__file__}
    assert sys.gettrace() is None


def test_no_line_is_counted_where_something_else_traces() -> None:
    def traces(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(traces)
    try:
        counts = count_lines(lambda: spin(0.001), {__file__})
        is_kept = sys.gettrace() is traces
    finally:
        sys.settrace(before)
    assert not counts and is_kept


needs_timer = pytest.mark.skipif(sys.platform == "win32", reason="needs a timer of POSIX")


@needs_timer
@pytest.mark.parametrize("is_first", [True, False])
def test_a_program_keeps_its_own_alarm(is_first: bool) -> None:
    heard: list[int] = []

    def begin() -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
        heard.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    before = signal.getsignal(signal.SIGALRM)
    try:
        if is_first:
            begin()
            # A handler is enough: the timer may be set at any time.
            signal.setitimer(signal.ITIMER_REAL, 0)
        sampler = LineSampler()
        with sampler.running():
            if is_first:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
            else:
                begin()
            spin(0.03)
        spin(0.15)
        assert len(heard) == 1
        assert (sampler.problem is not None) is is_first
    finally:
        signal.signal(signal.SIGALRM, before)


def test_libraries_are_not_the_users_code() -> None:
    import flatout

    package = Path(flatout.__file__).parent
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    assert not is_user_code(str(stdlib / "json" / "encoder.py"))
    assert not is_user_code(str(Path(sysconfig.get_paths()["purelib"]) / "torch" / "nn.py"))
    assert not is_user_code(str(package / "engine" / "step" / "step.py"))
    assert not is_user_code("<frozen importlib._bootstrap>")
    assert is_user_code(str(package / "experiments" / "mlp.py"))
    assert is_user_code(__file__)
