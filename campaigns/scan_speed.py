"""Whether any text makes the scan of `flatout explain` take more than linear time.

    python campaigns/scan_speed.py [--megabytes 1] [--signatures 100] [--seed 1]

For each signature (or as many by lot), texts that almost match it are drawn: beginnings of matches,
repeated and broken off, one behind the other and in single lines. Each is scanned for all
signatures at 1/4 of the size, and at the whole size. Slower than linear would be a ratio of 16 for
four times the text. Prints the slowest, and exits with 1 if a ratio is above 7 or a megabyte takes
longer than 6 s.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]

from flatout.doctor.hostile_text import drawn
from flatout.doctor.ruleset import shipped_rules
from flatout.doctor.scan.scanner import scan
from flatout.doctor.signature import Signature

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import measurement, read_machine, write_result

RESULTS = Path(__file__).with_name("results")
MOST_RATIO = 7.0
MOST_S_PER_MB = 6.0
# Shorter times are noise.
_LEAST_S = 0.05


def near_misses(signature: Signature, rng: random.Random) -> Iterator[str]:
    """Texts that begin as the signature wants them, and end otherwise."""
    text = signature.texts[0]
    if signature.pattern:
        text = drawn(_parser.parse(signature.pattern, re.IGNORECASE), rng) or text
    part = text[: max(1, int(len(text) * 0.8))]
    yield f"{signature.texts[0]} {part} "
    yield f"{signature.texts[0]} {part}\n"
    yield f"{part}{rng.choice('a 0-/(')}"


def scan_s(text: str, size: int) -> float:
    """CPU seconds to scan the text, repeated up to that many bytes."""
    content = (text * (size // len(text.encode()) + 1)).encode()[:size]
    began_s = time.process_time()
    scan([content], shipped_rules().signatures)
    return time.process_time() - began_s


def main() -> int:
    """Scans, prints the slowest, and writes the result; 1 if one is slower than linear."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=1.0, help="size of the largest text")
    parser.add_argument("--signatures", type=int, help="so many signatures, by lot (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    signatures = list(shipped_rules().signatures)
    if asked.signatures:
        signatures = rng.sample(signatures, min(asked.signatures, len(signatures)))
    size = int(asked.megabytes * 1e6)
    rows: list[tuple[float, float, str]] = []
    for signature in signatures:
        for number, text in enumerate(near_misses(signature, rng)):
            small_s, whole_s = scan_s(text, size // 4), scan_s(text, size)
            ratio = whole_s / small_s if whole_s > _LEAST_S and small_s > 0 else 1.0
            rows.append((whole_s / asked.megabytes, ratio, f"{signature.id} {number}"))
    slowest, steepest = max(rows), max(rows, key=lambda row: row[1])
    print(f"{len(rows)} texts of {asked.megabytes:g} MB, {len(signatures)} signatures")
    print(f"slowest   {slowest[0]:6.2f} s per MB   {slowest[2]}")
    print(f"steepest  {steepest[1]:6.1f} times for four times the text   {steepest[2]}")
    found = [
        measurement("scan of a megabyte", "s", tuple(row[0] for row in rows), {}),
        measurement("time for four times the text", "ratio", tuple(row[1] for row in rows), {}),
    ]
    print(write_result("scan-speed", read_machine(), found, {}, asked.out))
    return int(slowest[0] > MOST_S_PER_MB or steepest[1] > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
