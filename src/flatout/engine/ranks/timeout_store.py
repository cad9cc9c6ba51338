"""The store of a rendezvous, asked with a time limit: its host may hang.

torch limits the wait for missing words, but not for the answer itself. A keeper that
is stopped, or in a container that is paused, is answered for by its kernel: the connection lives,
and a request would wait as long as it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

T = TypeVar("T")


class TimeoutStore:
    """A store whose answers come within a limit, or not at all.

    A request without an answer raises RuntimeError, as if the store were gone. It is left to
    a thread that nothing waits for: if the host recovers, that thread takes the answer, and the
    next request gets its own.

    Args:
        store: torch.distributed's.
        limit_s: how long an answer may take.
    """

    def __init__(self, store: Any, limit_s: float) -> None:
        self._store = store
        self._limit_s = limit_s

    def set(self, name: str, word: str | bytes) -> None:
        """Lays a word down."""
        self._request(lambda: self._store.set(name, word))

    def get(self, name: str) -> bytes:
        """A word; waits for it to be laid down, as long as torch's store does by itself."""
        return self._request(lambda: bytes(self._store.get(name)))

    def check(self, names: list[str]) -> bool:
        """Whether all of these words are there."""
        return self._request(lambda: bool(self._store.check(names)))

    def delete_key(self, name: str) -> None:
        """Removes a word."""
        self._request(lambda: self._store.delete_key(name))

    def _request(self, request: Callable[[], T]) -> T:
        reply: futures.Future[T] = futures.Future()

        def run() -> None:
            try:
                reply.set_result(request())
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                reply.set_exception(error)

        threading.Thread(target=run, name="store", daemon=True).start()
        try:
            return reply.result(self._limit_s)
        except TimeoutError:
            raise RuntimeError(
                f"timed out: the ranks' store has not answered for {self._limit_s:g} s"
            ) from None
