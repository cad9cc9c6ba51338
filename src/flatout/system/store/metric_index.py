"""The curves of a run, however many lines its metrics.jsonl has: an index of their extremes.

The file is read once, in blocks of 2,048 lines. Of each block, and of each 64 lines in it, the
index keeps every curve's lowest and highest value with their steps, and where in the file they are.
A chart of the whole run is drawn from those; a part of it that is small enough, from the lines
themselves. Lines after the last whole block are read each time.

The index is a SQLite file in the state folder. It grows with the run, and is made again where the
run's file is another one than before: of a younger run, or cut back by a resume.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec

from flatout.errors import RunFailed
from flatout.schema.metric_curves import CurveView, MetricCurve, MetricCurves
from flatout.system import atomic_files, paths
from flatout.system.clock import elapsed_s
from flatout.system.store.run_folder import RunFolder

_FINE_LINES = 64
_COARSE_LINES = 2048
_FINE, _COARSE = 0, 1
_VERSION = 2
# Of the file's content before the place that was read to: whether it is still the same file.
_MARK_BYTES = 64
_SCHEMA = """
CREATE TABLE reading (version INTEGER, created_at REAL, end INTEGER, mark BLOB, num_unread INTEGER);
CREATE TABLE curve (
  id INTEGER PRIMARY KEY, panel TEXT, line TEXT, num_missing INTEGER, first_missing_step INTEGER,
  UNIQUE (panel, line)
);
CREATE TABLE bucket (
  curve INTEGER, level INTEGER, start INTEGER, num INTEGER,
  first_step INTEGER, last_step INTEGER,
  low REAL, low_step INTEGER, high REAL, high_step INTEGER,
  PRIMARY KEY (curve, level, start)
) WITHOUT ROWID;
"""

T = TypeVar("T")

# (panel, line)
_Key = tuple[str, str]
# (step, value)
_Point = tuple[int, float]
# Of a line: its step, and (panel, line, value); None is a value that is not finite.
_LineValues = tuple[int, Iterable[tuple[str, str, float | None]]]


class IndexedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A JSONL file that is only appended to, and its index.

    index: the SQLite file. read: a line's values; raises msgspec.DecodeError for a damaged one.
    created_at: another file of the same name has another one. is_finished: nothing more comes.
    """

    path: Path
    index: Path
    read: Callable[[bytes], _LineValues]
    created_at: float = 0.0
    is_finished: bool = False


class _MetricLine(msgspec.Struct):
    """A line of any kind; what it has besides is not decoded, which is several times as fast."""

    kind: str
    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    loss: float | None = None
    losses: dict[str, float | None] = {}
    learning_rate: float | None = None
    learning_rates: dict[str, float] = {}
    samples_per_s: float | None = None
    memory_bytes: float | None = None
    power_w: float | None = None
    metrics: dict[str, float | None] = {}
    name: str = ""
    value: float | None = None


class _Bucket(msgspec.Struct):
    """Consecutive lines of the file, from byte `start` to `end`, with their points by curve.

    missing: steps of values that are not finite. num_unread: lines that are damaged.
    """

    start: int
    end: int
    num_lines: int = 0
    points: dict[_Key, list[_Point]] = {}
    missing: dict[_Key, list[int]] = {}
    num_unread: int = 0


def metric_curves(
    folder: RunFolder,
    created_at: float,
    view: CurveView,
    *,
    panel: str | None = None,
    budget_s: float = 0.25,
) -> MetricCurves:
    """The curves of a run, or those of a panel.

    Args:
        folder: the run.
        created_at: from its header: another run of the same name has another one.
        view: what of them.
        panel: None for all.
        budget_s: what may be spent on lines that the index does not have yet.

    Raises:
        RunFailed: damaged-file, curves-not-indexed.
    """
    decoder = msgspec.json.Decoder(_MetricLine)

    def read(text: bytes) -> _LineValues:
        line = decoder.decode(text)
        return line.step, _values(line)

    file = IndexedFile(
        path=folder.metrics, index=index_folder() / f"{folder.path.name}.sqlite", read=read,
        created_at=created_at,
    )  # fmt: skip
    return curves_in(file, view, panel=panel, budget_s=budget_s)


def curves_in(
    file: IndexedFile,
    view: CurveView,
    *,
    panel: str | None = None,
    budget_s: float | None = 0.25,
) -> MetricCurves:
    """The curves of a file: see `metric_curves`.

    budget_s: None adds nothing to the index, and waits for no one who does. The lines of a block
    after those in the index are read all the same, if there is an index or the file grows.

    Raises:
        RunFailed: damaged-file, curves-not-indexed.
    """
    if budget_s is None and file.is_finished and not file.index.exists():
        return MetricCurves(curves=(), share_read=0.0)
    none = MetricCurves(curves=())
    return _with_index(file, lambda index: index.curves(view, panel, budget_s), none)


