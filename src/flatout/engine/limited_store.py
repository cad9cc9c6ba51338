"""The store of a rendezvous, asked with a limit: whoever keeps it may stand still.

torch has a limit for words that are not there yet, and none for the answer itself. A keeper that
is stopped, or in a container that is paused, is answered for by its kernel: the connection lives,
and whoever asks would wait as long as it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

T = TypeVar("T")


class LimitedStore:
    """A store whose answers come within a limit, or not at all.

    Who asks in vain gets a RuntimeError, as where the store is gone. What was asked is left to a
    thread that nobody waits for: should the keeper go on, it takes the answer, and what is asked
    next gets its own.

    Args:
        store: torch.distributed's.
        limit_s: how long an answer may take.
    """

    def __init__(self, store: Any, limit_s: float) -> None:
        self._store = store
        self._limit_s = limit_s

    def set(self, name: str, word: str | bytes) -> None:
        """Lays a word down."""
        self._asked(lambda: self._store.set(name, word))

    def get(self, name: str) -> bytes:
        """A word; waits for it to be laid down, as long as torch's store does by itself."""
        return self._asked(lambda: bytes(self._store.get(name)))

    def check(self, names: list[str]) -> bool:
        """Whether all of these words are there."""
        return self._asked(lambda: bool(self._store.check(names)))

    def delete_key(self, name: str) -> None:
        """Removes a word."""
        self._asked(lambda: self._store.delete_key(name))

    def _asked(self, ask: Callable[[], T]) -> T:
        answer: futures.Future[T] = futures.Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                answer.set_exception(error)

        threading.Thread(target=run, name="store", daemon=True).start()
        try:
            return answer.result(self._limit_s)
        except TimeoutError:
            raise RuntimeError(
                f"timed out: the ranks' store has not answered for {self._limit_s:g} s"
            ) from None
