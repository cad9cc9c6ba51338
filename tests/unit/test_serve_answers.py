"""Answers to batches: grouped, split, retried; with a model that only adds."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Generator, Hashable, Iterator, Sequence
from typing import Any

import pytest

from flatout.engine.serve import batch_times
from flatout.engine.serve.answering import Answers, DeviceLost
from flatout.engine.serve.batch_times import (
    best_size,
    best_threads,
    clock_for,
    measured_again,
    measured_sizes,
    seconds_of,
    thread_counts,
)
from flatout.engine.serve.replica_model import (
    FailureKind,
    InputPart,
    MeasureBatches,
    ReadInput,
)
from flatout.schema.finding import Finding
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import (
    Answered,
    AnyInput,
    BatchItem,
    ItemRefused,
    Measured,
    ReplicaStart,
    ValueInput,
    WireTensor,
)


class Adding:
    """Adds one to lists of numbers. -1 raises, -2 loses the device; memory holds `room` numbers."""

    def __init__(self, room: int = 100) -> None:
        self.findings: list[Finding] = []
        self.usual_keys: set[Hashable] = {"int"}
        self.measure_batches: MeasureBatches | None = None
        self.room = room
        self.batches: list[list[Any]] = []

    def warm_up(self, start: ReplicaStart) -> Generator[str, None, ServedModel]:
        yield ""
        return ServedModel(name="", version="", format="run")

    def begin_batch(self) -> None:
        pass

    def read(self, given: AnyInput) -> ReadInput:
        assert isinstance(given, ValueInput)
        values = list(given.value)
        return ReadInput(type(values[0]).__name__, len(values), values)

    def joined(self, parts: Sequence[InputPart]) -> Any:
        return [value for part in parts for value in part.read.data[part.start : part.end]]

    def compute(self, batch: Any, num_samples: int) -> Any:
        self.batches.append(batch)
        assert len(batch) == num_samples
        if num_samples > self.room:
            raise MemoryError
        if -1 in batch:
            raise ValueError("below zero")
        if -2 in batch:
            raise SystemError
        return [value + 1 for value in batch]

    def rows(self, predictions: Any, num_samples: int, top: int) -> list[dict[str, Any]]:
        return [{"sum": value, "top": top} for value in predictions]

    def tensors(self, predictions: Any, start: int, end: int) -> tuple[WireTensor, ...]:
        return (WireTensor("sum", "uint8", (end - start,), bytes(predictions[start:end])),)

    def stream(self, given: AnyInput) -> Iterator[str]:
        yield from ()

    def failure_kind(self, error: Exception) -> FailureKind:
        kinds: dict[type[Exception], FailureKind] = {MemoryError: "memory", SystemError: "device"}
        return kinds.get(type(error), "other")

    def release_memory(self) -> None:
        pass

    def memory_bytes(self) -> int | None:
        return None


def items(*values: Any, **fields: Any) -> list[BatchItem]:
    return [BatchItem(id=n, input=ValueInput(v), **fields) for n, v in enumerate(values)]


def answered(model: Adding, asked: list[BatchItem], most: int = 8) -> dict[int, Any]:
    return {one.id: one for one in Answers(model, most, model.usual_keys).of(asked)}


def sums(answer: Any) -> list[float]:
    assert isinstance(answer, Answered)
    return [row["sum"] for row in answer.rows]


def test_items_of_a_kind_are_computed_together() -> None:
    model = Adding()
    found = answered(model, items([1], [1.5], [2, 3], [2.5]))
    assert [sums(found[n]) for n in range(4)] == [[2], [2.5], [3, 4], [3.5]]
    assert model.batches == [[1, 2, 3], [1.5, 2.5]]


def test_a_batch_is_split_and_its_items_with_it_when_it_is_too_large() -> None:
    model = Adding()
    found = answered(model, items([1, 2, 3], [4, 5], is_raw=True), most=2)
    assert model.batches == [[1, 2], [3, 4], [5]]
    assert found[0].tensors == (WireTensor("sum", "uint8", (3,), bytes([2, 3, 4])),)
    assert found[1].tensors == (WireTensor("sum", "uint8", (2,), bytes([5, 6])),)


def test_the_guilty_alone_are_refused_when_the_model_raises() -> None:
    model = Adding()
    found = answered(model, items([1], [-1, 2], [3], []))
    assert (sums(found[0]), sums(found[2])) == ([2], [4])
    assert isinstance(found[1], ItemRefused) and found[1].finding.rule == "model-failed"
    # The model computes such inputs: it is not the input's fault.
    assert not found[1].is_input
    assert isinstance(found[3], ItemRefused) and found[3].is_input
    strange = answered(model, items(["text"]))[0]
    assert isinstance(strange, ItemRefused) and strange.is_input


def test_the_guilty_one_of_many_is_found_by_halving() -> None:
    model = Adding()
    found = answered(model, items(*([n] for n in range(40)), [-1], *([n] for n in range(23))), 64)
    assert [n for n, one in found.items() if isinstance(one, ItemRefused)] == [40]
    assert len(model.batches) == 1 + 2 * 6


@pytest.mark.parametrize("room", [1, 2, 3])
def test_a_batch_is_halved_when_memory_runs_out(room: int) -> None:
    model = Adding(room)
    found = answered(model, items([1, 2, 3, 4, 5], [6], [7]))
    assert [sums(found[n]) for n in range(3)] == [[2, 3, 4, 5, 6], [7], [8]]


def test_a_sample_that_needs_too_much_memory_is_refused() -> None:
    found = answered(Adding(0), items([1], [2]))
    assert {one.finding.rule for one in found.values()} == {"out-of-memory"}
    assert not any(one.is_input for one in found.values())


def test_a_lost_device_ends_everything() -> None:
    with pytest.raises(DeviceLost):
        answered(Adding(), items([1], [-2]))


def test_rows_are_of_each_items_own_top() -> None:
    asked = [*items([1], top=3), BatchItem(id=5, input=ValueInput([2]))]
    found = answered(Adding(), asked)
    assert [found[n].rows[0]["top"] for n in (0, 5)] == [3, 1]


def test_a_model_that_fails_on_its_example_says_so_when_it_is_measured() -> None:
    model = Adding()
    assert measured(model, ValueInput([-1])) == {}
    assert [finding.rule for finding in model.findings] == ["model-failed"]
    assert model.findings[0].severity == "warning"


def test_a_batch_that_does_not_fit_is_measured_in_halves() -> None:
    model = Adding(room=5)
    # Each size is one batch of so many samples: 8 of them do not fit, and are computed in halves.
    assert set(measured(model, ValueInput([1]), max_samples=8)) == {1, 2, 4, 8}
    assert model.findings == []


def measured(
    model: Adding, example: AnyInput, max_samples: int | None = None
) -> dict[int, float]:  # fmt: skip
    steps = measured_sizes(model, example, 0.02, max_samples, time.perf_counter)
    while True:
        try:
            assert next(steps).startswith("measuring batches of")
        except StopIteration as ended:
            found: dict[int, float] = ended.value
            return found


def test_batches_measured_again_take_the_shorter_times() -> None:
    def measure() -> Generator[str, None, dict[int, float]]:
        yield "a size"
        yield "another size"
        return {1: 0.002, 2: 0.001, 4: 0.0015}

    model = Adding()
    before = {1: 0.001, 2: 0.004, 8: 0.5}
    nothing = Measured(batch_s=before, max_samples=1)
    assert list(measured_again(model, before, 0.02)) == [nothing]
    model.measure_batches = measure
    *texts, found = measured_again(model, before, 0.02)
    assert texts == ["a size", "another size"]
    times = {1: 0.001, 2: 0.001, 8: 0.5, 4: 0.0015}
    assert found == Measured(batch_s=times, max_samples=4)
    # Requests would wait for a call that is slow.
    slow = {1: 0.7}
    assert list(measured_again(model, slow, 0.02)) == [Measured(batch_s=slow, max_samples=1)]


def test_batches_measured_again_say_why_they_could_not_be() -> None:
    model = Adding()
    known, new = (
        Finding(rule="model-failed", severity="warning", problem=text) for text in ("old.", "new.")
    )
    model.findings.append(known)

    def measure() -> Generator[str, None, dict[int, float]]:
        yield "a size"
        model.findings.append(new)
        return {}

    model.measure_batches = measure
    *_, found = measured_again(model, {1: 0.001}, 0.02)
    assert found == Measured(batch_s={1: 0.001}, max_samples=1, finding=new)


def test_samples_of_a_batch_are_computed_as_the_server_says() -> None:
    model = Adding()
    answers = Answers(model, 2)
    answers.of(items([1, 2, 3]), 8)
    answers.of(items([1, 2, 3]))
    assert model.batches == [[1, 2, 3], [1, 2], [3]]


def test_seconds_of_a_call_when_other_programs_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    # So many calls as are made on an idle machine, however long each takes.
    monkeypatch.setattr(batch_times, "_LIMIT_S", 60.0)
    pauses = itertools.cycle([0.01, 0.01, 0.001, 0.01])
    assert seconds_of(lambda: time.sleep(next(pauses))) < 0.008


@pytest.mark.skipif(sys.platform == "win32", reason="its clock of threads is too coarse")
def test_seconds_of_a_call_are_its_work_when_one_thread_of_the_cpu_does_it() -> None:
    for device, num_threads, is_work in (("cpu", 1, True), ("cpu", 2, False), ("cuda", 1, False)):
        clock = clock_for(device, num_threads)
        assert (seconds_of(lambda: time.sleep(0.01), clock=clock) < 0.005) is is_work


@pytest.mark.parametrize(
    ("batch_s", "size"),
    [
        ({}, 1),
        ({1: 0.5}, 1),
        ({1: 0.001, 2: 0.0015, 4: 0.0025, 8: 0.03}, 4),
        # Twice the samples in twice the time: they would only wait.
        ({1: 0.001, 2: 0.002, 4: 0.004}, 1),
    ],
)
def test_best_size(batch_s: dict[int, float], size: int) -> None:
    assert best_size(batch_s, 0.02) == size


@pytest.mark.parametrize(
    ("times_s", "enough_s", "count"),
    [
        # Threads that only wait for each other.
        ({1: 0.001, 2: 0.002}, None, 1),
        ({1: 0.001, 2: 0.00095}, None, 1),
        ({1: 0.04, 2: 0.022, 4: 0.013, 6: 0.0125}, None, 4),
        ({1: 0.04, 2: 0.022, 4: 0.013, 6: 0.0125}, 0.025, 2),
        ({1: 0.04, 2: 0.022, 4: 0.013, 6: 0.0125}, 0.001, 4),
        ({1: 0.004, 2: 0.002}, 0.02, 1),
    ],
)
def test_best_threads(times_s: dict[int, float], enough_s: float | None, count: int) -> None:
    assert best_threads(times_s, enough_s) == count


def test_thread_counts() -> None:
    assert [thread_counts(most) for most in (1, 2, 6, 8)] == [
        [1],
        [1, 2],
        [1, 2, 4, 6],
        [1, 2, 4, 8],
    ]