def index_lines(file: IndexedFile, budget_s: float) -> bool:
    """Adds lines to the index for about so long; whether it then has all that it can have.

    Raises:
        RunFailed: damaged-file, curves-not-indexed.
    """
    return _with_index(file, lambda index: index.grow(budget_s) == 1.0, True)


def _with_index(file: IndexedFile, use: Callable[[_Index], T], missing: T) -> T:
    """Uses the index of a file. missing: the answer where there is no such file."""
    path = file.index
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files.mapped_os_errors(file.path):
        try:
            lines = atomic_files.open_file(file.path)
        except FileNotFoundError:
            return missing
        with lines:
            try:
                return _used(path, lambda db: use(_Index(db, file, lines)))
            except sqlite3.OperationalError as error:
                raise _not_indexed(path, error) from error
            except sqlite3.DatabaseError:
                # Damaged, such as by a power cut: everything in it can be read again.
                with atomic_files.mapped_os_errors(path):
                    path.unlink(missing_ok=True)
            try:
                return _used(path, lambda db: use(_Index(db, file, lines)))
            except sqlite3.DatabaseError as error:
                raise _not_indexed(path, error) from error


def _used(path: Path, use: Callable[[sqlite3.Connection], T]) -> T:
    with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as db:
        # It can be made again, so it need not survive a power cut.
        db.execute("PRAGMA synchronous = OFF")
        found = use(db)
        # Only now: another process might add the lines of the rest in the meantime.
        db.execute("COMMIT")
        return found


def index_folder() -> Path:
    """The folder of the indexes of all runs."""
    return paths.state_path("web") / "curves"


def forget_removed_runs(names: Iterable[str]) -> None:
    """Deletes the indexes of runs that are no longer among these."""
    kept = set(names)
    with contextlib.suppress(OSError):
        for path in index_folder().glob("*.sqlite"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)


def _not_indexed(path: Path, error: sqlite3.Error) -> RunFailed:
    return RunFailed(
        "curves-not-indexed",
        f"the curves cannot be stored in {path}.",
        because=str(error),
        fix="free space on that disk, or make the folder writable",
    )


