"""The conditions for using an earlier recipe again."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from flatout.schema.tuning import Interval, Known, Numerics, TuneRequest

# A probe that differs by more than this from what was found means that something has changed.
_MOST_DRIFT = 0.10


# Of what is kept, and of the rules by which it was decided: what an older flatout has kept may be
# slower than the defaults, and does not hold any more.
SEARCH_VERSION = 3


def search_identity(
    identity: dict[str, Any], numerics: Numerics, *, has_processes: bool
) -> dict[str, Any]:
    """All that must be equal for what a search has found to hold.

    Args:
        identity: model, data, device and versions, as facts by name.
        has_processes: its candidates were measured in processes of their own.
    """
    return {
        **identity, "numerics": numerics, "has_processes": has_processes,
        "search": SEARCH_VERSION,
    }  # fmt: skip


def cache_key(identity: dict[str, Any]) -> str:
    """A name for everything that must be the same: 24 hexadecimal digits.

    Args:
        identity: facts by name, of JSON's kinds.
    """
    content = msgspec.json.encode(identity, order="sorted")
    return hashlib.sha256(content).hexdigest()[:24]


def is_of_use(known: Known, request: TuneRequest) -> bool:
    """Whether an earlier decision answers this request.

    What a hurried search has found is good enough for a run; that it found nothing says little.
    Who gives a search more time than the last one had wants it made.
    """
    if request.budget_s is not None:
        return known.budget_s >= request.budget_s
    return known.is_thorough or (request.mode == "auto" and not known.decision.is_default)


def still_holds(recorded: Interval, probed: Interval) -> bool:
    """Whether a short probe agrees with an earlier one: within 10 %, or as far as both can tell.

    Args:
        recorded: when the recipe was searched.
        probed: now.
    """
    drift = abs(math.log(probed.middle / recorded.middle))
    do_overlap = probed.low <= recorded.high and recorded.low <= probed.high
    return drift <= math.log1p(_MOST_DRIFT) or do_overlap
