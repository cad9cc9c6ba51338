"""Numbers as people read them: the only place where units are formatted."""

from __future__ import annotations

import re

from flatout.errors import UsageError

_UNITS = {
    "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip


_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
# By the unit of a bench row. Operations on integers are no FLOPs.
PREFIXED_UNITS = {"flop/s": "FLOP/s", "op/s": "OP/s", "B/s": "B/s"}
# Ends of metrics' names; of all others, larger is better.
_SMALLER_IS_BETTER = (
    "loss", "error", "mse", "mae", "perplexity", "ppl", "wer", "cer", "bpc", "nll",
)  # fmt: skip
# A thousand years: what is longer was not measured, but damaged.
_LONGEST_S = 3.2e10


def parse_bytes(text: str, option: str) -> int:
    """The bytes that a user has written for an option: `1.5GiB`, `800 MB`, `0`.

    Raises:
        UsageError: bad-size.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text.strip())
    if match is not None:
        number, unit = float(match[1]), match[2].lower()
        if number == 0 and not unit:
            return 0
        if unit in _UNITS:
            return round(number * _UNITS[unit])
    raise UsageError(
        "bad-size",
        f"`{option} {text}` is not a size.",
        because="a size is a number with a unit: B, KiB, MiB, GiB, TiB, kB, MB, GB or TB",
        fix=f"write it like `{option} 1.5GiB`, or 0",
    )


def parse_seconds(text: str, option: str) -> float:
    """The seconds that a user has written for an option: `20ms`, `1.5 s`, `2min`.

    Raises:
        UsageError: bad-duration.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]+)", text.strip())
    if match is not None and match[2] in _TIME_UNITS and float(match[1]) > 0:
        return float(match[1]) * _TIME_UNITS[match[2]]
    raise UsageError(
        "bad-duration",
        f"`{option} {text}` is not a duration.",
        because="a duration is a number above 0 with a unit: us, ms, s, min or h",
        fix=f"write it like `{option} 20ms`",
    )


def size_text(num_bytes: int) -> str:
    """Bytes as `parse_bytes` reads them, exactly: 1610612736 -> "1.5GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        text = f"{num_bytes / _UNITS[unit.lower()]:.9f}".rstrip("0").rstrip(".")
        if float(text) >= 1 and round(float(text) * _UNITS[unit.lower()]) == num_bytes:
            return f"{text}{unit}"
    return f"{num_bytes}B"


def bytes_text(num_bytes: float) -> str:
    """1536 -> "1.5 KiB"; binary multiples, as memory is sold and reported by the drivers."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        text = f"{value:.0f}" if unit == "B" or abs(value) >= 99.95 else f"{value:.1f}"
        # Compared as it is shown: 1023.9 KiB would be read as 1024 KiB.
        if abs(float(text)) < 1024:
            return f"{text} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """0.0042 -> "4.2 ms", 42 -> "42 s", 4242 -> "1:10:42"."""
    for scale, unit, limit in ((1e6, "us", 1000), (1e3, "ms", 1000), (1, "s", 60)):
        text = f"{seconds * scale:.3g}"
        if float(text) < limit:
            return f"{text} {unit}"
    if not abs(seconds) < _LONGEST_S:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate_text(per_second: float, unit: str = "samples") -> str:
    """212400.0 -> "212,400 samples/s"; three figures below 100."""
    number = f"{per_second:,.0f}" if per_second >= 99.95 else f"{per_second:.3g}"
    return f"{number} {unit}/s"


def quantity_text(value: float, unit: str) -> str:
    """A measured value of a bench row: (1.2e12, "flop/s") -> "1.2 TFLOP/s"."""
    if unit == "s":
        return seconds_text(value)
    if unit == "B":
        return bytes_text(value)
    if unit == "share":
        return percent_text(value)
    if unit == "loss":
        return f"{value:.4g}"
    if unit in PREFIXED_UNITS:
        return f"{_prefixed(value)}{PREFIXED_UNITS[unit]}"
    if unit.endswith("/s"):
        return rate_text(value, unit.removesuffix("/s"))
    return f"{value:.4g} {unit}"


def _prefixed(value: float) -> str:
    for scale, prefix in ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        text = f"{value / scale:.3g}"
        # Compared as it is shown: 999.9 G would be read as 1000 G.
        if abs(float(text)) < 1000:
            return f"{text} {prefix}"
    return f"{value / 1e15:.3g} P"


def energy_text(kwh: float) -> str:
    """0.0042 -> "4.2 Wh", 42 -> "42 kWh", 4200 -> "4.2 MWh"."""
    for scale, unit, limit in ((1e3, "Wh", 1000), (1, "kWh", 1000)):
        text = f"{kwh * scale:.3g}"
        if float(text) < limit:
            return f"{text} {unit}"
    return f"{kwh / 1e3:,.3g} MWh"


def count_text(count: int) -> str:
    """60000 -> "60,000"."""
    return f"{count:,}"


def counted_text(count: int, noun: str, plural: str | None = None) -> str:
    """A noun with its number: (1, "epoch") -> "1 epoch", (1200, "epoch") -> "1,200 epochs"."""
    return f"{count_text(count)} {noun_text(count, noun, plural)}"


def noun_text(count: int, noun: str, plural: str | None = None) -> str:
    """A noun for that many: (1, "column") -> "column", (2, "column") -> "columns"."""
    return noun if count == 1 else plural or f"{noun}s"


def percent_text(ratio: float, digits: int = 1) -> str:
    """0.9712 -> "97.1 %"."""
    return f"{100 * ratio:.{digits}f} %"


def is_smaller_better(name: str) -> bool:
    """Whether a metric of that name is one that falls while a model learns."""
    return name.endswith(_SMALLER_IS_BETTER)


def is_ratio(name: str) -> bool:
    """Whether a metric of that name is a share, which people read in percent."""
    return name.rpartition("_")[2] in ("accuracy", "top1", "top5", "precision", "recall", "f1")
