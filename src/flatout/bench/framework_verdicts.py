"""Whether frameworks came to the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from flatout.bench.equality import Equality, equality
from flatout.schema.bench import BenchRow

# Of an accuracy: one point. Of a loss: a share of it.
_ACCURACY, _LOSS_SHARE = 0.01, 0.05


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a way against that of the first way. quantity: accuracy, or loss."""

    workload: str
    way: str
    first: str
    quantity: str
    equality: Equality


def agreements(rows: Sequence[BenchRow]) -> list[Agreement]:
    """Each way's accuracy, or its loss if there is no accuracy, against the first way's."""
    found: list[Agreement] = []
    for workload in dict.fromkeys(row.conditions.get("workload", "") for row in rows):
        for quantity in ("accuracy", "loss"):
            own = [
                row for row in rows
                if row.id.split("/")[1:2] == [workload]
                and row.id.endswith(f"/{quantity}") and row.samples
            ]  # fmt: skip
            if own:
                found += _of_workload(workload, quantity, own)
                break
    return found


def _of_workload(workload: str, quantity: str, rows: Sequence[BenchRow]) -> Iterator[Agreement]:
    first = rows[0]
    for row in rows[1:]:
        if len(row.samples) != len(first.samples):
            continue
        is_accuracy = quantity == "accuracy"
        tolerance = _ACCURACY if is_accuracy else _LOSS_SHARE * fmean(first.samples)
        yield Agreement(
            workload=workload,
            way=row.conditions["way"],
            first=first.conditions["way"],
            quantity=quantity,
            equality=equality(first.samples, row.samples, tolerance),
        )


def warnings_of_results(rows: Sequence[BenchRow]) -> Iterator[str]:
    """What makes a comparison of speeds doubtful: results that are not known to be the same."""
    for one in agreements(rows):
        if one.equality.verdict == "equal":
            continue
        is_different = one.equality.verdict == "different"
        says = "differs" if is_different else "is not known to be the same"
        yield (
            f"{one.workload}: the {one.quantity} of {one.way} {says} "
            f"({one.equality.difference:+.4f} against {one.first}, "
            f"{one.equality.num_seeds} seeds, tolerance {one.equality.tolerance:.4f})"
        )
