"""Counts of the processor: real ones where this machine allows them, else their reasons."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading

import pytest

from flatout.system.perf_counters import PerfCounters, scaled

EVENTS = {"cycles", "instructions", "cache_misses", "page_faults"}
_NUM_PAGES = 1000


def touch_pages() -> None:
    """Makes as many page faults as it has pages."""
    if sys.platform != "linux":
        return
    with mmap.mmap(-1, _NUM_PAGES * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(_NUM_PAGES):
            memory[page * mmap.PAGESIZE] = 1


def test_each_event_is_counted_or_has_a_reason() -> None:
    with PerfCounters() as counters:
        assert counters.taken().keys() | counters.reasons.keys() == EVENTS
        assert not counters.taken().keys() & counters.reasons.keys()
        assert all(counters.reasons.values())


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: it has perf events")
def test_page_faults_are_counted_in_threads_that_are_there_and_that_are_started() -> None:
    begin, thread = threading.Event(), threading.Thread(target=touch_pages)
    earlier = threading.Thread(target=lambda: begin.wait(60) and touch_pages())
    earlier.start()
    with PerfCounters() as counters:
        if "page_faults" in counters.reasons:
            begin.set()
            pytest.skip(f"needs perf events: {counters.reasons['page_faults']}")
        before = counters.taken()["page_faults"]
        begin.set()
        thread.start()
        for one in (earlier, thread):
            one.join()
        assert counters.taken()["page_faults"] - before >= 2 * _NUM_PAGES


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc of Linux")
def test_no_file_stays_open() -> None:
    with PerfCounters() as counters:
        files = [file for files in counters._files.values() for file in files]
        if not files:
            pytest.skip(f"needs perf events: {counters.reasons}")
        links = {file: os.readlink(f"/proc/self/fd/{file}") for file in files}
    assert set(links.values()) == {"anon_inode:[perf_event]"}
    for file in files:
        # Another thread may have a file of that number by now.
        with contextlib.suppress(OSError):
            assert os.readlink(f"/proc/self/fd/{file}") != "anon_inode:[perf_event]"


def test_count_is_scaled_to_the_time_for_which_it_was_wanted() -> None:
    # Counted half of the time; not at all, as a thread that did not run.
    assert scaled([(10, 8, 4), (0, 8, 0), (5, 3, 3)]) == 25.0
    # No counter was free: that is not a count of 0.
    assert scaled([(0, 8, 0)]) is None