class _Index:
    """The index of one file, while it is open."""

    def __init__(self, db: sqlite3.Connection, file: IndexedFile, lines: BinaryIO) -> None:
        self._db = db
        self._file = file
        self._lines = lines
        # The lines after the last whole block.
        self._rest: list[_Bucket] = []

    def curves(self, view: CurveView, panel: str | None, budget_s: float | None) -> MetricCurves:
        share_read = self._look() if budget_s is None else self.grow(budget_s)
        num_unread = self._db.execute("SELECT num_unread FROM reading").fetchone()[0]
        return MetricCurves(
            curves=tuple(self._curves(view, panel)),
            share_read=share_read,
            num_unread=num_unread + sum(bucket.num_unread for bucket in self._rest),
        )

    def _look(self) -> float:
        """Opens the index as it is now; returns the share of the file that can be shown."""
        self._db.execute("BEGIN")
        end = self._stored_end()
        if end is None:
            # These hide the tables of the file, which is not locked for that.
            self._make_tables("TEMP")
            end = 0
        size = self._lines.seek(0, 2)
        self._lines.seek(end)
        if not self._lines.readline().endswith(b"\n"):
            return 1.0
        self._lines.seek(end)
        self._rest = _read_block(self._lines, end, self._file.read)
        end = self._rest[-1].end if _is_whole(self._rest) else size
        return end / size

    def grow(self, budget_s: float) -> float:
        """Reads on for about so long; returns the share of the file that has been read."""
        self._db.execute("BEGIN IMMEDIATE")
        end = self._stored_end()
        if end is None:
            for table in ("reading", "curve", "bucket"):
                self._db.execute(f"DROP TABLE IF EXISTS {table}")
            self._make_tables()
            end = 0
        size = self._lines.seek(0, 2)
        self._lines.seek(end)
        began_s, stored = elapsed_s(), end
        while True:
            block = _read_block(self._lines, end, self._file.read)
            is_last = not _is_whole(block)
            if is_last and not (self._file.is_finished and block[-1].end > end):
                # The file ends here; more lines may come.
                self._rest, end = block, size
                break
            self._store(block)
            end = stored = block[-1].end
            if elapsed_s() - began_s > budget_s:
                break
        self._note_position(stored)
        return min(1.0, end / size) if size else 1.0

    def _note_position(self, position: int) -> None:
        """Stores how far the file has been read."""
        self._lines.seek(max(0, position - _MARK_BYTES))
        mark = self._lines.read(min(position, _MARK_BYTES))
        noted = self._db.execute("SELECT end, mark FROM reading").fetchone()
        if noted != (position, mark):
            self._db.execute("UPDATE reading SET end = ?, mark = ?", (position, mark))

    def _stored_end(self) -> int | None:
        """How far the index has the file; None where it is empty, or that of another file."""
        with contextlib.suppress(sqlite3.OperationalError):
            row = self._db.execute("SELECT version, created_at, end, mark FROM reading").fetchone()
            if row is not None and row[:2] == (_VERSION, self._file.created_at):
                end, mark = row[2:]
                self._lines.seek(end - len(mark))
                if self._lines.read(len(mark)) == mark:
                    return int(end)
        return None

    def _make_tables(self, kind: str = "") -> None:
        for statement in _SCHEMA.split(";"):
            self._db.execute(statement.replace("CREATE TABLE", f"CREATE {kind} TABLE"))
        self._db.execute(
            "INSERT INTO reading VALUES (?, ?, 0, x'', 0)", (_VERSION, self._file.created_at)
        )

    def _store(self, block: list[_Bucket]) -> None:
        """Adds a whole block."""
        rows: list[tuple[Any, ...]] = []
        # Of each bucket its extremes and ends, which are those of the block as well.
        coarse: dict[_Key, list[_Point]] = {}
        ids = {(panel, line): number for number, panel, line in self._known()}
        for bucket in block:
            for key, points in bucket.points.items():
                place = (self._id(key, ids), _FINE, bucket.start)
                summary = _summary(points)
                rows.append((*place, *summary))
                low, low_step, high, high_step = summary[3:]
                ends = (points[0], points[-1], (low_step, low), (high_step, high))
                coarse.setdefault(key, []).extend(ends)
            for key, steps in bucket.missing.items():
                self._db.execute(
                    "UPDATE curve SET num_missing = num_missing + ?,"
                    " first_missing_step = coalesce(first_missing_step, ?) WHERE id = ?",
                    (len(steps), steps[0], self._id(key, ids)),
                )
        start = block[0].start
        rows += [(ids[key], _COARSE, start, *_summary(points)) for key, points in coarse.items()]
        self._db.executemany(f"INSERT INTO bucket VALUES ({', '.join('?' * 10)})", rows)
        num_unread = sum(bucket.num_unread for bucket in block)
        self._db.execute("UPDATE reading SET num_unread = num_unread + ?", (num_unread,))

    def _known(self) -> list[tuple[int, str, str]]:
        return self._db.execute("SELECT id, panel, line FROM curve ORDER BY id").fetchall()

    def _id(self, key: _Key, ids: dict[_Key, int]) -> int:
        if key not in ids:
            added = self._db.execute("INSERT INTO curve VALUES (NULL, ?, ?, 0, NULL)", key)
            assert added.lastrowid is not None
            ids[key] = added.lastrowid
        return ids[key]

    def _curves(self, view: CurveView, panel: str | None) -> Iterator[MetricCurve]:
        """The curves, in the order in which they have begun."""
        ids: dict[_Key, int | None] = {(known, line): id_ for id_, known, line in self._known()}
        for bucket in self._rest:
            for key in (*bucket.points, *bucket.missing):
                ids.setdefault(key, None)
        raw: dict[int, _Bucket] = {}
        for key, number in ids.items():
            if panel not in (None, key[0]):
                continue
            points = [point for bucket in self._rest for point in bucket.points.get(key, ())]
            missing = [step for bucket in self._rest for step in bucket.missing.get(key, ())]
            num_missing, first_missing = len(missing), missing[0] if missing else None
            if number is not None:
                points = [*self._stored_points(number, key, view, raw), *points]
                num, first = self._db.execute(
                    "SELECT num_missing, first_missing_step FROM curve WHERE id = ?", (number,)
                ).fetchone()
                num_missing += num
                first_missing = first if first is not None else first_missing
            steps, values = thinned(points, view)
            yield MetricCurve(
                panel=key[0], line=key[1], steps=steps, values=values,
                num_missing=num_missing, first_missing_step=first_missing,
            )  # fmt: skip

    def _stored_points(
        self, number: int, key: _Key, view: CurveView, raw: dict[int, _Bucket]
    ) -> list[_Point]:  # fmt: skip
        """A curve's points: of the coarsest level that has one for each column.

        raw: what has been read of the file, by start; the curves of a panel are in the same lines.
        """
        first = view.first_step if view.first_step is not None else -1
        last = view.last_step if view.last_step is not None else 2**62
        for level in (_COARSE, _FINE):
            rows = self._db.execute(
                "SELECT start, num, low_step, low, high_step, high FROM bucket"
                " WHERE curve = ? AND level = ? AND last_step >= ? AND first_step <= ?"
                " ORDER BY start",
                (number, level, first, last),
            ).fetchall()
            if len(rows) >= view.columns:
                break
        points: list[_Point] = []
        for start, num, low_step, low, high_step, high in rows:
            if len(rows) >= view.columns or num <= 2:
                points += sorted({(low_step, low), (high_step, high)})
                continue
            if start not in raw:
                self._lines.seek(start)
                raw[start] = _read_bucket(self._lines, start, self._file.read)
            points += raw[start].points.get(key, ())
        return points


