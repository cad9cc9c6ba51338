"""Steady growth in noisy numbers."""

from __future__ import annotations

from collections.abc import Sequence

# Points of a line that grows evenly lie this close to it (coefficient of determination).
_LEAST_FIT = 0.97
_FEWEST_POINTS = 8
_NUM_PARTS = 4


def last_points(
    points: Sequence[tuple[float, float]], window_s: float
) -> list[tuple[float, float]]:
    """The newest points, at least so many seconds of them and enough for a line; else none."""
    taken: list[tuple[float, float]] = []
    for point in reversed(points):
        taken.append(point)
        if len(taken) >= _FEWEST_POINTS and taken[0][0] - point[0] >= window_s:
            return taken[::-1]
    return []


def lasting_growth(points: Sequence[tuple[float, float]]) -> float | None:
    """The mean slope, per second, of values that have grown in every quarter of these points."""
    if len(points) < _FEWEST_POINTS:
        return None
    size = (len(points) - 1) / _NUM_PARTS
    marks = [points[round(part * size)] for part in range(_NUM_PARTS + 1)]
    if any(after[1] <= before[1] for before, after in zip(marks, marks[1:], strict=False)):
        return None
    (first_x, first_y), (last_x, last_y) = marks[0], marks[-1]
    return (last_y - first_y) / (last_x - first_x)


def steady_growth(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope, per second, of values that have grown evenly over all these points; else None."""
    if len(points) < _FEWEST_POINTS:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    square_x = sum((x - mean_x) ** 2 for x, _ in points)
    square_y = sum((y - mean_y) ** 2 for _, y in points)
    if square_x == 0 or square_y == 0:
        return None
    product = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope = product / square_x
    if slope <= 0 or product**2 / (square_x * square_y) < _LEAST_FIT:
        return None
    size = len(points) // _NUM_PARTS
    means = [
        sum(y for _, y in points[part * size : (part + 1) * size]) / size
        for part in range(_NUM_PARTS)
    ]
    # A single step up fits a line well enough, too.
    steps = [after - before for before, after in zip(means, means[1:], strict=False)]
    return slope if min(steps) > 0.4 * max(steps) else None
