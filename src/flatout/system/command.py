"""Running a program that may be missing, fail, hang, or leave children behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

# A killed process that is stuck in the kernel (a driver that hangs) is not waited for any longer.
_GRACE_S = 0.5

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NO_WINDOW
else:
    _CREATION_FLAGS = 0


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended.

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
            # Windows has no such thing, and Python refuses it there.
            pass_fds=kept_open if sys.platform != "win32" else (),
        )
    except (OSError, ValueError) as error:
        told = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Completed(reason=told)
    try:
        stdout, stderr = process.communicate(
            None if text is None else text.encode(), timeout=timeout_s
        )
    except subprocess.TimeoutExpired as late:
        _kill_tree(process)
        return Completed(
            stdout=_text(late.stdout),
            stderr=_text(late.stderr),
            reason=f"no answer within {timeout_s:g} s",
        )
    except BaseException:
        _kill_tree(process)
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
        told = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Completed(reason=told)
    return Completed(
        stdout=_text(done.stdout), stderr=_text(done.stderr), exit_code=done.returncode
    )


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


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        import psutil

        try:
            for descendant in psutil.Process(process.pid).children(recursive=True):
                descendant.kill()
        except psutil.Error:
            pass  # It ended by itself in the meantime.
        process.kill()
    else:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # macOS says PermissionError when only zombies are left.
    try:
        process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
