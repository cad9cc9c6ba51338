"""Curves of a run's metrics, thinned for a chart."""

from __future__ import annotations

import msgspec


class CurveView(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the curves that a chart shows.

    first_step, last_step: None for the run's own. columns: of pixels; a curve has at most two
    points in each, its extremes.
    """

    first_step: int | None = None
    last_step: int | None = None
    columns: int = 600


class MetricCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over the steps.

    panel: the chart it belongs to: `loss`, `accuracy`, `learning_rate` ...
    line: `training`, `epoch` (mean over one), `validation` or `logged` (by a hook); followed by a
    name where the experiment's own step names its losses.
    steps, values: of equal length. num_missing: values that are not finite, in all of the run, of
    which the first is at first_missing_step.
    """

    panel: str
    line: str
    steps: list[int]
    values: list[float]
    num_missing: int = 0
    first_missing_step: int | None = None


class MetricCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of a run, or of a panel of it.

    share_read: of metrics.jsonl; below 1 they end early, and the next request reads on.
    num_unread: lines that are damaged.
    """

    curves: tuple[MetricCurve, ...]
    share_read: float = 1.0
    num_unread: int = 0
