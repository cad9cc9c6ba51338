"""The web application: every address, and what answers there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from flatout.errors import FlatoutError, UsageError
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.schema.metric_curves import CurveView
from flatout.schema.units import bytes_text
from flatout.web import render
from flatout.web.bench_page import bench_compare_page, bench_page, bench_platforms_page
from flatout.web.charts import MOST_CHARTED_RUNS, charts_of
from flatout.web.cluster_page import cluster_page
from flatout.web.compare_page import compare_page
from flatout.web.doctor_page import begin_fix, begin_undo, doctor_page, plan_page, undo_page
from flatout.web.explain_page import explain_page, explanation_page
from flatout.web.gate import AccessGate, GateRules, is_equal
from flatout.web.home_page import home_page
from flatout.web.live import run_events
from flatout.web.live_page import live_charts, live_events, live_page
from flatout.web.machine_charts import time_view
from flatout.web.page import PageContext, PageRequest, WebPage
from flatout.web.profile_page import profile_page
from flatout.web.run_cache import RunCache
from flatout.web.run_changes import RunChanges
from flatout.web.run_page import run_page
from flatout.web.runs_page import runs_page
from flatout.web.serve_page import InputTrial, serve_page
from flatout.web.sweep_cache import SweepCache
from flatout.web.sweep_page import sweep_page, sweeps_page
from flatout.web.texts import LANGUAGES
from flatout.web.train_page import train_page

_MOST_COLUMNS = 1000
_LAST_STEP = 2**53
_YEAR_S = 365 * 24 * 3600
# A form may have a photo, to try a model with it.
_MOST_FORM_BYTES = 16 << 20
# Errors about an address of something that does not exist.
_NOT_THERE = (
    "unknown-run", "unknown-sweep", "web-plan-gone", "no-such-change", "nothing-to-explain",
)  # fmt: skip

PageFunction = Callable[[PageRequest], WebPage]
ChangeFunction = Callable[[Request, FormData], Response]


def application(
    context: PageContext, rules: GateRules, is_stopping: Callable[[], bool] = lambda: False
) -> AccessGate:
    """The application, to be run by an ASGI server. is_stopping: then what streams ends."""
    pages = _Pages(context, rules, is_stopping)
    handlers: dict[Any, Any] = {HTTPException: pages.not_answered, Exception: pages.failed}
    app = Starlette(routes=list(pages.routes()), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return AccessGate(app, rules)


class _Pages:
    """The routes, with what they need."""

    def __init__(
        self, context: PageContext, rules: GateRules, is_stopping: Callable[[], bool]
    ) -> None:
        self._context = context
        self._rules = rules
        self._is_stopping = is_stopping

    def routes(self) -> Iterator[BaseRoute]:
        """Every address."""
        yield Route("/", self._first)
        yield from self.page("/home", home_page)
        yield from self.page("/runs", runs_page)
        yield from self.page("/compare", compare_page)
        yield from self.page("/doctor", doctor_page)
        yield from self.page("/doctor/plan", plan_page)
        yield from self.page("/doctor/undo", undo_page)
        yield self.change("/doctor/plan", lambda _, form: begin_fix(self._context, form))
        yield self.change("/doctor/undo", lambda _, form: begin_undo(self._context, form))
        yield from self.page("/live", live_page)
        yield Route("/live/charts.json", self._live_charts)
        yield Route("/live/events", self._live_events)
        yield from self.page("/explain", explain_page)
        for path in ("/explain", "/explain.json"):
            yield self.change(path, self._explained, is_allowed_always=True)
        yield Route("/runs/{run}/live", self._live)
        yield from self.page("/runs/{run}", run_page)
        yield from self.page("/sweeps", sweeps_page)
        yield from self.page("/sweeps/{sweep}", sweep_page)
        yield Route("/chart.json", self._charts)
        yield from self.page("/bench", bench_page)
        yield from self.page("/bench/compare", bench_compare_page)
        yield from self.page("/bench/platforms", bench_platforms_page)
        yield from self.page("/profiles", profile_page)
        yield self.change("/language", _keep_language, is_allowed_always=True)
        yield from self.page("/train", train_page)
        yield from self.page("/cluster", cluster_page)
        yield from self.page("/serve", serve_page)
        of_runs = RunChanges(self._context, self._rules)
        yield self.change("/train", of_runs.start)
        yield self.change("/runs/{run}", of_runs.stop)
        yield self.change("/serve", InputTrial(self._rules).answer)
        yield Mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))

    def page(self, path: str, build: PageFunction) -> Iterator[Route]:
        """Routes of a page: HTML at the path, JSON at the path with `.json` after it."""

        async def answer(request: Request) -> Response:
            return await run_in_threadpool(self._answer, request, build)

        yield Route(path, answer)
        # The route of a run or a sweep takes both.
        if not path.endswith("}"):
            yield Route(f"{path}.json", answer)

    def change(self, path: str, act: ChangeFunction, *, is_allowed_always: bool = False) -> Route:
        """The route of a form that changes something: with its token, and not with --read-only.

        The gate has checked that it comes from a page of this server.
        is_allowed_always: it changes nothing but what this browser keeps.
        """

        async def answer(request: Request) -> Response:
            if self._rules.is_read_only and not is_allowed_always:
                return self._refused(request, 403, UsageError(
                    "web-read-only", "nothing can be changed here: flatout web runs with "
                    "--read-only.", fix="start it without --read-only",
                ))  # fmt: skip
            length = request.headers.get("content-length", "")
            if not length.isdecimal():
                return self._refused(request, 411, UsageError(
                    "web-form-without-length", "the request does not say how long its form is.",
                    because="it has no header Content-Length, as with Transfer-Encoding: chunked",
                    fix="send the form with Content-Length, as browsers and curl -d do",
                ))  # fmt: skip
            if int(length) > _MOST_FORM_BYTES:
                return self._refused(request, 413, UsageError(
                    "web-form-too-large", "the form is too large.",
                    because=f"a form may have {bytes_text(_MOST_FORM_BYTES)}",
                    fix="send less; what is in a file can be given to flatout in a terminal",
                ))  # fmt: skip
            # Files of the form are closed at the end.
            async with request.form(max_part_size=_MOST_FORM_BYTES) as form:
                token = form.get("form_token")
                if not isinstance(token, str) or not is_equal(token, self._rules.form_token):
                    return self._refused(request, 403, UsageError(
                        "web-form-expired", "this form is from another start of flatout web.",
                        fix="reload the page, and send it again",
                    ))  # fmt: skip
                try:
                    return await run_in_threadpool(act, request, form)
                except FlatoutError as error:
                    return self._refused(request, 400, error)

        return Route(path, answer, methods=["POST"])

    def _answer(self, request: Request, build: PageFunction) -> Response:
        is_json, ids = request.url.path.endswith(".json"), dict(request.path_params)
        places: dict[str, RunCache | SweepCache] = {
            "run": self._context.runs, "sweep": self._context.sweeps,
        }  # fmt: skip
        try:
            for kind in ids if is_json else ():
                # The id of a run or a sweep may end like that.
                is_json = not places[kind].has(ids[kind])
                ids[kind] = ids[kind].removesuffix(".json") if is_json else ids[kind]
            page = build(PageRequest(context=self._context, query=request.query_params, **ids))
        except FlatoutError as error:
            return self._refused(request, 404 if error.rule in _NOT_THERE else 400, error)
        if is_json:
            return render.as_json(page)
        return render.as_html(page, request, self._rules)

    async def _live_charts(self, request: Request) -> Response:
        query = PageRequest(context=self._context, query=request.query_params)
        return render.as_json(await run_in_threadpool(live_charts, query))

    async def _live_events(self, request: Request) -> Response:
        query = PageRequest(context=self._context, query=request.query_params)
        return live_events(time_view(query), self._is_stopping)

    def _explained(self, request: Request, form: FormData) -> Response:
        is_json = request.url.path.endswith(".json")
        page = explanation_page(self._context, form, is_shared=is_json)
        return render.as_json(page) if is_json else render.as_html(page, request, self._rules)

    async def _first(self, request: Request) -> Response:
        return RedirectResponse("/home")

    async def _live(self, request: Request) -> Response:
        try:
            folder = await run_in_threadpool(self._context.runs.find, request.path_params["run"])
        except FlatoutError as error:
            return self._refused(request, 404, error)
        known = request.headers.get("last-event-id") or request.query_params.get("at")
        return run_events(folder, known, self._is_stopping)

    async def _charts(self, request: Request) -> Response:
        return await run_in_threadpool(self._chart_document, request)

    def _chart_document(self, request: Request) -> Response:
        query = PageRequest(context=self._context, query=request.query_params)
        view = CurveView(
            first_step=query.number("from", 0, _LAST_STEP),
            last_step=query.number("to", 0, _LAST_STEP),
            columns=query.number("columns", 50, _MOST_COLUMNS) or CurveView().columns,
        )
        ids = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_CHARTED_RUNS]
        charts, problems = charts_of(self._context, ids, view, request.query_params.get("panel"))
        data = {"charts": charts, "problems": problems}
        return render.as_json(WebPage(template="", data=data))

    def _refused(self, request: Request, status: int, error: FlatoutError) -> Response:
        return self._error_page(request, status, finding_from(error))

    def _error_page(self, request: Request, status: int, finding: Finding) -> Response:
        page = WebPage(template="error", data={"error": finding})
        if request.url.path.endswith(".json"):
            return render.as_json(page, status)
        return render.as_html(page, request, self._rules, status)

    async def not_answered(self, request: Request, error: HTTPException) -> Response:
        """An address that does not exist, or not with this method."""
        if error.status_code != 404:
            return PlainTextResponse(f"{error.detail}\n", error.status_code)
        problem = f"there is no page {request.url.path}."
        finding = Finding(rule="web-no-such-page", severity="error", problem=problem)
        return self._error_page(request, error.status_code, finding)

    async def failed(self, request: Request, error: Exception) -> Response:
        """A fault of ours; uvicorn prints the traceback."""
        return self._error_page(request, 500, internal_error(error))


def _keep_language(request: Request, form: FormData) -> Response:
    """Keeps the language of the pages in a cookie, and goes back to the page."""
    target = urlsplit(str(form.get("back", "")))
    path = "/" + target.path.lstrip("/\\")
    back = RedirectResponse(f"{path}{f'?{target.query}' if target.query else ''}", 303)
    language = form.get("language")
    if language in LANGUAGES:
        back.set_cookie(
            render.LANGUAGE_COOKIE, str(language), max_age=_YEAR_S, httponly=True, samesite="strict"
        )
    return back
