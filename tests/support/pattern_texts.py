"""Texts that a regular expression is likely to match, drawn by chance."""

from __future__ import annotations

import random
from typing import Any


def drawn(parsed: Any, rng: random.Random) -> str:
    """A text of the kind that a pattern's beginning matches."""
    parts = []
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                parts.append(chr(value))
            case "NOT_LITERAL" | "ANY":
                parts.append(rng.choice("a 0"))
            case "IN":
                parts.append(_one_of(value, rng))
            case "BRANCH":
                parts.append(drawn(rng.choice(value[1]), rng))
            case "SUBPATTERN":
                parts.append(drawn(value[-1], rng))
            case "ATOMIC_GROUP":
                parts.append(drawn(value, rng))
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, part = value
                times = rng.choice([int(low), min(int(high), 40)])
                parts.append("".join(drawn(part, rng) for _ in range(times)))
    return "".join(parts)


def _one_of(choices: Any, rng: random.Random) -> str:
    if str(choices[0][0]) == "NEGATE":
        return rng.choice("a0")
    signs = [chr(value) for kind, value in choices if str(kind) == "LITERAL"]
    signs += [chr(value[0]) for kind, value in choices if str(kind) == "RANGE"]
    return rng.choice(signs or ["5"])
