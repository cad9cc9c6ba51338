"""Numbers as people read them: the only place where units are formatted."""

from __future__ import annotations


def bytes_text(num_bytes: float) -> str:
    """1536 -> "1.5 KiB"; binary multiples, as memory is sold and reported by the drivers."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """0.0042 -> "4.2 ms", 42 -> "42 s", 4242 -> "1:10:42"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate_text(per_second: float, unit: str = "samples") -> str:
    """212400.0 -> "212,400 samples/s"; three figures below 100."""
    number = f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
    return f"{number} {unit}/s"


def count_text(count: int) -> str:
    """60000 -> "60,000"."""
    return f"{count:,}"


def percent_text(ratio: float, digits: int = 1) -> str:
    """0.9712 -> "97.1 %"."""
    return f"{100 * ratio:.{digits}f} %"