def _summary(points: list[_Point]) -> tuple[Any, ...]:
    """num, first_step, last_step, low, low_step, high, high_step."""
    steps = [step for step, _ in points]
    low, high = min(points, key=itemgetter(1)), max(points, key=itemgetter(1))
    return len(points), min(steps), max(steps), low[1], low[0], high[1], high[0]


def _is_whole(block: list[_Bucket]) -> bool:
    return sum(bucket.num_lines for bucket in block) == _COARSE_LINES


def _read_block(
    file: BinaryIO, start: int, read: Callable[[bytes], _LineValues]
) -> list[_Bucket]:  # fmt: skip
    """Buckets of a block; fewer, and the last of them shorter, where the file ends."""
    buckets = []
    for _ in range(_COARSE_LINES // _FINE_LINES):
        bucket = _read_bucket(file, start, read)
        buckets.append(bucket)
        start = bucket.end
        if bucket.num_lines < _FINE_LINES:
            break
    return buckets


def _read_bucket(
    file: BinaryIO, start: int, read: Callable[[bytes], _LineValues]
) -> _Bucket:  # fmt: skip
    bucket = _Bucket(start, start)
    while bucket.num_lines < _FINE_LINES and (text := file.readline()).endswith(b"\n"):
        bucket.end += len(text)
        bucket.num_lines += 1
        try:
            step, values = read(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            bucket.num_unread += 1
            continue
        for panel, name, value in values:
            if value is None or not math.isfinite(value):
                bucket.missing.setdefault((panel, name), []).append(step)
            else:
                bucket.points.setdefault((panel, name), []).append((step, value))
    return bucket


def _values(line: _MetricLine) -> Iterator[tuple[str, str, float | None]]:
    """(panel, line, value); None is a value that is not finite."""
    if line.kind in ("progress", "epochended"):
        name = "training" if line.kind == "progress" else "epoch"
        yield "loss", name, line.loss
        for part, value in line.losses.items():
            yield "loss", f"{name} {part}", value
    if line.kind == "progress":
        if len(line.learning_rates) > 1:
            for part, rate in line.learning_rates.items():
                yield "learning_rate", f"training {part}", rate
        elif line.learning_rate is not None:
            yield "learning_rate", "training", line.learning_rate
        for panel, known in (
            ("samples_per_s", line.samples_per_s),
            ("memory_bytes", line.memory_bytes),
            ("power_w", line.power_w),
        ):
            if known is not None:
                yield panel, "training", known
    elif line.kind == "validated":
        for panel, value in line.metrics.items():
            yield panel, "validation", value
    elif line.kind == "logged" and line.value is not None:
        yield line.name, "logged", line.value


def thinned(points: list[_Point], view: CurveView) -> tuple[list[int], list[float]]:
    """Steps and values within the view: of each column the lowest and the highest, and the ends."""
    first = view.first_step if view.first_step is not None else points[0][0] if points else 0
    last = view.last_step if view.last_step is not None else points[-1][0] if points else 0
    inside = [point for point in points if first <= point[0] <= last]
    if len(inside) > 2 * view.columns:
        width = (last - first + 1) / view.columns
        columns: dict[int, tuple[_Point, _Point]] = {}
        for point in inside:
            column = int((point[0] - first) / width)
            low, high = columns.get(column, (point, point))
            if point[1] < low[1]:
                low = point
            elif point[1] > high[1]:
                high = point
            columns[column] = (low, high)
        ends = inside[0], inside[-1]
        extremes = [point for pair in columns.values() for point in pair]
        inside = sorted({*extremes, *ends})
    return [step for step, _ in inside], [value for _, value in inside]
