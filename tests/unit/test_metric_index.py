"""The index of a run's curves: exact extremes, whatever the run's file went through."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.web_runs import CREATED_AT, big_metrics, new_run, validated, whole_run

from flatout.errors import RunFailed
from flatout.schema.metric_curves import CurveView, MetricCurve, MetricCurves
from flatout.system.store.metric_index import (
    IndexedFile,
    curves_in,
    forget_removed_runs,
    index_folder,
    metric_curves,
    thinned,
)
from flatout.system.store.run_folder import RunFolder

NUM_LINES = 10_000


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def long_run() -> RunFolder:
    folder = new_run("digits-0001")
    big_metrics(folder, NUM_LINES)
    return folder


def curves_of(
    folder: RunFolder, view: CurveView | None = None, *, budget_s: float = 60.0
) -> MetricCurves:  # fmt: skip
    return metric_curves(folder, CREATED_AT, view or CurveView(), budget_s=budget_s)


def loss_of(curves: MetricCurves) -> MetricCurve:
    return next(one for one in curves.curves if (one.panel, one.line) == ("loss", "training"))


def test_curves_of_a_short_run() -> None:
    folder = whole_run()
    found = {(curve.panel, curve.line): curve for curve in curves_of(folder).curves}
    assert found["loss", "training"].steps == list(range(10, 101, 10))
    assert found["loss", "training"].values[0] == pytest.approx(0.1)
    assert found["accuracy", "validation"].values == [0.9]


def test_numbers_of_hooks_are_curves() -> None:
    folder = new_run("digits-0001", metrics=[validated(1, 0.9)])
    with open(folder.metrics, "ab") as file:
        for text in ('"value":0.5', '"value":null', '"text":"cat"'):
            line = f'{{"kind":"logged","at":1.0,"step":1,"epoch":0,"name":"depth",{text}}}\n'
            file.write(line.encode())
    (found,) = [curve for curve in curves_of(folder).curves if curve.line == "logged"]
    assert (found.panel, found.steps, found.values) == ("depth", [1], [0.5])


def test_peak_of_a_long_run_is_kept(long_run: RunFolder) -> None:
    curves = curves_of(long_run, CurveView(columns=100))
    loss = loss_of(curves)
    assert curves.share_read == 1.0 and len(loss.steps) <= 202
    assert (NUM_LINES // 3, 987.5) in zip(loss.steps, loss.values, strict=True)
    assert loss.steps == sorted(loss.steps) and loss.steps[-1] > NUM_LINES - 100


def test_part_of_a_long_run_is_exact(long_run: RunFolder) -> None:
    view = CurveView(first_step=3000, last_step=3100)
    curves_of(long_run)
    loss = loss_of(curves_of(long_run, view))
    assert loss.steps == list(range(3000, 3101))
    assert loss.values == [1.5 + step % 7 for step in range(3000, 3101)]


def test_long_run_is_read_bit_by_bit(long_run: RunFolder) -> None:
    first = curves_of(long_run, budget_s=0.0)
    assert 0 < first.share_read < 1
    shares = [first.share_read]
    while shares[-1] < 1:
        shares.append(curves_of(long_run, budget_s=0.0).share_read)
    assert shares == sorted(shares)
    assert loss_of(curves_of(long_run)).steps[-1] == NUM_LINES - 1


def test_new_lines_are_added(long_run: RunFolder) -> None:
    curves_of(long_run)
    with open(long_run.metrics, "a", encoding="utf-8") as file:
        for step in range(NUM_LINES, NUM_LINES + 3000):
            file.write(json.dumps({"kind": "progress", "step": step, "loss": -1.0}) + "\n")
        file.write('{"kind": "progress", "step": 99999, "lo')
    loss = loss_of(curves_of(long_run))
    assert loss.steps[-1] == NUM_LINES + 2999 and min(loss.values) == -1.0


def test_file_that_was_cut_back_is_read_again(long_run: RunFolder) -> None:
    curves_of(long_run)
    text = long_run.metrics.read_bytes().splitlines(keepends=True)
    # Shorter, and then longer than before with other lines: a resume that went its own way.
    long_run.metrics.write_bytes(b"".join(text[:3000]))
    assert loss_of(curves_of(long_run)).steps[-1] == 2999
    other = [line.replace(b'"loss":', b'"loss":5') for line in text[3000:]]
    long_run.metrics.write_bytes(b"".join([*text[:3000], *other]))
    assert max(loss_of(curves_of(long_run)).values) == 5987.5


def test_younger_run_of_the_same_name_is_read_again(long_run: RunFolder) -> None:
    curves_of(long_run)
    assert loss_of(metric_curves(long_run, CREATED_AT + 1, CurveView())).steps
    database = sqlite3.connect(index_folder() / "digits-0001.sqlite")
    assert database.execute("SELECT created_at FROM reading").fetchall() == [(CREATED_AT + 1,)]
    database.close()


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_damaged_index_is_made_again(long_run: RunFolder, content: bytes) -> None:
    curves_of(long_run)
    (index_folder() / "digits-0001.sqlite").write_bytes(content)
    assert loss_of(curves_of(long_run)).steps[-1] == NUM_LINES - 1


def test_index_that_cannot_be_written(long_run: RunFolder) -> None:
    index_folder().mkdir(parents=True)
    (index_folder() / "digits-0001.sqlite").mkdir()
    with pytest.raises(RunFailed) as raised:
        curves_of(long_run)
    assert raised.value.rule == "curves-not-indexed"


def test_lines_that_are_damaged_or_not_finite_are_counted() -> None:
    folder = new_run("digits-0001", metrics=[validated(step, None) for step in range(5000)])
    with open(folder.metrics, "ab") as file:
        file.write(b'{"kind":"progress","step":-1}\n\xff\xfe\n[]\n')
    curves = curves_of(folder)
    accuracy = next(curve for curve in curves.curves if curve.panel == "accuracy")
    assert (accuracy.num_missing, accuracy.first_missing_step) == (5000, 0)
    assert curves.num_unread == 3


def test_sparse_curve_does_not_read_all_lines_between_its_points(tmp_path: Path) -> None:
    path, num_read = tmp_path / "lines", 0
    path.write_bytes(b"".join(b"%d\n" % step for step in range(NUM_LINES)))

    def read(text: bytes) -> tuple[int, list[tuple[str, str, float | None]]]:
        nonlocal num_read
        num_read += 1
        step = int(text)
        is_sparse = step % 5000 < 3
        return step, [("loss", "all", 1.0), *([("loss", "few", 2.0)] if is_sparse else [])]

    file = IndexedFile(path=path, index=tmp_path / "index", read=read, is_finished=True)
    view = CurveView(columns=50)
    curves_in(file, view, budget_s=60.0)
    num_read = 0
    few = next(one for one in curves_in(file, view).curves if one.line == "few")
    assert few.steps == [0, 1, 2, 5000, 5001, 5002]
    assert num_read <= 4 * 64


def test_run_without_metrics_has_no_curves() -> None:
    folder = new_run("digits-0001")
    folder.metrics.unlink()
    assert curves_of(folder).curves == ()
    folder.metrics.write_bytes(b"")
    assert curves_of(folder).curves == ()


def test_index_of_a_removed_run_is_deleted(long_run: RunFolder) -> None:
    curves_of(long_run)
    forget_removed_runs(["digits-0001"])
    assert list(index_folder().iterdir())
    forget_removed_runs([])
    assert not list(index_folder().iterdir())


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=400),
    st.integers(1, 60), st.integers(0, 400), st.integers(0, 400),
)  # fmt: skip
def test_thinned_keeps_the_extremes(
    values: list[float], columns: int, first: int, last: int
) -> None:
    points = list(enumerate(values))
    steps, kept = thinned(points, CurveView(first_step=first, last_step=last, columns=columns))
    inside = [value for step, value in points if first <= step <= last]
    assert len(steps) <= 2 * columns + 2 and steps == sorted(steps)
    assert all(values[step] == value for step, value in zip(steps, kept, strict=True))
    if inside:
        assert (min(kept), max(kept)) == (min(inside), max(inside))
        assert (kept[0], kept[-1]) == (inside[0], inside[-1])
