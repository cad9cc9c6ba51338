"""What `flatout serve` prints."""

from __future__ import annotations

import io
import json
import sys
import threading

import pytest

from flatout.cli.render.show_serve import (
    ServeDisplay,
    batches_text,
    input_text,
    ready_lines,
    tick_text,
)
from flatout.schema.serve_control import ReplicaPrinted, ServeReady, ServeStopping, ServeTick
from flatout.schema.serve_model import ServedModel, TensorSpec

MODEL = ServedModel(
    name="digits-0001", version="digits-0001.400", format="run",
    inputs=(TensorSpec(name="x", dtype="float32", shape=(None, 1, 8, None)),),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=(None, 10)),),
    accepts=("tensors", "file"), recipe=("compiled=on: 1.4x", "num_threads=1: shared out"),
    batch_s={1: 0.0002, 2: 0.0003, 4: 0.0004, 8: 0.0005, 16: 0.0006, 32: 0.0007, 64: 0.001},
    max_samples=64, unit="images",
)  # fmt: skip


def test_ready_lines() -> None:
    ready = ServeReady(
        url="http://127.0.0.1:8000", model=MODEL, num_replicas=2, batch_samples=32,
        max_queue=1024, timeout_s=30, needs_token=True, startup_s=2.5, example="curl ...",
    )  # fmt: skip
    assert list(ready_lines(ready)) == [
        ("serving", "digits-0001, step 400 · ready in 2.5 s"),
        ("address", "http://127.0.0.1:8000 · documentation: http://127.0.0.1:8000/docs"),
        ("token", "clients send the header `authorization: Bearer TOKEN`"),
        ("device", "cpu · fp32 · 2 replicas"),
        ("recipe", "compiled=on: 1.4x"),
        ("", "num_threads=1: shared out"),
        ("input", "x float32 [n, 1, 8, ?] · files"),
        ("output", "logits float32 [n, 10]"),
        (
            "batches",
            "up to 32 images · 1: 200 us, 4: 400 us, 8: 500 us, 32: 700 us",
        ),
        ("queue", "up to 1,024 requests · 30 s for each"),
        ("end", "Ctrl-C"),
        ("try", ""),
    ]


def test_batches_text_has_a_few_of_many_sizes() -> None:
    text = batches_text(MODEL, 64)
    assert text.startswith("up to 64 images · 1: 200 us, ") and text.endswith(", 64: 1 ms")
    assert text.count(":") == 4


def test_input_text_when_only_the_experiment_knows_it() -> None:
    model = ServedModel(name="m", version="1", format="run", accepts=("tensors", "text", "value"))
    assert input_text(model) == "tensors · texts · JSON values"


def test_tick_text() -> None:
    tick = ServeTick(requests_per_s=812.4, num_queued=3, num_ready=1, num_replicas=2)
    assert tick_text(tick) == "812 requests/s · queue 3 · 1 of 2 replicas"
    busy = ServeTick(
        requests_per_s=20, num_queued=0, num_ready=1, num_replicas=1, p50_s=0.0061, p99_s=0.014,
        batch_samples=11.44,
    )  # fmt: skip
    assert tick_text(busy) == "20 requests/s · p50 6.1 ms · p99 14 ms · queue 0 · batch 11.4"


class Blocked(io.StringIO):
    """A pipe that nothing reads until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def write(self, text: str) -> int:
        self.opened.wait()
        return super().write(text)


def test_display_does_not_wait_for_a_pipe_that_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked()
    monkeypatch.setattr(sys, "stdout", blocked)
    with ServeDisplay(is_json=False) as display:
        for number in range(5_000):
            display.take(ReplicaPrinted(replica=0, text=f"line {number}\n"))
        # What must be seen is shown, however much was left out before.
        display.take(ServeStopping(num_open=3))
        blocked.opened.set()
    lines = blocked.getvalue().splitlines()
    assert lines[0] == "line 0" and len(lines) <= 1_002
    assert lines[-1].endswith("finishing 3 requests")


def test_display_fails_when_its_pipe_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(ValueError, match="closed file"), ServeDisplay(is_json=False) as display:
        closed.close()
        display.take(ServeStopping(num_open=1))


def test_display_passes_on_what_replicas_print(capsys: pytest.CaptureFixture[str]) -> None:
    with ServeDisplay(is_json=True) as display:
        display.take(ReplicaPrinted(replica=1, text="Traceback: [x]\n"))
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "event": "replica-printed", "replica": 1, "text": "Traceback: [x]\n",
    }  # fmt: skip
    assert printed.err == "Traceback: [x]\n"
