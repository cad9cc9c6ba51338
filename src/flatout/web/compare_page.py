"""Compare: what differs between runs, what came out, and their curves in the same charts."""

from __future__ import annotations

from typing import Any

from flatout.errors import FlatoutError, UsageError
from flatout.runs.model.comparison import compare_runs
from flatout.schema.finding import Finding, finding_from
from flatout.schema.metric_curves import CurveView
from flatout.schema.run import Run
from flatout.web.charts import MOST_CHARTED_RUNS, charts_of
from flatout.web.page import PageRequest, WebPage

_RESULTS = {"result": 0, "time": 1}


def compare_page(request: PageRequest) -> WebPage:
    """The runs of the query, next to each other; those that cannot be read are named."""
    ids = list(dict.fromkeys(request.query.getlist("run")))
    runs: list[Run] = []
    parameters: list[dict[str, Any]] = []
    share_read = 1.0
    problems: list[Finding] = []
    for run_id in ids:
        try:
            row = request.context.runs.row(request.context.runs.find(run_id).path)
        except FlatoutError as error:
            problems.append(finding_from(error))
            continue
        if row is None or not isinstance(row.run, Run):
            because = row.run.because if row is not None and not isinstance(row.run, Run) else None
            problems.append(_unreadable(run_id, because))
            continue
        runs.append(row.run)
        parameters.append(row.parameters)
        share_read = min(share_read, row.share_read)
    shown = [run.id for run in runs]
    charted = shown[:MOST_CHARTED_RUNS]
    charts, unread = charts_of(request.context, charted, CurveView())
    if len(runs) < 2:
        problems.append(
            finding_from(
                UsageError("too-few-runs", "name at least two runs.", fix="choose them in the list")
            )
        )
    return WebPage(
        template="compare",
        data={
            "runs": shown,
            "charted": charted,
            "share_read": share_read,
            "sections": _sections(runs, parameters) if len(runs) > 1 else [],
            "problems": [*problems, *unread],
            "charts": charts,
        },
    )


def _sections(runs: list[Run], parameters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows by section; what came out first."""
    rows = compare_runs(runs, parameters).rows
    found = dict.fromkeys(row.section for row in rows)
    names = sorted(found, key=lambda name: _RESULTS.get(name, 2))
    return [{"name": name, "rows": [row for row in rows if row.section == name]} for name in names]


def _unreadable(run_id: str, because: str | None) -> Finding:
    return Finding(
        rule="damaged-file",
        severity="error",
        problem=f"run {run_id} cannot be read.",
        because=because,
    )
