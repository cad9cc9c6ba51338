"""The store of a rendezvous whose keeper stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.busy_machine import wait_until

from flatout.engine.ranks.timeout_store import TimeoutStore


class Kept:
    """A store that answers while its keeper goes on, one question at a time, as torch's does."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.words: dict[str, bytes] = {}
        self._asking = threading.Lock()

    def set(self, name: str, word: bytes) -> None:
        self._answer()
        self.words[name] = word

    def get(self, name: str) -> bytes:
        self._answer()
        if name not in self.words:
            raise RuntimeError("wait timeout")
        return self.words[name]

    def check(self, names: list[str]) -> bool:
        self._answer()
        return all(name in self.words for name in names)

    def delete_key(self, name: str) -> None:
        self._answer()
        del self.words[name]

    def _answer(self) -> None:
        with self._asking:
            self.goes_on.wait(60)


def test_nobody_waits_for_a_keeper_that_stands_still() -> None:
    kept = Kept()
    store = TimeoutStore(kept, 1.0)
    store.set("here/0", b"fine")
    assert store.check(["here/0"]) and store.get("here/0") == b"fine"
    with pytest.raises(RuntimeError, match="wait timeout"):
        store.get("here/1")
    kept.goes_on.clear()
    asked: list[Callable[[], object]] = [
        lambda: store.set("here/1", b"late"),
        lambda: store.get("here/0"),
        lambda: store.check(["here/0"]),
        lambda: store.delete_key("here/0"),
    ]
    with ThreadPoolExecutor(len(asked)) as threads:
        for asking in [threads.submit(ask) for ask in asked]:
            with pytest.raises(RuntimeError, match="timed out: .* not answered for 1 s"):
                asking.result()
    kept.goes_on.set()
    # What was asked in vain is answered to nobody.
    wait_until(lambda: kept.words.get("here/1") == b"late")
    assert store.get("here/1") == b"late"
