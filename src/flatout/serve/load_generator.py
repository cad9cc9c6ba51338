"""The process that sends the requests of `flatout loadtest`: users of Locust, without its web page.

    python -m flatout.serve.load_generator

Locust has gevent replace parts of the standard library, so it is imported in functions: this file
can be imported anywhere, and only its process is changed. Locust's FastHttpUser builds and checks
every header of every request again, which takes most of its time: these users speak HTTP with the
parser that it uses, over a connection each.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections import deque
from typing import IO, Any, cast
from urllib.parse import urlsplit

import msgspec

from flatout.schema.loadtest import LoadBegan, LoadEnded, LoadJob, LoadTick
from flatout.serve.answer_check import is_expected_body
from flatout.serve.load_records import (
    ANSWERED,
    CONNECTION,
    STATUS,
    TIMEOUT,
    UNSENT,
    WRONG,
    LoadRecord,
    example_name,
    pack_record,
    quantile,
)
from flatout.system.clock import elapsed_s, process_s
from flatout.system.json_process import JsonLines, JsonStdio
from flatout.system.open_file_limit import raise_open_file_limit

# Without any answer for so long, the server is gone.
_GONE_S = 5.0
# A client that was refused does not try again at once.
_REFUSED_PAUSE_S = 0.1
# Servers close connections that were idle for some seconds.
_MOST_IDLE_S = 2.0
# So many requests may be sent late in a row before the answers are read.
_MOST_IN_A_ROW = 32
_EXAMPLE_BYTES = 300
_REDIRECTS = range(300, 400)


class _UserConnection:
    """A connection to the server, opened when it is needed."""

    def __init__(self, url: str, method: str, timeout_s: float) -> None:
        from gevent import Timeout
        from geventhttpclient.response import HTTPSocketResponse

        parts = urlsplit(url)
        self._limit, self._read = Timeout, HTTPSocketResponse
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._address = (self._host, parts.port or (443 if self._is_secure else 80))
        self._method, self._timeout_s = method, timeout_s
        self._socket: Any = None
        self._used_s = 0.0

    def ask(self, request: bytes) -> tuple[int, bytes, str]:
        """Status and body of the answer, and the address that it redirects to.

        Raises:
            OSError, HTTPParseError: there is none.
        """
        if elapsed_s() - self._used_s > _MOST_IDLE_S:
            self.close()
        try:
            # For all of it: a server that sends a byte now and then is as late as a silent one.
            with self._limit(self._timeout_s, TimeoutError):
                if self._socket is None:
                    self._socket = self._connected()
                self._socket.sendall(request)
                response = self._read(self._socket, method=self._method)
                body = response.read()
        except BaseException:
            self.close()
            raise
        if response.should_close():
            self.close()
        self._used_s = elapsed_s()
        # Given twice, it is a list.
        target = response.get("location", "") if response.get_code() in _REDIRECTS else ""
        return response.get_code(), body, str(target)

    def close(self) -> None:
        """Closes it, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> Any:
        from gevent import socket

        connected = socket.create_connection(self._address)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_secure:
            connected = _tls_context().wrap_socket(connected, server_hostname=self._host)
        return connected


@functools.cache
def _tls_context() -> Any:
    """One for all connections: it reads the certificates of the system."""
    from gevent import ssl

    return ssl.create_default_context()


