"""A copy of runs as files: the same pages, to be opened or shared without a server.

Scripts and forms are left out, and so are links to pages that are not in the copy.
"""

from __future__ import annotations

import posixpath
import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import msgspec
from starlette.datastructures import QueryParams

from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.runs.model.listed import ListRequest, chosen_runs
from flatout.schema.metric_curves import CurveView
from flatout.schema.web_request import WebExport, WebExported
from flatout.system.clock import now_s
from flatout.system.store.static_copy import (
    StaticFolder,
    private_folders,
    static_folder,
    without_folders,
)
from flatout.web import render
from flatout.web.charts import MOST_CHARTED_RUNS, charts_of
from flatout.web.compare_page import compare_page
from flatout.web.page import PageContext, PageRequest, WebPage
from flatout.web.run_cache import RunCache
from flatout.web.run_page import run_page
from flatout.web.runs_page import runs_page

# Addresses in our own templates; in texts of others, quotes are escaped.
_LINK = re.compile(r' (href|src|action|data-chart|data-stream)="(/[^"]*)"')
_ASSETS = ("style.css", "icon.svg")
# Of a run's header the pages show a few facts; the rest has paths, and names of the machine.
_PRIVATE = ("run", "state", "commands")
_PRIVATE_ROWS = (("experiment", "file"), ("machine", "python"))


def export_runs(request: WebExport) -> WebExported:
    """Writes the copy.

    Raises:
        UsageError: unknown-run, no-run-matches, unknown-run-key, bad-condition, folder-not-empty,
            folder-not-writable; RunFailed: disk-full.
    """
    paths = _chosen(request)
    cache = RunCache(lambda: paths)
    context = PageContext(runs=cache)
    target = Path(request.folder).expanduser().absolute()
    with static_folder(target) as folder:
        copy = _Copy(context, folder, paths)
        copy.write()
    return WebExported(
        folder=str(target), first=str(target / "index.html"),
        runs=tuple(path.name for path in paths), num_files=folder.num_files,
    )  # fmt: skip


def _chosen(request: WebExport) -> list[Path]:
    """Folders of the runs, oldest first; of two with the same name the first."""
    found = {path.name: path for path in map(runs_api.find, request.runs)}
    cache = RunCache()
    by_id = {path.name: path for path in cache.paths()}
    if request.conditions:
        rows = cache.rows(by_id.values()).rows
        matching = chosen_runs(rows, ListRequest(conditions=request.conditions))
        found = {row.run.id: by_id[row.run.id] for row in matching} | found
    if not found:
        raise UsageError(
            "no-run-matches",
            "no run matches, so there is nothing to export.",
            fix="list runs: flatout runs",
        )
    places = {run: place for place, run in enumerate(by_id)}
    return sorted(found.values(), key=lambda path: places.get(path.name, -1))


