"""Running a program that may be missing, fail, hang, or leave children behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from flatout.system.kill_tree import kill_tree
from flatout.system.worker_process import ending_text

# A killed process that is stuck in the kernel (a driver that hangs) is not waited for any longer.
_GRACE_S = 0.5

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NO_WINDOW
else:
    _CREATION_FLAGS = 0


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program.

    exit_code: below zero for a signal, None if it did not run to its end.
    reason: why it did not.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    reason: str | None = None


def run(
    argv: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    kept_open: Sequence[int] = (),
    text: str | None = None,
) -> Completed:
    """Runs a program to its end.

    Args:
        argv: the program and its arguments.
        timeout_s: when this time is up, the program and all it started are killed.
        environment: all of its environment variables; None for those of this process.
        kept_open: file descriptors that it inherits: a lock is held until it has ended, too.
        text: its input; None gives it none.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            creationflags=_CREATION_FLAGS,
            env=environment,
            # Windows does not support it, and Python refuses it there.
            pass_fds=kept_open if sys.platform != "win32" else (),
        )
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Completed(reason=reason)
    try:
        stdout, stderr = process.communicate(
            None if text is None else text.encode(), timeout=timeout_s
        )
    except subprocess.TimeoutExpired as late:
        _kill(process)
        return Completed(
            stdout=_text(late.stdout),
            stderr=_text(late.stderr),
            reason=f"no answer within {timeout_s:g} s",
        )
    except BaseException:
        _kill(process)
        raise
    return Completed(stdout=_text(stdout), stderr=_text(stderr), exit_code=process.returncode)


def run_attached(argv: Sequence[str], timeout_s: float) -> Completed:
    """Runs a program that may ask something on the terminal, as sudo does for a password."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as late:
        return Completed(
            stdout=_text(late.stdout),
            stderr=_text(late.stderr),
            reason=f"no answer within {timeout_s:g} s",
        )
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Completed(reason=reason)
    return Completed(
        stdout=_text(done.stdout), stderr=_text(done.stderr), exit_code=done.returncode
    )


def run_shown(argv: Sequence[str], *, is_output: bool = False) -> str | None:
    """Runs a program to its end, showing its output; returns the reason if it failed.

    is_output: its output is the result, and goes to stdout; else to stderr, where messages go.
    """
    try:
        code = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=None if is_output else sys.stderr, check=False
        ).returncode
    except OSError as error:
        return error.strerror or str(error)
    return f"it {ending_text(code)}; its output is above" if code != 0 else None


def _text(output: bytes | None) -> str:
    return decoded(output or b"").replace("\r\n", "\n")


def decoded(output: bytes) -> str:
    """UTF-8, or UTF-16 as `wsl.exe` and `cmd.exe /u` write it: half of what is Latin there is zero.

    Bytes that are neither are replaced.
    """
    zeros = output[1::2].count(0)
    if output.startswith(b"\xff\xfe") or (zeros > 1 and zeros * 4 >= len(output) // 2):
        return output.decode("utf-16-le", errors="replace").removeprefix("\ufeff")
    return output.decode(errors="replace").removeprefix("\ufeff")


def _kill(process: subprocess.Popen[bytes]) -> None:
    kill_tree(process.pid)
    try:
        process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
