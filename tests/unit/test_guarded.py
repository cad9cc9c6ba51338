"""Programs that end with their standard input, and guards that end with their programs."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from support.busy_machine import has_ended, wait_until

from flatout.system.die_with_parent import guarded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes have no groups there")

TELLS = "import os; print(os.getpid(), flush=True)\n"
# What it has started does not end when it is asked to.
LEAVES_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(600)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def started(folder: Path, text: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A program's keeper, and the number that the program tells."""
    script = folder / "script.py"
    script.write_text(text)
    keeper = subprocess.Popen(
        guarded(sys.executable, [str(script), *arguments]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert keeper.stdout is not None
    return keeper, int(keeper.stdout.readline())


def guards_of(number: int) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or [""]
        if words[-1] == str(number) and any("killpg" in word for word in words):
            found.append(one)
    return found


def test_guard_goes_home_when_its_program_has_ended(tmp_path: Path) -> None:
    keeper, number = started(tmp_path, TELLS)
    with keeper:
        assert keeper.wait(120) == 0
        # The pipe is still open.
        for one in guards_of(number):
            wait_until(partial(has_ended, one.pid))


def test_what_a_program_has_started_ends_with_its_standard_input(tmp_path: Path) -> None:
    # Both at once: what does not end when it is asked to has five seconds.
    lasting, child_of_lasting = started(tmp_path, LEAVES_A_CHILD, "600")
    ended, child_of_ended = started(tmp_path, LEAVES_A_CHILD, "0")
    with lasting, ended:
        assert ended.wait(120) == 0
        for keeper in (lasting, ended):
            assert keeper.stdin is not None
            keeper.stdin.close()
        wait_until(lambda: has_ended(child_of_lasting))
        wait_until(lambda: has_ended(child_of_ended))
