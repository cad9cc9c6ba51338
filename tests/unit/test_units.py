"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.units import (
    bytes_text,
    count_text,
    percent_text,
    quantity_text,
    rate_text,
    seconds_text,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (102_400, "100 KiB"),
        (1024**2 - 1, "1.0 MiB"), (11_594_722, "11.1 MiB"), (8 * 1024**3, "8.0 GiB"),
        (2 * 1024**4, "2.0 TiB"), (-2048, "-2.0 KiB"),
    ],
)  # fmt: skip
def test_bytes_text_when(num_bytes: int, text: str) -> None:
    assert bytes_text(num_bytes) == text


@given(st.integers(0, 2**60))
def test_bytes_text_never_shows_a_thousand_of_a_unit_it_could_leave(num_bytes: int) -> None:
    number, unit = bytes_text(num_bytes).split()
    assert float(number) < 1024 or unit == "TiB"
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    assert float(number) * scale == pytest.approx(num_bytes, rel=0.051)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"), (42e-6, "42 us"), (0.0009996, "1 ms"), (0.0042, "4.2 ms"), (0.9996, "1 s"),
        (42, "42 s"), (59.97, "1:00"), (62, "1:02"), (3599.7, "1:00:00"), (4242, "1:10:42"),
    ],
)  # fmt: skip
def test_seconds_text_when(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@given(st.floats(1e-6, 1e6))
def test_seconds_text_keeps_the_value(seconds: float) -> None:
    text = seconds_text(seconds)
    assert "e" not in text
    if ":" in text:
        parts = [int(part) for part in text.split(":")]
        assert all(part < 60 for part in parts[1:])
        shown = sum(part * 60**place for place, part in enumerate(reversed(parts)))
        assert shown == pytest.approx(seconds, abs=0.51)
    else:
        number, unit = text.split()
        shown = float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]
        assert shown == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(212_400.0, "212,400 images/s"), (99.96, "100 images/s"), (1.5, "1.5 images/s")],
)
def test_rate_text_when(per_second: float, text: str) -> None:
    assert rate_text(per_second, "images") == text


def test_count_and_percent_text_when_plain() -> None:
    assert count_text(60_000) == "60,000"
    assert percent_text(0.9712) == "97.1 %"
    assert percent_text(0.9712, digits=0) == "97 %"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.2e12, "flop/s", "1.2 TFLOP/s"), (9.999e11, "op/s", "1 TOP/s"),
        (1.8e10, "B/s", "18 GB/s"), (12.0, "B/s", "12 B/s"), (2e-6, "s", "2 us"),
        (1536.0, "B", "1.5 KiB"), (0.25, "share", "25.0 %"),
        (1500.0, "samples/s", "1,500 samples/s"),
        (0.5, "J/sample", "0.5 J/sample"), (1e18, "flop/s", "1e+03 PFLOP/s"),
    ],
)  # fmt: skip
def test_quantity_text(value: float, unit: str, text: str) -> None:
    assert quantity_text(value, unit) == text
