"""Changes of runs: a training is started or resumed, and asked to stop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from flatout.cluster import api as cluster_api
from flatout.errors import FlatoutError
from flatout.runs import api as runs_api
from flatout.runs.supervisor import Supervisor
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.system.signals import Interrupts
from flatout.web import render
from flatout.web.gate import GateRules
from flatout.web.page import PageContext, WebPage
from flatout.web.train_page import TrainForm, form_page, planned

T = TypeVar("T")

# For torch and the data to be loaded; a failure until then is shown in the form.
_BEGIN_LIMIT_S = 60.0
# So many forms are remembered as sent.
_MOST_KEPT = 1000


class NotStarted(Exception):
    """No training was started. finding: why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.problem)
        self.finding = finding


class OnceByKey(Generic[T]):
    """What was done for a key, which is done once: also for those who ask while it is being done.

    What has failed can be tried again.

    Without JavaScript, a browser sends a form as often as its button is pressed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[str, Future[T]] = {}

    def result(self, key: str, do: Callable[[], T]) -> T:
        """The result of the first call for that key. An empty key is no key."""
        mine: Future[T] = Future()
        with self._lock:
            first = self._done.setdefault(key, mine) if key else mine
            if len(self._done) > _MOST_KEPT:
                del self._done[next(iter(self._done))]
        if first is mine:
            try:
                mine.set_result(do())
            except BaseException as error:
                with self._lock:
                    if self._done.get(key) is mine:
                        del self._done[key]
                mine.set_exception(error)
                raise
        return first.result()


class RunChanges:
    """What the forms about runs do, each the end of a POST.

    Args:
        context: what outlives a request.
        rules: those of the pages.
    """

    def __init__(self, context: PageContext, rules: GateRules) -> None:
        self._context = context
        self._rules = rules
        self._starts: OnceByKey[str] = OnceByKey()

    def start(self, request: Request, form: FormData) -> Response:
        """POST /train: starts a training, detached, and goes to the page of its run."""
        filled = TrainForm.of(form)
        try:
            run = self._starts.result(str(form.get("key", "")), lambda: self._begin(filled))
        except NotStarted as error:
            page = form_page(self._context, filled, error.finding)
            return render.as_html(page, request, self._rules, 400)
        return RedirectResponse(f"/runs/{run}", 303)

    def _begin(self, filled: TrainForm) -> str:
        """The run that was started.

        Raises:
            NotStarted: with the reason.
        """
        try:
            asked, _ = planned(self._context, filled)
            supervisor = cluster_api.begin(asked, Interrupts(), is_attached=False)
            problem = _began(supervisor)
        except FlatoutError as error:
            raise NotStarted(finding_from(error)) from error
        if problem is not None:
            raise NotStarted(problem)
        return supervisor.folder.path.name

    def stop(self, request: Request, form: FormData) -> Response:
        """POST /runs/RUN: asks the run to stop, and goes back to its page."""
        try:
            folder = self._context.runs.find(request.path_params["run"])
            runs_api.request_stop(str(folder.path))
        except FlatoutError as error:
            page = WebPage(template="error", data={"error": finding_from(error)})
            status = 404 if error.rule == "unknown-run" else 400
            return render.as_html(page, request, self._rules, status)
        return RedirectResponse(f"/runs/{folder.path.name}", 303)


def _began(supervisor: Supervisor) -> Finding | None:
    """Waits until a training has started; why it failed before that, if it did."""
    said: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(supervisor, said), daemon=True).start()
    try:
        return said.get(timeout=_BEGIN_LIMIT_S)
    except queue.Empty:
        return None


def _follow(supervisor: Supervisor, said: queue.SimpleQueue[Finding | None]) -> None:
    """Follows a training to its end, so that it is started again where memory was short.

    It continues without this, if flatout web ends first.
    """
    try:
        for _ in runs_api.follow(supervisor, Interrupts()):
            if supervisor.has_begun and said.empty():
                said.put(None)
        said.put(runs_api.conclude(supervisor).finding)
    except FlatoutError as error:
        said.put(finding_from(error))
    # A page that says so is better than a thread that ends unseen.
    except Exception as error:  # noqa: BLE001
        said.put(internal_error(error))
    finally:
        # The command line frees it by ending.
        supervisor.folder.attended.release()
