"""Sends alarms to a webhook and to a command of the user's, in a thread of its own.

What does not answer never holds up who raises the alarm: it is given up after a time, tried once
more, and reported once.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import subprocess
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import msgspec

from flatout.errors import UsageError
from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding, Fix
from flatout.schema.units import seconds_text
from flatout.system.clock import sleep_s
from flatout.system.kill_tree import kill_tree
from flatout.system.process_env import creation_flags

_REQUEST_LIMIT_S = 5.0
_PAUSE_S = 2.0
_COMMAND_LIMIT_S = 30.0
_MOST_WAITING = 100
# At the end, so long for what is still to be sent.
_CLOSE_LIMIT_S = 3.0
_PRINTED_BYTES = 4096


def check_webhook(url: str) -> str:
    """The address of a webhook.

    Raises:
        UsageError: bad-webhook.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(
            "bad-webhook",
            f"`--webhook {url}` is not a web address.",
            fix="give the URL that receives a POST: --webhook https://example.com/hook",
        )
    return url


class AlarmDelivery:
    """Hands alarms over, in their order.

    Args:
        webhook: receives each as JSON by POST.
        command: run by the shell for each, with the alarm as JSON on its stdin.
    """

    def __init__(self, webhook: str | None = None, command: str | None = None) -> None:
        self._webhook = webhook
        self._command = command
        self._alarms: queue.Queue[Alarm | None] = queue.Queue(_MOST_WAITING)
        self._problems: queue.Queue[Finding] = queue.Queue()
        self._reported: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False
        # Nobody waits any longer: what would be started now, would be left behind.
        self._is_over = False
        self._thread: threading.Thread | None = None
        if webhook or command:
            # Not waited for where it hangs.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def __enter__(self) -> AlarmDelivery:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._thread is None:
            return
        self._is_closing = True
        with contextlib.suppress(queue.Full):
            self._alarms.put_nowait(None)
        self._thread.join(_CLOSE_LIMIT_S)
        self._is_over = True
        process = self._process
        if process is not None and process.poll() is None:
            kill_tree(process.pid)

    def send(self, alarm: Alarm) -> None:
        """Sends an alarm, as soon as those before it are out; returns at once."""
        if self._thread is None:
            return
        try:
            self._alarms.put_nowait(alarm)
        except queue.Full:
            self._report("alarms", f"{_MOST_WAITING} alarms wait to be sent; newer ones are not")

    def problems(self) -> list[Finding]:
        """What could not be sent since the last call: for each target once, until it answers."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._problems.get_nowait())
        return found

    def _run(self) -> None:
        targets = [("webhook", self._webhook), ("command", self._command)]
        while (alarm := self._alarms.get()) is not None:
            content = msgspec.json.encode({"text": alarm.text, **msgspec.to_builtins(alarm)})
            for target in (name for name, value in targets if value):
                if self._is_over:
                    return
                try:
                    self._deliver(target, content)
                except Exception as error:  # noqa: BLE001 - the next alarm may get through
                    self._report(target, f"{type(error).__name__}: {error}")

    def _deliver(self, target: str, content: bytes) -> None:
        problem = None
        for attempt in range(2):
            if attempt and self._is_closing:
                break
            if attempt:
                sleep_s(_PAUSE_S)
            problem = self._post(content) if target == "webhook" else self._call(content)
            # A command that has failed has perhaps done half of its work.
            if problem is None or target == "command":
                break
        if problem is None:
            self._reported.discard(target)
        else:
            self._report(target, problem)

    def _report(self, target: str, because: str) -> None:
        if target in self._reported:
            return
        self._reported.add(target)
        fixes = {
            "webhook": "check its address, and that it answers: curl -d '{}' URL",
            "command": "run it yourself, with the alarm on its stdin",
        }
        self._problems.put(
            Finding(
                rule="alarm-not-delivered",
                severity="warning",
                problem=f"an alarm was not delivered to the {target}."
                if target in fixes
                else "an alarm was not delivered.",
                because=because,
                fixes=(Fix(text=fixes[target]),) if target in fixes else (),
            )
        )

    def _post(self, content: bytes) -> str | None:
        """Why a request has failed; None if it has not."""
        assert self._webhook is not None
        # Its path is often a secret.
        host = urlsplit(self._webhook).hostname
        request = urllib.request.Request(
            self._webhook, content, {"Content-Type": "application/json", "User-Agent": "flatout"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_LIMIT_S) as answer:
                answer.read(_PRINTED_BYTES)
        except urllib.error.HTTPError as error:
            error.close()
            return f"{host} answered {error.code} {error.reason}"
        except TimeoutError:
            return f"{host} did not answer within {seconds_text(_REQUEST_LIMIT_S)}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return f"{host} did not answer within {seconds_text(_REQUEST_LIMIT_S)}"
            return f"{host}: {reason}"
        return None

    def _call(self, content: bytes) -> str | None:
        """Why the command has failed; None if it has not."""
        assert self._command is not None
        try:
            process = subprocess.Popen(
                self._command,
                shell=True,  # It is a line for the user's shell, as typed.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                creationflags=creation_flags(),
            )
        except OSError as error:
            return str(error)
        self._process = process
        try:
            _, printed = process.communicate(content, _COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            return f"it did not end within {seconds_text(_COMMAND_LIMIT_S)}"
        finally:
            for stream in (process.stdin, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            process.wait()
            self._process = None
        if process.returncode == 0:
            return None
        lines = printed[-_PRINTED_BYTES:].decode(errors="replace").strip().splitlines()
        return f"exit code {process.returncode}" + (f": {lines[-1]}" if lines else "")
