"""A Python program that ends, with all it has started, when its standard input does.

For what is started where no one else ends it: Ray ends the children of an actor whose driver is
gone, but not theirs; Docker lets a command continue whose client is gone.

The keeper ends as the program does. The guard, which no one else knows, holds the read end of the
pipe, and ends the program's group when that comes to its end. That may be hours after the
program's: when nothing of the group is left, whose number may be another's later, the guard ends.
"""

from __future__ import annotations

from collections.abc import Sequence

# How long a program may take to end before it is killed.
GRACE_S = 5.0

_GUARD = """
import os, signal, subprocess, sys, threading, time
group = int(sys.argv[1])
is_over = threading.Event()
def wait():
    while os.read(0, 1024):
        pass
    is_over.set()
threading.Thread(target=wait, daemon=True).start()
if sys.platform == "win32":
    is_over.wait()
    sys.exit(subprocess.call(["taskkill", "/f", "/t", "/pid", str(group)]))
try:
    while not is_over.wait(1):
        os.killpg(group, 0)
    os.killpg(group, signal.SIGTERM)
    for _ in range(50):
        time.sleep(0.1)
        os.killpg(group, 0)
    os.killpg(group, signal.SIGKILL)
except (ProcessLookupError, PermissionError):
    pass
"""
_KEEPER = """
import os, signal, subprocess, sys
guard, *script = sys.argv[1:]
running = subprocess.Popen([sys.executable, *script], stdin=subprocess.DEVNULL,
                           start_new_session=True)
watching = subprocess.Popen([sys.executable, "-c", guard, str(running.pid)],
                            start_new_session=True, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
os.close(0)
code = running.wait()
if sys.platform == "win32":
    watching.kill()
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code if code >= 0 else 1)
"""


def guarded(python: str, program: Sequence[str]) -> list[str]:
    """The command of a program of Python; its standard input must be a pipe.

    Args:
        python: the interpreter of the keeper, the guard and the program.
        program: its file and its arguments.
    """
    return [python, "-c", _KEEPER, _GUARD, *program]
