"""A rank's long waits, told while they last."""

from __future__ import annotations

import time

from support.busy_machine import wait_until

from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.ranks.wait_watchdog import OFTEN_FACTOR, WaitWatchdog, late_ranks
from flatout.schema.finding import Finding
from flatout.system.clock import elapsed_s


class Store:
    """What torch.distributed's store is to those who lay words down in it."""

    def __init__(self) -> None:
        self.words: dict[str, bytes] = {}

    def set(self, name: str, word: str) -> None:
        self.words[name] = word.encode()

    def get(self, name: str) -> bytes:
        return self.words[name]

    def check(self, names: list[str]) -> bool:
        return all(name in self.words for name in names)


def place(rank: int, size: int) -> RankEnv:
    return RankEnv(rank=rank, size=size, local_rank=rank, host="127.0.0.1", port=0)


def test_who_does_not_wait_is_waited_for_and_reported_once() -> None:
    store = Store()
    reported: list[Finding] = []
    first, second = (WaitWatchdog(store, place(rank, 3)) for rank in (0, 1))
    first.begin(reported.append, report_after_s=0.3)
    second.begin(lambda finding: None, report_after_s=0.3)
    # An update ago the third was there, too.
    store.set("waits/2", "6")
    second.meeting, second.since_s = 7, elapsed_s()
    wait_until(lambda: store.words.get("waits/1") == b"7")
    first.meeting, first.since_s = 7, elapsed_s()
    wait_until(lambda: reported)
    assert [one.rule for one in reported] == ["rank-late"]
    assert (
        "waiting for rank 2 of 3" in reported[0].problem and "600 s at most" in reported[0].problem
    )
    first.meeting, first.since_s = 8, None
    time.sleep(0.5)
    assert len(reported) == 1, "it waits no more"
    first.end()
    second.end()


def test_all_that_wait_are_not_reported_to_be_late() -> None:
    assert "waiting for any of 2 ranks" in late_ranks([], place(0, 2), 10.0).problem


def test_a_long_wait_is_reported_however_many_there_were_before() -> None:
    reported: list[Finding] = []
    patience = WaitWatchdog(Store(), place(0, 2))
    patience.begin(reported.append, report_after_s=1.0)

    def waits(meeting: int, since_s: float, is_reported: bool) -> None:
        # As if it waited so long by now.
        before = len(reported)
        patience.meeting, patience.since_s = meeting, elapsed_s() - since_s
        if is_reported:
            wait_until(lambda: len(reported) > before)
        else:
            # The watchdog looks ten times a second.
            time.sleep(0.25)
        patience.since_s = None
        assert len(reported) == before + is_reported

    for meeting in range(5):
        waits(meeting, 1.5, True)
    waits(5, 1.5, False)
    waits(6, OFTEN_FACTOR, True)
    patience.end()
