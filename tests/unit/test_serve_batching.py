"""Which requests form a batch, how long one waits, and when a second batch is sent."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import (
    MOST_MESSAGE_BYTES,
    AnyInput,
    FileInput,
    TensorInput,
    TextInput,
    ValueInput,
    WireTensor,
)
from flatout.serve.batching import (
    MOST_BATCH_BYTES,
    BatchTimes,
    batch_length,
    input_bytes,
    late_by_s,
    second_due_in_s,
    wait_s,
)
from flatout.serve.dispatcher import InferRequest
from flatout.serve.limits import ServeLimits
from flatout.serve.pending import Pending, RequestQueue


def times(batch_s: dict[int, float], most: int = 64, latency_s: float | None = None) -> BatchTimes:
    model = ServedModel(name="m", version="1", format="run", max_samples=most, batch_s=batch_s)
    return BatchTimes(model, latency_s)


def test_limit_when_the_target_is_between_two_measured_sizes() -> None:
    assert times({1: 0.001, 11: 0.011, 21: 0.041}, latency_s=0.02).limit == 14


def test_limit_when_even_one_sample_is_too_slow() -> None:
    assert times({1: 0.5, 8: 1.0}, latency_s=0.02).limit == 1


def test_limit_when_there_is_no_target_or_no_measurement() -> None:
    assert times({1: 0.5, 8: 1.0}, most=8).limit == 8
    assert times({}, most=8, latency_s=0.02).limit == 8


def test_expected_s_between_below_and_beyond_measured_sizes() -> None:
    measured = times({2: 0.002, 4: 0.006})
    assert measured.expected_s(1) == 0.002
    assert measured.expected_s(3) == pytest.approx(0.004)
    assert measured.expected_s(8) == pytest.approx(0.012)
    assert times({}).expected_s(1) is None


def test_observe_moves_expectation_but_not_the_limit() -> None:
    measured = times({1: 0.01, 10: 0.01}, most=10, latency_s=0.02)
    for _ in range(100):
        measured.observe(10, 0.03)
    assert measured.expected_s(10) == pytest.approx(0.03, rel=0.01)
    assert measured.samples_per_s() == pytest.approx(10 / 0.03, rel=0.01)
    assert measured.limit == 10


def test_observe_when_nothing_was_measured_before() -> None:
    measured = times({}, most=4)
    assert measured.samples_per_s() is None
    measured.observe(2, 0.01)
    assert measured.samples_per_s() == pytest.approx(200)


@pytest.mark.parametrize(
    ("waiting", "limit", "length"),
    [
        ([], 4, 0),
        ([(1, 9, False)] * 10, 4, 4),
        ([(3, 9, False), (2, 9, False)], 4, 1),
        ([(9, 9, False), (1, 9, False)], 4, 1),
        ([(1, 9, True), (1, 9, False)], 4, 1),
        ([(1, 9, False), (1, 9, False), (1, 9, True), (1, 9, False)], 4, 2),
        ([(1, 40, False)] * 10, 9, 2),
        ([(1, 101, False), (1, 9, False)], 9, 1),
    ],
)
def test_batch_length(waiting: list[tuple[int, int, bool]], limit: int, length: int) -> None:
    assert batch_length(waiting, limit, most_bytes=100) == length


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.booleans()), min_size=1),
    st.integers(1, 50),
    st.integers(1, 50),
)
def test_batch_length_takes_as_many_as_fit(
    waiting: list[tuple[int, int, bool]], limit: int, most_bytes: int
) -> None:
    length = batch_length(waiting, limit, most_bytes)
    taken = waiting[:length]
    assert length >= 1
    assert length == 1 or sum(samples for samples, _, _ in taken) <= limit
    assert length == 1 or sum(num_bytes for _, num_bytes, _ in taken) <= most_bytes
    assert length == 1 or not any(is_alone for _, _, is_alone in taken)
    if length < len(waiting) and not taken[0][2] and not waiting[length][2]:
        more = waiting[: length + 1]
        is_full = sum(samples for samples, _, _ in more) > limit
        assert is_full or sum(num_bytes for _, num_bytes, _ in more) > most_bytes


@pytest.mark.parametrize(
    ("given_", "num_bytes"),
    [
        (TensorInput((WireTensor("x", "uint8", (1, 3), b"abc"),) * 2), 6),
        (FileInput(b"12345"), 5),
        # A small file of many pixels.
        (FileInput(b"12345", ".png", 4000), 4000),
        (TextInput("ab"), 8),
        (ValueInput(msgspec.Raw(b"\x93\x01\x02\x03")), 4),
        (ValueInput([1, 2, 3]), 4),
    ],
)
def test_input_bytes(given_: AnyInput, num_bytes: int) -> None:
    assert input_bytes(given_) == num_bytes


def test_a_request_within_the_limits_is_less_than_a_message() -> None:
    limits = ServeLimits()
    # The shortest JSON for the longest number: `0,` for eight bytes.
    largest = max(4 * limits.body_bytes, limits.tensor_bytes)
    assert largest <= MOST_BATCH_BYTES <= MOST_MESSAGE_BYTES // 2


def test_next_batch_when_small_files_decompress_to_much() -> None:
    async def main() -> list[int]:
        queue = RequestQueue()
        for number in range(5):
            picture = FileInput(b"a small file", ".png", MOST_BATCH_BYTES // 2)
            request = InferRequest(input=picture)
            queue.append(Pending(request, number, is_stream=False, accepted_s=0.0, deadline_s=1.0))
        return [len(queue.next_batch(64)) for _ in range(3)]

    assert asyncio.run(main()) == [2, 2, 1]


def test_second_batch_is_due_when_it_is_full_or_the_first_half_done() -> None:
    assert second_due_in_s(16, 16, running_s=0.0, expected_s=1.0) == 0
    assert second_due_in_s(1, 16, running_s=0.6, expected_s=1.0) == 0
    assert second_due_in_s(1, 16, running_s=0.0, expected_s=None) == 0
    assert second_due_in_s(15, 16, running_s=0.2, expected_s=1.0) == pytest.approx(0.3)
    # No less than event loops can wait.
    assert second_due_in_s(1, 16, running_s=0.0001, expected_s=0.0004) == 0.001


def test_wait_s_is_shared_by_replicas() -> None:
    measured = times({10: 0.1}, most=10)
    assert wait_s(40, 1, measured) == pytest.approx(0.4)
    assert wait_s(40, 2, measured) == pytest.approx(0.2)
    assert wait_s(40, 0, measured) is None
    assert wait_s(40, 1, None) is None


def test_late_by_s() -> None:
    assert late_by_s(0.5, 0.1, 0.4) == pytest.approx(0.2)
    assert late_by_s(0.2, 0.1, 0.4) is None
    assert late_by_s(None, 0.1, 0.0) is None
    # Nothing is ahead: it is computed whatever was measured.
    assert late_by_s(0.0, 5.0, 0.1) is None
