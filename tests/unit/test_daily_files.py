"""Daily files of samples: a file for each day, and a bound on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_disk import can_be_mounted, fill, small_disk

from flatout.errors import RunFailed, UsageError
from flatout.schema.machine_sample import HostSample, MachineSample
from flatout.system.store import daily_files
from flatout.system.store.daily_files import DailyFiles, day_files
from flatout.system.store.sample_file import read_samples

DAY_S = 86_400
# 2027-01-15, midnight UTC.
NOON = 1_799_971_200.0


def sample(at: float, text: str = "") -> MachineSample:
    """A sample; text makes it longer."""
    return MachineSample(at=at, host=HostSample(), reason=text or None)


def names(folder: Path) -> list[str]:
    """The days that are kept."""
    return [day for day, _ in day_files(folder)]


def test_each_day_has_its_file(tmp_path: Path) -> None:
    with DailyFiles(tmp_path / "monitor", days=9, keep_bytes=10**6) as files:
        for at in (NOON, NOON + 1, NOON + DAY_S):
            files.append(sample(at))
    folder = tmp_path / "monitor"
    assert names(folder) == ["2027-01-15", "2027-01-16"]
    assert [one.at for one in read_samples(folder / "2027-01-15.jsonl")] == [NOON, NOON + 1]


def test_old_days_go_first(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    with DailyFiles(tmp_path, days=3, keep_bytes=10**6) as files:
        for day in range(6):
            files.append(sample(NOON + day * DAY_S))
    assert names(tmp_path) == ["2027-01-18", "2027-01-19", "2027-01-20"]
    assert (tmp_path / "notes.txt").exists()


def test_days_that_take_too_much_go_oldest_first(tmp_path: Path) -> None:
    with DailyFiles(tmp_path, days=99, keep_bytes=3000) as files:
        for day in range(5):
            files.append(sample(NOON + day * DAY_S, "x" * 1000))
    assert names(tmp_path) == ["2027-01-17", "2027-01-18", "2027-01-19"]


def test_a_single_day_keeps_to_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_files, "_CHECK_EVERY", 5)
    path = tmp_path / "2027-01-15.jsonl"
    with DailyFiles(tmp_path, days=9, keep_bytes=20_000) as files:
        for second in range(200):
            files.append(sample(NOON + second, "x" * 500))
            assert path.stat().st_size < 20_000 + 5 * 600
    kept = [one.at for one in read_samples(path)]
    # The newest, without a gap.
    assert kept == [NOON + second for second in range(200 - len(kept), 200)]


def test_a_second_monitor_is_refused(tmp_path: Path) -> None:
    with DailyFiles(tmp_path, days=9, keep_bytes=10**6):
        with pytest.raises(UsageError) as caught:
            DailyFiles(tmp_path, days=9, keep_bytes=10**6)
        assert caught.value.rule == "monitor-running"
    with DailyFiles(tmp_path, days=9, keep_bytes=10**6):
        pass


@pytest.mark.skipif(not can_be_mounted(), reason="only root on Linux can mount a small disk")
def test_a_full_disk_is_an_error_each_time_and_then_no_more(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200k") as disk:
        with DailyFiles(disk / "monitor", days=9, keep_bytes=10**6) as files:
            files.append(sample(NOON))
            fill(disk / "ballast")
            for second in range(3):
                with pytest.raises(RunFailed) as caught:
                    files.append(sample(NOON + 10 + second, "x" * 5000))
                assert caught.value.rule == "disk-full"
            (disk / "ballast").unlink()
            files.append(sample(NOON + 20))
        path = disk / "monitor" / "2027-01-15.jsonl"
        assert [one.at for one in read_samples(path)] == [NOON, NOON + 20]
