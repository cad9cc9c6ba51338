"""Runs: the list of `flatout runs`, with its filters and its order."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.runs.model.listed import ListedRun, ListRequest, chosen_runs
from flatout.schema.finding import finding_from
from flatout.web.page import PageRequest, WebPage
from flatout.web.run_row import run_row

_NUM_ON_PAGE = 100
_MOST_PAGES = 10**6


def runs_page(request: PageRequest) -> WebPage:
    """A page of the list: the newest first, or as `sort` says."""
    query, cache = request.query, request.context.runs
    conditions = tuple(
        part for text in query.getlist("where") for part in text.split(";") if part.strip()
    )
    sort = query.get("sort") or None
    paths = cache.paths()[::-1]
    number = request.number("page", 1, _MOST_PAGES) or 1
    shown = slice((number - 1) * _NUM_ON_PAGE, number * _NUM_ON_PAGE)
    problem, num_found, num_unread = None, len(paths), 0
    rows: list[ListedRun] = []
    if conditions or sort:
        known = cache.rows(paths)
        try:
            rows = chosen_runs(known.rows, ListRequest(conditions=conditions, sort=sort))
            num_found, rows = len(rows), rows[shown]
        except UsageError as error:
            problem = finding_from(error)
        # Once more of its metrics has been read, a run may belong here, or have such a key.
        num_unread = known.num_unread
        num_unread += sum(row.share_read < 1 and row not in rows for row in known.rows)
    if problem is not None or not (conditions or sort):
        # Only what is shown is read.
        known = cache.rows(paths[shown])
        rows, num_unread = known.rows, max(num_unread, known.num_unread)
    return WebPage(
        template="runs",
        data={
            "runs": [run_row(row) for row in rows],
            "where": "; ".join(conditions),
            "sort": sort or "",
            "problem": problem,
            "page_number": number,
            "num_pages": max(1, -(-num_found // _NUM_ON_PAGE)),
            "num_found": num_found,
            "num_unread": num_unread,
            "num_runs": len(paths),
        },
    )
