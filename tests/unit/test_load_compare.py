"""Two load tests compared."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from flatout.errors import UsageError
from flatout.schema.loadtest import (
    LatencySummary,
    LoadError,
    LoadFile,
    LoadSecond,
    LoadSettings,
    LoadStep,
    ServerLoad,
)
from flatout.serve import load_compare, load_report

NAMES = ("before", "after")


def load_file(rate: float, latency_s: float, *, seed: int = 0, seconds: int = 20) -> LoadFile:
    """A test whose seconds vary by about 3 %."""
    generator = random.Random(seed)

    def around(value: float) -> float:
        return value * generator.gauss(1, 0.03)

    found = tuple(
        LoadSecond(
            at_s=float(number), num_answered=round(around(rate)), num_errors=0,
            p50_s=around(latency_s), p90_s=around(2 * latency_s), p99_s=around(4 * latency_s),
        )
        for number in range(seconds)
    )  # fmt: skip
    step = LoadStep(
        users=4, measured_s=float(seconds), num_requests=1000, num_answered=1000,
        answers_per_s=rate, seconds=found, generator_cpus=0.2, server_cpus=0.8,
        latency=LatencySummary(
            mean_s=latency_s, p50_s=latency_s, p90_s=2 * latency_s, p99_s=4 * latency_s,
            p999_s=5 * latency_s, max_s=6 * latency_s,
        ),
    )  # fmt: skip
    settings = LoadSettings(
        url="http://127.0.0.1:8000/predict", method="POST", users=4, duration_s=float(seconds),
        warmup_s=2.0, timeout_s=10.0, num_inputs=1, request_bytes=100,
    )  # fmt: skip
    return LoadFile(
        flatout="0.1.0", at="2026-11-27T10:00:00Z", machine="a machine", settings=settings,
        steps=(step,), best=0,
    )  # fmt: skip


def test_compare_when_the_second_is_twice_as_fast() -> None:
    found = load_compare.compare(load_file(100, 0.04), load_file(200, 0.02, seed=1), NAMES)
    assert {change.name: change.verdict for change in found.changes} == dict.fromkeys(
        ("throughput", "p50", "p90", "p99"), "faster"
    )
    for change in found.changes:
        assert change.ratio is not None
        assert change.ratio.low < 2 < change.ratio.high
        assert 1.9 < change.ratio.middle < 2.1


def test_compare_when_swapped() -> None:
    found = load_compare.compare(load_file(200, 0.02), load_file(100, 0.04, seed=1), NAMES)
    assert {change.verdict for change in found.changes} == {"slower"}


def test_compare_when_the_second_answered_nothing_in_most_seconds() -> None:
    second = load_file(100, 0.02)
    seconds = tuple(
        msgspec.structs.replace(one, num_answered=0, p50_s=None, p90_s=None, p99_s=None)
        if one.at_s % 5 < 3
        else one
        for one in second.steps[0].seconds
    )
    step = msgspec.structs.replace(second.steps[0], seconds=seconds, answers_per_s=40.0)
    second = msgspec.structs.replace(second, steps=(step,))
    throughput = load_compare.compare(load_file(100, 0.02, seed=1), second, NAMES).changes[0]
    assert throughput.verdict == "slower"


def test_compare_when_only_chance_differs() -> None:
    found = load_compare.compare(load_file(100, 0.02), load_file(100, 0.02, seed=1), NAMES)
    assert {change.verdict for change in found.changes} == {"cannot tell"}


def test_compare_when_a_test_was_too_short() -> None:
    found = load_compare.compare(load_file(100, 0.02, seconds=3), load_file(300, 0.01), NAMES)
    for change in found.changes:
        assert change.ratio is None and change.verdict == "cannot tell"
        assert change.why == "3 seconds; at least 5 are needed"


def test_compare_when_settings_differ() -> None:
    second = load_file(100, 0.02)
    settings = msgspec.structs.replace(second.settings, users=8)
    second = msgspec.structs.replace(second, settings=settings, machine="another")
    found = load_compare.compare(load_file(100, 0.02), second, NAMES)
    assert ("users", "4", "8") in found.differing
    assert ("machine", "a machine", "another") in found.differing
    assert any("the loads differ" in text for text in found.warnings)


def test_compare_when_requests_had_failed() -> None:
    second = load_file(100, 0.02)
    step = msgspec.structs.replace(
        second.steps[0], num_answered=900, errors=(LoadError(kind="timeout", count=100),)
    )
    second = msgspec.structs.replace(second, steps=(step,))
    found = load_compare.compare(load_file(100, 0.02), second, NAMES)
    assert "after: 100 of 1,000 requests had no good answer" in found.warnings


def test_compare_when_both_looked_for_the_highest_load() -> None:
    files = []
    for users in (8, 16):
        file = load_file(100, 0.02)
        settings = msgspec.structs.replace(file.settings, until_latency_s=0.05)
        step = msgspec.structs.replace(file.steps[0], users=users, is_held=True)
        files.append(msgspec.structs.replace(file, settings=settings, steps=(step,)))
    change = load_compare.compare(files[0], files[1], NAMES).changes[0]
    assert (change.name, change.first, change.second) == ("most users in time", 8, 16)


def test_compare_when_nothing_was_answered() -> None:
    empty = load_file(100, 0.02)
    step = msgspec.structs.replace(empty.steps[0], num_answered=0, latency=None)
    with pytest.raises(UsageError) as raised:
        load_compare.compare(load_file(1, 1), msgspec.structs.replace(empty, steps=(step,)), NAMES)
    assert raised.value.rule == "loadtest-nothing-to-compare"


def test_file_when_written_and_read(tmp_path: Path) -> None:
    file = load_file(100, 0.02)
    load_report.write(tmp_path / "load.json", file)
    assert load_compare.read_file(tmp_path / "load.json") == file


@pytest.mark.parametrize(
    ("content", "because"),
    [
        (b"", "truncated"),
        (b"{}", "no `loadtest_version`"),
        (b'{"loadtest_version": 99}', "newer flatout"),
        (b'{"loadtest_version": 1}', "missing required field"),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_file_when_it_is_something_else(tmp_path: Path, content: bytes, because: str) -> None:
    path = tmp_path / "load.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        load_compare.read_file(path)
    assert raised.value.rule == "loadtest-file-unreadable"
    assert because in (raised.value.because or "")


def test_file_when_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        load_compare.read_file(tmp_path / "none.json")
    assert raised.value.rule == "loadtest-file-unreadable"


def test_report_when_a_server_sends_markup(tmp_path: Path) -> None:
    file = load_file(100, 0.02)
    error = LoadError(kind="status", status=500, count=1, example="<script>alert(1)</script>")
    step = msgspec.structs.replace(file.steps[0], errors=(error,), num_answered=999)
    second = msgspec.structs.replace(step, users=8, answers_per_s=150.0)
    page = load_report.page(msgspec.structs.replace(file, steps=(step, second)))
    assert "<script>" not in page and "&lt;script&gt;" in page
    for title in ("Latency over throughput", "Answers over time", "Latency over time", "Errors"):
        assert title in page
    assert "http-equiv" in page and "src=" not in page


def test_report_when_a_flatout_server_says_how_it_was() -> None:
    file = load_file(100, 0.02)
    server = ServerLoad(num_batches=1234, mean_batch=7.5, mean_queue_s=0.003, max_queue_depth=17)
    step = msgspec.structs.replace(file.steps[0], server=server, server_cpus=1.5)
    page = load_report.page(msgspec.structs.replace(file, steps=(step, step)))
    for text in ("Queue and batches", "1,234", "7.5", "17 requests", "1.50"):
        assert text in page
    # In the table of loads, too.
    assert page.count("<td>7.5</td>") == 3


def test_report_when_names_are_hostile() -> None:
    file = load_file(100, 0.02)
    evil = "</title><script>alert(1)</script><img src=x onerror=alert(2)>"
    settings = msgspec.structs.replace(file.settings, url=f"http://a/{evil}", model=evil)
    file = msgspec.structs.replace(file, settings=settings, machine=evil, warnings=(evil,))
    page = load_report.page(file)
    assert "<script" not in page and "<img" not in page
    assert page.count("</title>") == 1


def test_report_when_nothing_was_measured() -> None:
    file = msgspec.structs.replace(load_file(100, 0.02), steps=(), best=None)
    assert "Settings" in load_report.page(file)