def _request_bytes(job: LoadJob, body: bytes) -> bytes:
    parts = urlsplit(job.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.netloc, **job.headers}
    if body or job.method != "GET":
        headers["Content-Length"] = str(len(body))
    lines = [f"{job.method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class _Load:
    """One job: what its users share. Times are by `elapsed_s`; the warm-up ends at began_s."""

    def __init__(self, job: LoadJob, records: IO[bytes], answers: JsonLines) -> None:
        from gevent import sleep
        from gevent.event import AsyncResult, Event
        from geventhttpclient.response import HTTPParseError

        self._sleep, self._new_ticket, self._parse_error = sleep, AsyncResult, HTTPParseError
        self.job = job
        self._records, self._answers = records, answers
        self._requests = [_request_bytes(job, body) for body in job.bodies]
        self._expected = [msgspec.json.decode(text) for text in job.expected]
        self._places = itertools.cycle(range(len(job.bodies)))
        self.began_s = elapsed_s() + job.warmup_s
        self.end_s = self.began_s + job.duration_s
        self._last_answer_s, self._is_refused = self.began_s, False
        self._latencies: list[float] = []
        self._num_errors = 0
        self._examples: dict[str, str] = {}
        # Of a schedule: connections that wait for a request, the last used one at the end, and
        # requests that wait for a connection.
        self._idle: list[Any] = []
        self._waiting: deque[float] = deque()
        self._is_sent = job.rate_per_s is None
        self.num_running = job.users
        self.is_over = Event()

    def run_user(self) -> None:
        """A user, until the end of the test."""
        job = self.job
        connection = _UserConnection(job.url, job.method, job.timeout_s)
        if job.rate_per_s is None:
            while (now_s := elapsed_s()) < self.end_s:
                self._send(connection, now_s, 0.0)
        else:
            while (due := self._next_due()) is not None:
                due_s, is_idle = due
                lag_s = elapsed_s() - due_s
                if lag_s > job.timeout_s:
                    self._record(LoadRecord(due_s, lag_s, 0.0, 0, 0, UNSENT, next(self._places)))
                else:
                    self._send(connection, due_s, lag_s if is_idle else 0.0)
        connection.close()
        self.num_running -= 1
        if self.num_running == 0:
            self.is_over.set()

    def keep_schedule(self) -> None:
        """Has every request sent when it is due: by an idle connection, or the first that is."""
        rate_per_s = self.job.rate_per_s
        assert rate_per_s is not None
        start_s, number = self.began_s - self.job.warmup_s, 0
        while (due_s := start_s + number / rate_per_s) < self.end_s:
            left_s = due_s - elapsed_s()
            if left_s > 0:
                self._sleep(left_s)
                continue
            number += 1
            if self._idle:
                self._idle.pop().set(due_s)
            else:
                self._waiting.append(due_s)
            if number % _MOST_IN_A_ROW == 0:
                self._sleep(0)
        self._is_sent = True
        while self._idle:
            self._idle.pop().set(None)

    def report(self) -> None:
        """Writes records and a line for the screen, once a second."""
        self._sleep(max(0.0, self.began_s - elapsed_s()))
        self._answers.write(LoadBegan())
        for second in itertools.count(1):
            self._sleep(max(0.0, self.began_s + second - elapsed_s()))
            try:
                self.write_tick(float(second))
            except OSError:
                # The parent is gone.
                os._exit(1)
            limit_s = _GONE_S if self._is_refused else _GONE_S + self.job.timeout_s
            if elapsed_s() - self._last_answer_s > limit_s:
                self.end_s = min(self.end_s, elapsed_s())

    def write_tick(self, at_s: float) -> None:
        """What was finished since the last time."""
        ordered, num_errors = sorted(self._latencies), self._num_errors
        self._latencies, self._num_errors = [], 0
        self._records.flush()
        self._answers.write(
            LoadTick(
                at_s=at_s, num_answered=len(ordered), num_errors=num_errors,
                p50_s=quantile(ordered, 0.5) if ordered else None,
                p99_s=quantile(ordered, 0.99) if ordered else None,
            )
        )  # fmt: skip

    @property
    def examples(self) -> dict[str, str]:
        """The beginning of an answer of each kind that was not good."""
        return self._examples

    def _next_due(self) -> tuple[float, bool] | None:
        """When the next request was due, and whether this connection had nothing to do."""
        if self._waiting:
            return self._waiting.popleft(), False
        if self._is_sent:
            return None
        ticket = self._new_ticket()
        self._idle.append(ticket)
        due_s = ticket.get()
        return None if due_s is None else (due_s, True)

    def _send(self, connection: _UserConnection, due_s: float, lag_s: float) -> None:
        place, status, body, failure = next(self._places), 0, b"", ""
        try:
            status, body, target = connection.ask(self._requests[place])
            # A redirect is not the answer to a request, and users of the server would wait longer.
            kind = ANSWERED if status < 300 else STATUS
            failure = f"redirects to {target}"[:_EXAMPLE_BYTES] if target else ""
        except TimeoutError:
            kind = TIMEOUT
        except (OSError, self._parse_error) as error:
            kind, failure = CONNECTION, str(error) or type(error).__name__
        latency_s = elapsed_s() - due_s
        if kind == ANSWERED and self._expected:
            expected = self._expected[place % len(self._expected)]
            kind = ANSWERED if is_expected_body(expected, body) else WRONG
        record = LoadRecord(due_s, latency_s, lag_s, len(body), status, kind, place)
        self._record(record, failure or body[:_EXAMPLE_BYTES].decode(errors="replace"))
        if kind == CONNECTION:
            self._sleep(_REFUSED_PAUSE_S)

    def _record(self, record: LoadRecord, answer: str = "") -> None:
        self._is_refused = record.kind == CONNECTION
        if record.status:
            self._last_answer_s = elapsed_s()
        due_s = record.due_s - self.began_s
        if due_s < 0:
            return
        if record.kind == ANSWERED:
            self._latencies.append(record.latency_s)
        else:
            self._num_errors += 1
            self._examples.setdefault(example_name(record.kind, record.status), answer)
        self._records.write(pack_record(msgspec.structs.replace(record, due_s=due_s)))


def run(job: LoadJob, answers: JsonLines) -> LoadEnded:
    """Sends the requests of one job."""
    import gevent
    from locust import User, task
    from locust.env import Environment
    from locust.exception import StopUser

    with open(job.records, "wb") as records:

        class Client(User):
            @task
            def send(self) -> None:
                load.run_user()
                raise StopUser

        environment = Environment(user_classes=[Client], catch_exceptions=False)
        runner = environment.create_local_runner()
        # What was loaded until here is never looked at by the garbage collector again.
        gc.collect()
        gc.freeze()
        load = _Load(job, records, answers)
        runner.start(job.users, spawn_rate=job.users)
        reporting = gevent.spawn(load.report)
        if job.rate_per_s is not None:
            gevent.spawn(load.keep_schedule)
        gevent.sleep(max(0.0, load.began_s - elapsed_s()))
        cpu_s, began_s = process_s(), elapsed_s()
        load.is_over.wait()
        cpu_s, wall_s = process_s() - cpu_s, elapsed_s() - began_s
        reporting.kill()
        runner.quit()
    return LoadEnded(
        measured_s=max(0.0, load.end_s - load.began_s),
        cpu_s=cpu_s,
        wall_s=wall_s,
        examples=load.examples,
    )


def main() -> None:
    """Carries out jobs until the parent closes the pipe."""
    # A connection for each user: without one, its requests would count as errors of the server.
    raise_open_file_limit()
    stdio = JsonStdio()
    for job in stdio.requests(LoadJob):
        try:
            stdio.answers.write(run(cast(LoadJob, job), stdio.answers))
        except BrokenPipeError:
            # The parent is gone.
            os._exit(1)


if __name__ == "__main__":
    main()
