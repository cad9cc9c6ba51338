"""A page as HTML in the language of the browser, or as JSON."""

from __future__ import annotations

import functools
from datetime import datetime
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from flatout import __version__
from flatout.schema.addresses import masked, masked_document
from flatout.schema.plan import edit_text
from flatout.schema.suggested_command import typed_value
from flatout.schema.units import (
    bytes_text,
    count_text,
    percent_text,
    quantity_text,
    rate_text,
    seconds_text,
)
from flatout.web.bench_pictures import add_pictures
from flatout.web.charts import picture, value_text
from flatout.web.explain_page import MOST_CHARACTERS
from flatout.web.gate import GateRules
from flatout.web.page import WebPage
from flatout.web.sweep_pictures import add_sweep_pictures
from flatout.web.texts import LANGUAGES, chosen_language, texts_in

LANGUAGE_COOKIE = "flatout_language"


class PageFrame(msgspec.Struct, frozen=True, kw_only=True):
    """What is around a page.

    path, query: of its address. copied_at: of a copy without a server (`flatout web --export`).
    """

    path: str
    query: str = ""
    language: str = LANGUAGES[0]
    is_read_only: bool = False
    form_token: str = ""
    copied_at: float | None = None


def as_json(page: WebPage, status: int = 200) -> Response:
    """The data of a page."""
    return Response(document_of(page), status, media_type="application/json")


def document_of(page: WebPage) -> str:
    """The data of a page as a JSON document."""
    document = msgspec.json.format(msgspec.json.encode(page.data), indent=2)
    return masked_document(document.decode())


def as_html(page: WebPage, request: Request, rules: GateRules, status: int = 200) -> Response:
    """A page for people."""
    frame = PageFrame(
        path=request.url.path, query=request.url.query, language=language_of(request),
        is_read_only=rules.is_read_only, form_token=rules.form_token,
    )  # fmt: skip
    return Response(html_of(page, frame), status, media_type="text/html")


def html_of(page: WebPage, frame: PageFrame) -> str:
    """A page as a file of HTML."""
    texts = texts_in(frame.language)
    html = _environment().get_template(f"{page.template}.html").render(
        **page.data,
        page=page.template,
        version=__version__,
        is_read_only=frame.is_read_only,
        form_token=frame.form_token,
        copied_at=frame.copied_at,
        languages={name: texts_in(name).text("language.name") for name in LANGUAGES},
        language=frame.language,
        address=f"{frame.path}?{frame.query}" if frame.query else frame.path,
        json_address=_json_address(frame.path, frame.query),
        t=texts.text,
        counted=texts.counted,
        named=texts.named,
    )  # fmt: skip
    return masked(html)


def prepare() -> None:
    """Compiles the templates of the first page, and reads the texts of all languages."""
    for name in ("layout", "parts", "home"):
        _environment().get_template(f"{name}.html")
    for language in LANGUAGES:
        texts_in(language)


def language_of(request: Request) -> str:
    """The language of a page for this browser."""
    kept = request.cookies.get(LANGUAGE_COOKIE)
    return chosen_language(kept, request.headers.get("accept-language", ""))


def _json_address(path: str, query: str) -> str:
    return f"{quote(path)}.json{f'?{query}' if query else ''}"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": bytes_text, "count": count_text, "percent": percent_text, "seconds": seconds_text,
        "rate": rate_text, "typed": typed_value, "moment": moment_text, "metric": metric_text,
        "compared": compared_text, "interval": interval_text, "edit": edit_text,
        "quantity": quantity_text,
    }  # fmt: skip
    environment.globals |= {
        "picture": picture, "value_text": value_text, "most_pasted": MOST_CHARACTERS,
        # Of a form that must be carried out once.
        "new_key": lambda: token_urlsafe(12),
    }  # fmt: skip
    add_pictures(environment)
    add_sweep_pictures(environment)
    return environment


def moment_text(at: float) -> str:
    """A local time of day that sorts: 2026-11-21 04:17; a dash where no calendar has it."""
    try:
        return datetime.fromtimestamp(at).isoformat(sep=" ", timespec="minutes")
    # A damaged file has any number; what the limit is, and the error, depend on the platform.
    except (OverflowError, ValueError, OSError):
        return "-"


def metric_text(value: float | None, name: str) -> str:
    """A metric as people read it; a dash where it is not a finite number."""
    return value_text(name, value)


def interval_text(interval: Any) -> str:
    """A speed-up with its 95 % interval: x1.82 [1.79, 1.85]."""
    return f"x{interval.middle:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def compared_text(value: Any, name: str) -> str:
    """A value of a comparison, with the unit in its name."""
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name == "samples_per_s":
        return rate_text(value)
    if name.endswith("_s"):
        return seconds_text(value)
    if isinstance(value, float):
        return metric_text(value, name.removeprefix("best_").removeprefix("last_"))
    return value[:12] if name == "sha256" else typed_value(value)
