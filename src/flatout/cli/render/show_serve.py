"""`flatout serve`: what it starts, what it serves, and one live line while it does."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterable, Iterator

import msgspec
from rich.live import Live
from rich.text import Text

from flatout.cli.render import show, wording
from flatout.cli.render.live import Waiting
from flatout.schema.finding import Finding
from flatout.schema.serve_control import (
    BatchesMeasured,
    ReplicaLost,
    ReplicaPrinted,
    ReplicaRestored,
    ReplicaWarming,
    ServeEvent,
    ServeReady,
    ServeStarted,
    ServeStopped,
    ServeStopping,
    ServeSwapped,
    ServeTick,
    SwapFailed,
    SwapReply,
)
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.schema.units import count_text, counted_text, noun_text, rate_text, seconds_text

_KINDS = {"file": "files", "text": "texts", "value": "JSON values"}
# More do not fit in a line of 80 characters.
_MOST_SIZES = 4
# Events that a blocked terminal may hold up; beyond that, those that can be missed are left out.
_MOST_EVENTS = 1000


class ServeDisplay:
    """Shows a server while it runs, in a thread: a terminal or pipe that blocks must not block it.

    Args:
        is_json: events as lines of JSON on stdout; for people only what concerns them, on stderr.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._console = show.make_console(is_error=is_json)
        is_alive = show.is_alive(self._console) and not is_json
        live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live = live if is_alive else None
        self._waiting = Waiting("looking at the model and its environment")
        self._is_ready = False
        self._warming = ""
        self._events: queue.Queue[ServeEvent | None] = queue.Queue()
        self._thread = threading.Thread(target=self._show_all, daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> ServeDisplay:
        self._waiting.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._events.put(None)
        self._thread.join()
        self._waiting.stop()
        if self._live is not None:
            self._live.stop()
        if self._error is not None and error is None:
            raise self._error

    def take(self, event: ServeEvent) -> None:
        """Shows what is new.

        Raises:
            OSError: an earlier event could not be written.
        """
        if self._error is not None:
            raise self._error
        can_miss = isinstance(event, ServeTick | ReplicaPrinted)
        if not can_miss or self._events.qsize() < _MOST_EVENTS:
            self._events.put(event)

    def _show_all(self) -> None:
        try:
            while (event := self._events.get()) is not None:
                self._show(event)
        except Exception as error:  # noqa: BLE001 - raised where events come from
            self._error = error

    def _show(self, event: ServeEvent) -> None:
        if isinstance(event, ServeTick):
            self._show_tick(event)
            return
        if self._is_json:
            sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
            sys.stdout.buffer.flush()
        if isinstance(event, ReplicaWarming):
            self._show_warming(_warming_text(event))
            return
        if isinstance(event, ServeStopping):
            self._is_ready = False
            if self._live is not None:
                # What it showed was of a server that accepts requests.
                self._live.stop()
        if isinstance(event, ReplicaPrinted):
            self._console.print(event.text.rstrip("\n"), soft_wrap=True)
            return
        self._warming = ""
        self._waiting.stop()
        for finding in _findings(event):
            show.print_finding(finding)
        if self._is_json:
            return
        show.print_lines(self._console, _lines(event))
        if isinstance(event, ServeReady):
            self._is_ready = True
            if event.example is not None:
                self._console.print(f"\n    {event.example}\n", style="bold", soft_wrap=True)
        elif isinstance(event, ServeStarted):
            count = event.num_replicas or 1
            self._waiting.update("starting " + noun_text(count, "the replica", "the replicas"))

    def _show_warming(self, text: str) -> None:
        if self._is_ready:
            # In the line of what answers meanwhile.
            self._warming = text
        elif self._live is not None:
            self._waiting.update(text)
        elif not self._is_json:
            show.print_lines(self._console, [("warming", text)])

    def _show_tick(self, tick: ServeTick) -> None:
        if self._live is None or not self._is_ready:
            return
        self._live.start()
        line = wording.DOT.join(filter(None, [tick_text(tick), self._warming]))
        text = Text(line, no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)


def _findings(event: ServeEvent) -> Iterable[Finding]:
    if isinstance(event, ServeStarted | ServeReady):
        return event.findings
    if isinstance(event, BatchesMeasured):
        return () if event.finding is None else (event.finding,)
    return (event.finding,) if isinstance(event, ReplicaLost | SwapFailed) else ()


def _lines(event: ServeEvent) -> Iterator[tuple[str, str]]:
    if isinstance(event, ServeStarted):
        count = event.num_replicas
        replicas = "" if count is None else counted_text(count, "replica")
        parts = [event.name, replicas, wording.home_text(event.place)]
        yield "starting", wording.DOT.join(filter(None, parts))
    elif isinstance(event, ServeReady):
        yield from ready_lines(event)
    elif isinstance(event, ReplicaLost):
        yield "replica", _lost_text(event)
    elif isinstance(event, ReplicaRestored):
        yield "replica", f"replica {event.replica} answers again (process {event.pid})"
    elif isinstance(event, ServeSwapped):
        yield from swapped_lines(event)
    elif isinstance(event, BatchesMeasured):
        if event.finding is None:
            text = batches_text(event.model, event.batch_samples)
            yield "batches", f"measured again: {text}"
    elif isinstance(event, ServeStopping):
        count = event.num_open
        requests = "requests" if count is None else counted_text(count, "request")
        yield "stopping", f"finishing {requests}" if count != 0 else "no request is open"
    elif isinstance(event, ServeStopped):
        yield "stopped", _stopped_text(event)


def ready_lines(ready: ServeReady) -> Iterator[tuple[str, str]]:
    """What is served, where, and how to use it."""
    model = ready.model
    yield "serving", f"{_name(model)}{wording.DOT}ready in {seconds_text(ready.startup_s)}"
    yield "address", f"{ready.url}{wording.DOT}documentation: {ready.url}/docs"
    if ready.needs_token:
        yield "token", "clients send the header `authorization: Bearer TOKEN`"
    replicas = counted_text(ready.num_replicas, "replica")
    yield "device", wording.DOT.join([model.device, model.precision, replicas])
    label = "recipe"
    for line in model.recipe:
        yield label, line
        label = ""
    yield "input", input_text(model)
    if model.outputs:
        yield "output", ", ".join(map(tensor_text, model.outputs))
    yield "batches", batches_text(model, ready.batch_samples)
    waiting = f"up to {counted_text(ready.max_queue, 'request')}"
    yield "queue", f"{waiting}{wording.DOT}{seconds_text(ready.timeout_s)} for each"
    yield "end", "Ctrl-C"
    if ready.example is not None:
        yield "try", ""


def input_text(model: ServedModel) -> str:
    """What a request may hold."""
    parts = [", ".join(map(tensor_text, model.inputs))] if "tensors" in model.accepts else []
    parts += [_KINDS[kind] for kind in model.accepts if kind in _KINDS]
    return wording.DOT.join(part or "tensors" for part in parts)


def tensor_text(tensor: TensorSpec) -> str:
    """A tensor: "images float32 [n, 1, 8, 8]"."""
    sizes = ["n", *("?" if size is None else str(size) for size in tensor.shape[1:])]
    return f"{tensor.name} {tensor.dtype} [{', '.join(sizes)}]"


def batches_text(model: ServedModel, most: int) -> str:
    """The sizes of batches with their times."""
    up_to = f"up to {count_text(most)} {model.unit}"
    sizes = sorted(size for size in model.batch_s if size <= most)
    if len(sizes) > _MOST_SIZES:
        # The first, the last, and some between them.
        step = (len(sizes) - 1) / (_MOST_SIZES - 1)
        sizes = [sizes[round(number * step)] for number in range(_MOST_SIZES)]
    times = [f"{count_text(size)}: {seconds_text(model.batch_s[size])}" for size in sizes]
    return wording.DOT.join([up_to, *([", ".join(times)] if times else [])])


def tick_text(tick: ServeTick) -> str:
    """The present state in one line."""
    parts = [rate_text(tick.requests_per_s, "requests")]
    if tick.p50_s is not None and tick.p99_s is not None:
        parts += [f"p50 {seconds_text(tick.p50_s)}", f"p99 {seconds_text(tick.p99_s)}"]
    parts.append(f"queue {count_text(tick.num_queued)}")
    if tick.batch_samples is not None:
        parts.append(f"batch {tick.batch_samples:.1f}")
    if tick.num_ready < tick.num_replicas:
        parts.append(f"{tick.num_ready} of {counted_text(tick.num_replicas, 'replica')}")
    return wording.DOT.join(parts)


def swapped_lines(swapped: ServeSwapped) -> Iterator[tuple[str, str]]:
    """The new model."""
    model = swapped.model
    warm = f"warm in {seconds_text(swapped.warmup_s)}"
    parts = [_name(model), model.device, model.precision, warm]
    yield "swapped", wording.DOT.join(parts)


def show_swap(replies: Iterator[SwapReply], *, is_json: bool) -> int:
    """Shows the progress of a swap, and its result; returns the exit code."""
    with Waiting("looking at the model and its environment") as waiting:
        for reply in replies:
            if isinstance(reply, ReplicaWarming):
                waiting.update(_warming_text(reply))
                continue
            waiting.stop()
            if isinstance(reply, SwapFailed):
                show.print_finding(reply.finding)
            if is_json:
                show.print_json(reply)
            elif isinstance(reply, ServeSwapped):
                console = show.make_console()
                show.print_lines(console, swapped_lines(reply))
                show.print_command(console, "back", "flatout serve swap --back")
            if isinstance(reply, SwapFailed):
                return reply.exit_code
    return 0


def _name(model: ServedModel) -> str:
    run, _, step = model.version.rpartition(".")
    if run == model.name:
        return f"{run}, step {step}"
    return model.name if model.version in ("", model.name) else f"{model.name} {model.version}"


def _warming_text(event: ReplicaWarming) -> str:
    return f"{event.name}, replica {event.replica}: {event.what}"


def _lost_text(event: ReplicaLost) -> str:
    when = f"in {seconds_text(event.restart_in_s)}" if event.restart_in_s else "now"
    parts = [f"replica {event.replica} starts again {when}"]
    if event.num_retried:
        parts.append(f"{counted_text(event.num_retried, 'request')} computed again")
    if event.num_failed:
        parts.append(f"{counted_text(event.num_failed, 'request')} failed")
    return wording.DOT.join(parts)


def _stopped_text(event: ServeStopped) -> str:
    parts = [f"{counted_text(event.num_answered, 'request')} answered"]
    for count, what in (
        (event.num_refused, "refused"), (event.num_failed, "failed"), (event.num_lost, "lost"),
    ):  # fmt: skip
        if count:
            parts.append(f"{count_text(count)} {what}")
    parts.append(f"up for {seconds_text(event.uptime_s)}")
    return wording.DOT.join(parts)
