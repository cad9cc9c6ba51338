"""Explain: the causes in a text that was pasted, or the page of a rule or an error."""

from __future__ import annotations

from starlette.datastructures import FormData

from flatout.doctor import explain
from flatout.doctor.diagnose import no_machine
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.units import count_text
from flatout.web.page import PageContext, PageRequest, WebPage

# As a browser counts them for the limit of the box: in units of UTF-16, with line ends of one.
MOST_CHARACTERS = 900_000


def explain_page(request: PageRequest) -> WebPage:
    """A box for a text; with `?id=` in the address, the page of that rule or error.

    Raises:
        UsageError: nothing-to-explain.
    """
    wanted = request.query.get("id")
    return _page(shown=explain.page_by_id(wanted) if wanted else None)


def explanation_page(context: PageContext, form: FormData, *, is_shared: bool) -> WebPage:
    """The causes in the text of a form.

    is_shared: without personal names and paths, as a document that may be sent to others.

    Raises:
        UsageError: web-form-too-large.
    """
    # As browsers send line ends.
    text = str(form.get("text", "")).replace("\r\n", "\n")
    num_characters = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if num_characters > MOST_CHARACTERS:
        raise UsageError(
            "web-form-too-large",
            f"the text has {count_text(num_characters)} characters.",
            because=f"the box takes {count_text(MOST_CHARACTERS)}",
            fix="paste the part around the error; or, in a terminal: flatout explain FILE",
        )

    def here() -> Machine | None:
        examined = context.health.latest().value
        return examined.machine if examined is not None else None

    diagnosis = explain.explain_text(
        [text.encode(errors="replace")], here if form.get("is_here") else no_machine
    )
    return _page(text=text, diagnosis=explain.as_shown(diagnosis) if is_shared else diagnosis)


def _page(
    shown: explain.Page | None = None, text: str = "", diagnosis: Diagnosis | None = None
) -> WebPage:
    return WebPage(
        template="explain", data={"page_shown": shown, "text": text, "diagnosis": diagnosis}
    )
