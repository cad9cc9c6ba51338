"""A process ends with the code that its work has, and has finished what it began."""

import os
import subprocess
import sys

import pytest

_END = "from flatout.system.exit_code import end; end(3)"
_PROGRAM = """
import atexit, sys, threading, time
from flatout.system.exit_code import end

def work():
    time.sleep(0.1)
    print("thread", flush=True)

class Printed:
    def __del__(self):
        print("torn down")

kept = Printed()
atexit.register(print, "atexit")
threading.Thread(target=work).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
sys.stdout.write("buffered ")
end(3)
"""


def test_end_waits_for_threads_and_functions_and_skips_the_teardown() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (3, ["buffered", "thread", "atexit"])


def test_end_keeps_the_code_without_standard_streams() -> None:
    program = "import sys; sys.stdout = sys.stderr = None; " + _END
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /dev/full")
def test_end_keeps_the_code_when_the_last_lines_find_no_room() -> None:
    program = "print('last'); " + _END
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full, env={**os.environ, "PYTHONUNBUFFERED": ""}, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 3
