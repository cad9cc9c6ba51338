"""Serve: the running servers of this user, and a form that tries the model of each."""

from __future__ import annotations

import re
from typing import get_args

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from flatout.errors import FlatoutError, UsageError
from flatout.schema.finding import Finding, finding_from
from flatout.serve.server_status import (
    TriedAnswer,
    TriedInput,
    TriedKind,
    server_statuses,
    try_input,
)
from flatout.web import render
from flatout.web.gate import GateRules
from flatout.web.page import PageRequest, WebPage


def serve_page(request: PageRequest) -> WebPage:
    """All servers, with what they measure about themselves."""
    return _page()


class InputTrial:
    """POST /serve: sends an input to the server of a model, and shows the page with its answer.

    The request goes from here to there: the browser only ever asks flatout web.

    Args:
        rules: those of the pages.
    """

    def __init__(self, rules: GateRules) -> None:
        self._rules = rules

    def answer(self, request: Request, form: FormData) -> Response:
        """The page, with the answer or the error."""
        try:
            page, status = _page(answer=try_input(_tried(form))), 200
        except FlatoutError as error:
            page, status = _page(problem=finding_from(error)), 400
        return render.as_html(page, request, self._rules, status)


def _page(answer: TriedAnswer | None = None, problem: Finding | None = None) -> WebPage:
    return WebPage(
        template="serve",
        data={"servers": server_statuses(), "answer": answer, "problem": problem},
    )


def _tried(form: FormData) -> TriedInput:
    """The input of a form.

    Raises:
        UsageError: wrong-usage.
    """
    kind, given = form.get("kind"), form.get("input")
    kinds: tuple[TriedKind, ...] = get_args(TriedKind)
    chosen = next((one for one in kinds if one == kind), None)
    port = form.get("port")
    if chosen is None or not isinstance(port, str) or not re.fullmatch("[0-9]{1,5}", port):
        raise UsageError(
            "wrong-usage", "the form is incomplete.", fix="reload the page, and send it again"
        )
    content = given.file.read() if isinstance(given, UploadFile) else (given or "").encode()
    if not content:
        raise UsageError(
            "wrong-usage", "there is no input.", fix="choose a file, write something, or draw"
        )
    return TriedInput(port=int(port), kind=chosen, content=content)
