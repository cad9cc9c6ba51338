"""What the records of a load test sum up to."""

from __future__ import annotations

import random

import pytest

from flatout.schema.loadtest import LoadEnded
from flatout.serve import load_records
from flatout.serve.load_records import ANSWERED, CONNECTION, STATUS, TIMEOUT, LoadRecord

ENDED = LoadEnded(measured_s=10.0, cpu_s=2.0, wall_s=10.0, examples={"status 503": "busy"})


def record(due_s: float, latency_s: float, kind: int = ANSWERED, status: int = 200) -> LoadRecord:
    return LoadRecord(due_s, latency_s, 0.0, 10, status, kind, 0)


def test_records_when_written_and_read_back() -> None:
    records = [record(0.5, 0.25), LoadRecord(1.5, 0.125, 0.5, 7, 503, STATUS, 2)]
    content = b"".join(map(load_records.pack_record, records))
    assert load_records.unpack_records(content) == records


def test_records_when_the_last_is_cut_off() -> None:
    content = load_records.pack_record(record(0.5, 0.25)) * 2
    assert len(load_records.unpack_records(content[:-1])) == 1


def test_percentiles_when_latencies_are_known() -> None:
    latencies = [number / 1000 for number in range(1, 1001)]
    random.Random(1).shuffle(latencies)
    records = [record(place / 100, latency) for place, latency in enumerate(latencies)]
    step = load_records.summarized(records, ENDED, [5])
    found = step.latency
    assert found is not None
    assert (found.p50_s, found.p90_s, found.p99_s, found.p999_s) == (0.5, 0.9, 0.99, 0.999)
    assert found.max_s == 1.0
    assert found.mean_s == pytest.approx(0.5005)
    assert step.sent_bytes == 5000 and step.received_bytes == 10_000
    assert step.generator_cpus == 0.2


def test_percentiles_when_there_is_one_answer() -> None:
    found = load_records.summarized([record(0.0, 0.125)], ENDED, [1]).latency
    assert found is not None and found.p50_s == found.p999_s == 0.125


def test_rate_when_the_last_answers_are_late() -> None:
    records = [record(number / 10, 5.0) for number in range(100)]
    step = load_records.summarized(records, ENDED, [1])
    assert step.answers_per_s == pytest.approx(100 / 14.9)


def test_errors_when_there_are_several_kinds() -> None:
    records = [record(0.0, 0.1)] * 5 + [record(0.0, 0.1, STATUS, 503)] * 3
    records += [record(0.0, 1.0, TIMEOUT, 0), record(0.0, 0.0, CONNECTION, 0)]
    step = load_records.summarized(records, ENDED, [1])
    assert step.num_answered == 5 and step.num_errors == 5
    found = [(error.kind, error.status, error.count, error.example) for error in step.errors]
    assert found[0] == ("status", 503, 3, "busy")
    assert set(found[1:]) == {("timeout", None, 1, None), ("connection", None, 1, None)}


def test_seconds_when_the_server_stood_still() -> None:
    # Nothing was answered from 3 s to 4 s: the requests of that second are slow, not missing.
    records = [
        record(due_s, 4.0 - due_s if 3 <= due_s < 4 else 0.01)
        for due_s in (number / 100 for number in range(1000))
    ]
    seconds = load_records.summarized(records, ENDED, [1]).seconds
    assert [one.at_s for one in seconds] == [float(number) for number in range(10)]
    assert seconds[3].num_answered <= 1
    assert seconds[3].p50_s == pytest.approx(0.5, abs=0.02)
    assert seconds[4].num_answered > 150
    assert seconds[4].p50_s == 0.01


def test_summary_when_nothing_was_answered() -> None:
    step = load_records.summarized([record(0.0, 0.0, CONNECTION, 0)], ENDED, [1])
    assert step.latency is None and step.answers_per_s == 0.0 and step.buckets == ()


def test_buckets_when_summed() -> None:
    generator = random.Random(3)
    records = [record(0.0, generator.lognormvariate(-4, 1)) for _ in range(500)]
    step = load_records.summarized(records, ENDED, [1])
    assert sum(bucket.count for bucket in step.buckets) == 500
    for bucket in step.buckets:
        assert bucket.count == sum(
            bucket.most_s / 1.05 < one.latency_s <= bucket.most_s for one in records
        )