class _Copy:
    """The pages of a copy.

    Args:
        context: knows these runs only.
        folder: to write into.
        paths: of the runs.
    """

    def __init__(self, context: PageContext, folder: StaticFolder, paths: list[Path]) -> None:
        self._context = context
        self._folder = folder
        self._ids = ids = [path.name for path in paths]
        self._private = private_folders(paths)
        self._at = now_s()
        self._names = {"/home": "index.html", "/runs": "index.html", "/runs.json": "runs.json"}
        self._names |= {f"/static/{name}": f"static/{name}" for name in _ASSETS}
        for run in ids:
            self._names[f"/runs/{run}"] = f"runs/{run}/index.html"
            self._names[f"/runs/{run}.json"] = f"runs/{run}/run.json"
        if 1 < len(ids) <= MOST_CHARTED_RUNS:
            self._names |= {"/compare": "compare.html", "/compare.json": "compare.json"}

    def write(self) -> None:
        """Writes everything."""
        for name in _ASSETS:
            source = Path(__file__).parent / "static" / name
            self._folder.copy(f"static/{name}", source)
        for run in self._ids:
            self._read_curves(run)
            self._write_run(run)
        if "/compare" in self._names:
            query = urlencode([("run", run) for run in self._ids])
            page = _without_private_rows(compare_page(self._request(query)))
            self._write_page("/compare", page, query)
        num_pages = self._write_list(1)
        for number in range(2, num_pages + 1):
            self._write_list(number)

    def _read_curves(self, run: str) -> None:
        """Reads all metrics of a run: its first pages would show a part of long ones."""
        share = -1.0
        while share < 1:
            charts, _ = charts_of(self._context, [run], CurveView(columns=50))
            before, share = share, min((one.share_read for one in charts), default=1.0)
            if share <= before:
                return

    def _write_run(self, run: str) -> None:
        address = f"/runs/{run}"
        page = run_page(self._request("", run))
        # Its links name all logs.
        logs = page.data["log"].value["names"][1:] if page.data["log"].value else []
        for log in logs:
            self._names[f"{address}?log={log}"] = f"runs/{run}/{log}.html"
        self._write_page(address, page)
        for log in logs:
            query = urlencode({"log": log})
            of_log = run_page(self._request(query, run))
            self._write_html(f"{address}?log={log}", of_log, address, query)

    def _write_list(self, number: int) -> int:
        """Writes a page of the list of runs, and gives the number of pages."""
        page = runs_page(self._request(f"page={number}"))
        num_pages: int = page.data["num_pages"]
        for one in range(2, num_pages + 1):
            self._names[f"/runs?page={one}"] = f"runs-{one}.html"
        if number == 1:
            self._write_page("/runs", page)
        else:
            self._write_html(f"/runs?page={number}", page, "/runs", f"page={number}")
        return num_pages

    def _request(self, query: str, run: str = "") -> PageRequest:
        return PageRequest(context=self._context, query=QueryParams(query), run=run)

    def _write_page(self, address: str, page: WebPage, query: str = "") -> None:
        """Writes a page and its document."""
        self._write_html(address, page, address, query)
        data = {name: value for name, value in page.data.items() if name not in _PRIVATE}
        document = render.document_of(WebPage(template=page.template, data=data))
        self._folder.write(self._names[f"{address}.json"], without_folders(document, self._private))

    def _write_html(self, address: str, page: WebPage, path: str, query: str) -> None:
        frame = render.PageFrame(path=path, query=query, copied_at=self._at)
        name = self._names[address]
        html = _LINK.sub(lambda found: self._link(found, name), render.html_of(page, frame))
        self._folder.write(name, without_folders(html, self._private))

    def _link(self, found: re.Match[str], name: str) -> str:
        """A link from that file to another one; nothing where it leads out of the copy."""
        attribute, address = found[1], urlsplit(unescape(found[2]))
        target = self._target(unquote(address.path), parse_qs(address.query))
        if target is None:
            return ""
        path = quote(posixpath.relpath(target, posixpath.dirname(name)))
        end = f"#{address.fragment}" if address.fragment else ""
        return f' {attribute}="{escape(path + end)}"'

    def _target(self, path: str, query: dict[str, list[str]]) -> str | None:
        if path in ("/compare", "/compare.json"):
            return self._names.get(path)
        for name in ("log", "page"):
            if name in query:
                # The first log, and the first page, have no name of their own.
                return self._names.get(f"{path}?{name}={query[name][0]}") or self._names.get(path)
        return self._names.get(path) if not query or path.endswith(".json") else None


def _without_private_rows(page: WebPage) -> WebPage:
    """A comparison without the rows that name folders of this machine."""
    sections = [
        {"name": one["name"], "rows": [row for row in one["rows"]
                                       if (row.section, row.name) not in _PRIVATE_ROWS]}
        for one in page.data["sections"]
    ]  # fmt: skip
    shown = [section for section in sections if section["rows"]]
    return msgspec.structs.replace(page, data={**page.data, "sections": shown})
