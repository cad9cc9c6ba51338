"""Compared bench files: verdicts, warnings, decomposition; files that are damaged or hostile."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import time
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.bench import charts, platforms, report, table_texts
from flatout.bench import compare as bench_compare
from flatout.bench.effort import FULL
from flatout.bench.read_files import read_files, short_names
from flatout.cli.commands.bench_compare import compare as command
from flatout.cli.render import show_bench_comparison
from flatout.errors import FlatoutError, UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import BenchComparison, LoadedBench, RowChange
from flatout.schema.machine import Cpu, Gpu, Machine

STATE = DeviceState(at="2026-11-24T16:00:00Z", other_cpus=0.0)
MATMUL = "limits/matmul/fp32"
ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u202e|`=1"


def row(id: str, samples: Sequence[float], **fields: Any) -> BenchRow:
    fields = {"label": id, "unit": "flop/s"} | fields
    return BenchRow(id=id, samples=tuple(samples), **fields)


def bench(*rows: BenchRow, **fields: Any) -> BenchFile:
    machine = Machine(cpu=Cpu(name="A CPU", num_cores=4, num_threads=4))
    given = {"kind": "limits", "flatout": "1", "machine": machine, "began": STATE, "ended": STATE}
    return BenchFile(rows=rows, **(given | fields))


def loaded(*files: BenchFile) -> list[LoadedBench]:
    return [
        LoadedBench(name=name, path=f"{name}.json", file=file)
        for name, file in zip("ABC", files, strict=False)
    ]


def compared(*files: BenchFile) -> BenchComparison:
    return bench_compare.compare(loaded(*files))


def change(comparison: BenchComparison, number: int = 0) -> RowChange:
    value = comparison.rows[number].values[1]
    assert value is not None and value.change is not None
    return value.change


def noisy(seed: int, middle: float = 100.0, num: int = 15) -> list[float]:
    generator = random.Random(seed)
    return [middle * math.exp(generator.gauss(0, 0.01)) for _ in range(num)]


def written(folder: Path, *contents: bytes | BenchFile) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        is_raw = isinstance(content, bytes)
        path.write_bytes(content if is_raw else msgspec.json.encode(content))
    return paths


@pytest.mark.parametrize(
    ("factor", "fields", "verdict"),
    [
        (1.1, {}, "faster"),
        (0.9, {}, "slower"),
        (1.0, {}, "cannot tell"),
        (1.1, {"unit": "s", "is_higher_better": False}, "slower"),
        (0.9, {"unit": "s", "is_higher_better": False}, "faster"),
        (1.1, {"unit": "B", "is_higher_better": False}, "worse"),
        (0.9, {"unit": "J/sample", "is_higher_better": False}, "better"),
    ],
)
def test_verdict(factor: float, fields: dict[str, Any], verdict: str) -> None:
    first, second = row(MATMUL, noisy(1), **fields), row(MATMUL, noisy(2, 100 * factor), **fields)
    assert change(compared(bench(first), bench(second))).verdict == verdict


def test_verdict_when_there_are_few_samples() -> None:
    found = change(compared(bench(row(MATMUL, [1.0] * 4)), bench(row(MATMUL, [2.0] * 4))))
    assert found.verdict == "cannot tell" and found.why == "4 samples; at least 5 are needed"


def test_verdict_when_many_rows_could_differ_by_chance() -> None:
    # Of 5 samples, a rank test cannot say more than p = 0.012.
    first = [row(f"limits/matmul/{n}", [1.0, 1.1, 0.9, 1.05, 0.95]) for n in range(20)]
    far = row("limits/matmul/0", [2.0, 2.1, 1.9, 2.05, 1.95])
    assert change(compared(bench(first[0]), bench(far))).verdict == "faster"
    found = change(compared(bench(*first), bench(far, *first[1:])))
    assert found.verdict == "cannot tell" and "so many rows" in (found.why or "")


def test_a_against_itself_when_compared_often() -> None:
    verdicts = [
        change(compared(bench(row(MATMUL, noisy(2 * n))), bench(row(MATMUL, noisy(2 * n + 1)))))
        for n in range(100)
    ]
    assert sum(one.verdict == "cannot tell" for one in verdicts) >= 95


def test_planted_difference_when_compared_often() -> None:
    planted = [
        change(compared(bench(row(MATMUL, noisy(2 * n))), bench(row(MATMUL, noisy(2 * n + 1, 95)))))
        for n in range(100)
    ]
    assert sum(one.verdict == "slower" for one in planted) >= 90


@pytest.mark.parametrize(
    ("process_noise", "outliers"), [(0.0, 0.0), (0.01, 0.0), (0.0, 0.1)], ids=str
)
def test_planted_difference_when_measured_as_limits_does(
    process_noise: float, outliers: float
) -> None:
    counts = FULL.num_processes, FULL.num_blocks
    dice = random.Random(1)

    def drawn(factor: float) -> BenchFile:
        samples = []
        for _ in range(counts[0]):
            own = dice.gauss(0, process_noise)
            for _ in range(counts[1]):
                far = abs(dice.gauss(0, 0.5)) if dice.random() < outliers else 0.0
                samples.append(100 * factor * math.exp(own + dice.gauss(0, 0.02) - far))
        return bench(row(MATMUL, samples), settings={"num_processes": str(counts[0])})

    pairs = [(drawn(1.0), drawn(1.0), drawn(0.95)) for _ in range(100)]
    verdicts = [[change(compared(one, two)).verdict for two in rest] for one, *rest in pairs]
    assert sum(same == "cannot tell" for same, _ in verdicts) >= 95
    assert sum(planted == "slower" for _, planted in verdicts) >= 90


def test_interval_reaches_as_far_as_a_difference_in_load() -> None:
    busy = msgspec.structs.replace(STATE, other_cpus=2.0)
    slow = bench(row(MATMUL, noisy(1, 60)), began=busy)
    found = compared(bench(row(MATMUL, noisy(2))), slow)
    assert change(found).ratio.high > 1.1 and change(found).verdict == "cannot tell"
    assert "B: other programs used up to 50 % of the CPUs" in " ".join(found.warnings)
    same = compared(bench(row(MATMUL, noisy(2)), began=busy), slow)
    assert change(same).verdict == "slower"


def test_units_that_differ_are_not_compared() -> None:
    found = compared(bench(row(MATMUL, noisy(1))), bench(row(MATMUL, noisy(1), unit="B/s")))
    value = found.rows[0].values[1]
    assert (
        value is not None and value.change is None and value.unread == "in B/s, but in flop/s in A"
    )


def test_rows_that_one_file_lacks() -> None:
    only = row("limits/disk/home/stream", noisy(1))
    unread = BenchRow(id="limits/pinned", label="pinned", unit="B", unread="no GPU")
    found = compared(
        bench(row(MATMUL, noisy(1)), only, unread), bench(row(MATMUL, noisy(2)), unread)
    )
    assert [one.id for one in found.rows] == [MATMUL, "limits/pinned"]
    assert found.left_out == (only.id,) and found.num_tests == 1
    value = found.rows[1].values[0]
    assert value is not None and value.unread == "no GPU"


def test_files_without_a_common_row() -> None:
    with pytest.raises(UsageError) as caught:
        compared(bench(row("a", [1.0])), bench(row("b", [1.0]), kind="run"))
    assert caught.value.rule == "bench-nothing-in-common"


def test_conditions_that_differ_are_said() -> None:
    first, second = (row(MATMUL, noisy(1), conditions={"size": size}) for size in ("1024", "2048"))
    found = compared(bench(first), bench(second))
    assert found.rows[0].note == "size: 1024 / 2048"
    assert any("size: 1024 / 2048" in text for text in found.warnings)


def test_warnings_name_what_differs_besides() -> None:
    gpus = (Gpu(index=0, name="NVIDIA H100"),)
    began = DeviceState(
        at="", clock_hz=2e9, power_limit_w=300.0, is_on_battery=True,
        throttles=("power-cap", "idle"),
    )  # fmt: skip
    ended = msgspec.structs.replace(began, clock_hz=1.5e9)
    base = Machine(gpus=gpus, driver="580.1")
    first = bench(row(MATMUL, noisy(1)), machine=base, versions={"torch": "2.13"},
                  began=DeviceState(at="", power_limit_w=350.0, clock_hz=2e9),
                  ended=DeviceState(at="", clock_hz=2e9),
                  settings={"threads": "1", "device": "cuda:0"})  # fmt: skip
    other = msgspec.structs.replace(base, driver="590.2")
    second = bench(row(MATMUL, noisy(1)), machine=other, versions={"torch": "2.14"}, began=began,
                   ended=ended, settings={"threads": "2", "device": "cuda:0"},
                   warnings=("noisy",))  # fmt: skip
    found = compared(first, second)
    names = [one.name for one in found.differing]
    assert names == ["driver", "power limit", "on battery", "torch", "setting threads"]
    assert found.warnings == (
        "B: the device was throttled (power-cap)",
        "B: the machine was running on battery",
        "B: noisy",
        "clock: 2,000 MHz in A, 1,500 MHz in B",
        "the files differ in more than one thing (driver, power limit, on battery, torch and 1"
        " more): the ratios show the effect of all of them together",
    )


def test_one_difference_is_what_was_asked() -> None:
    found = compared(
        bench(row(MATMUL, noisy(1)), versions={"torch": "2.13"}),
        bench(row(MATMUL, noisy(2)), versions={"torch": "2.14"}),
    )
    assert [one.values for one in found.differing] == [("2.13", "2.14")] and not found.warnings


def test_drift_is_said() -> None:
    slower = [100 - n for n in range(15)]
    found = compared(bench(row(MATMUL, noisy(1))), bench(row(MATMUL, slower)))
    text = f"B: 1 row drifted during the measurement (most: {MATMUL}, -10 %)"
    assert text in found.warnings


def altered(path: Sequence[str | int], value: Any) -> bytes:
    """A good file in which one value is another."""
    content = json.loads(msgspec.json.encode(bench(row(MATMUL, [1.0, 2.0]))))
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(content).encode()


# Values of the wrong kind, where a program would trust them.
WRONG: list[tuple[Sequence[str | int], Any]] = [
    (("bench_version",), "1"), (("bench_version",), True), (("bench_version",), -1),
    (("bench_version",), 0), (("bench_version",), [1]), (("rows",), {}), (("rows",), None),
    (("rows",), [[]]), (("rows",), [None]), (("rows", 0, "id"), 7), (("rows", 0, "id"), None),
    (("rows", 0, "unit"), "furlongs"), (("rows", 0, "samples"), "12"),
    (("rows", 0, "samples"), ["1"]), (("rows", 0, "samples"), [None]),
    (("rows", 0, "samples"), [[1.0]]), (("rows", 0, "samples"), [{}]),
    (("rows", 0, "samples"), [True]), (("rows", 0, "samples"), 1.0),
    (("rows", 0, "samples"), [10**400]), (("rows", 0, "samples"), [math.nan]),
    (("rows", 0, "samples"), [-math.inf]), (("rows", 0, "vendor"), "fast"),
    (("rows", 0, "conditions"), []), (("rows", 0, "conditions"), {"size": 1}),
    (("rows", 0, "is_higher_better"), "yes"), (("kind",), None), (("kind",), "<script>"),
    (("machine",), []), (("machine",), None), (("began",), "now"), (("began", "at"), 0),
    (("began", "clock_hz"), math.inf), (("began", "throttles"), "power"), (("settings",), [1]),
    (("settings",), {"device": None}), (("versions",), {"torch": 2.13}), (("warnings",), "none"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=str)
def test_value_of_a_wrong_kind(tmp_path: Path, path: Sequence[str | int], value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        read_files(written(tmp_path, altered(path, value)))
    assert caught.value.rule == "bench-file-unreadable" and caught.value.because


def test_every_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = msgspec.json.encode(bench(row("a", [1.0]), versions={"torch": "ä"}))
    path = tmp_path / "cut.json"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError) as caught:
            read_files([path])
        assert caught.value.rule == "bench-file-unreadable"


@settings(deadline=None, max_examples=200,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_file_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(msgspec.json.encode(bench(row(MATMUL, [1.0, 2.0]))))
    for place, byte in changes:
        content[place % len(content)] = byte
    try:
        files = read_files(written(tmp_path, bytes(content)))
        report.page(files, bench_compare.compare(files))
    except UsageError as error:
        assert error.because and error.fix


@pytest.mark.parametrize(
    ("content", "because"),
    [
        (b" " * (64 * 2**20), "it is larger than 16.0 MiB"),
        (b"[" * (17 * 2**20), "it is larger than 16.0 MiB"),
        (altered(("rows", 0, "samples"), [1] * 200_001),
         "200,001 samples; the limit is 200,000"),
    ],
    ids=["64 MiB of spaces", "brackets", "samples"],
)  # fmt: skip
def test_file_that_is_too_large(tmp_path: Path, content: bytes, because: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_files(written(tmp_path, content))
    assert (caught.value.rule, caught.value.because) == ("bench-file-too-large", because)


def test_many_samples_of_one_row_take_seconds(tmp_path: Path) -> None:
    files = [bench(row(MATMUL, noisy(seed, num=90_000))) for seed in (1, 2)]
    paths = written(tmp_path, *files)
    began_s = time.thread_time()
    found = read_files(paths)
    report.page(found, bench_compare.compare(found))
    assert time.thread_time() - began_s < 20


def test_deeply_nested_unknown_field(tmp_path: Path) -> None:
    for depth, is_read in ((50, True), (200_000, False)):
        content = msgspec.json.encode(bench(row(MATMUL, [1.0])))
        deep = b"[" * depth + b"]" * depth
        try:
            read_files(written(tmp_path, content[:-1] + b',"later":' + deep + b"}"))
        except UsageError as error:
            assert not is_read and error.rule == "bench-file-unreadable"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "bench-file-unreadable"),
        (b"null", "bench-file-unreadable"),
        (b"[]", "bench-file-unreadable"),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)), "bench-file-unreadable"),
        (b"\x1f\x8b\x08\x00" + bytes(100), "bench-file-unreadable"),
        (b"\xef\xbb\xbf{}", "bench-file-unreadable"),
        (b'{"bench_version": 1} {}', "bench-file-unreadable"),
        (b'{"bench_version": 99999999999999999999999999}', "bench-file-newer"),
        (b"\xff\xfe\x00", "bench-file-unreadable"),
        (b"[" * 100_000, "bench-file-unreadable"),
        (b'{"a":' * 50_000, "bench-file-unreadable"),
        (b'{"bench_version": 1, "rows": []}', "bench-file-unreadable"),
        (b'{"bench_version": NaN}', "bench-file-unreadable"),
        (b'{"bench_version": 1e999}', "bench-file-unreadable"),
        (b'{"bench_version": 99, "shape": "new"}', "bench-file-newer"),
        (msgspec.json.encode(bench(row(MATMUL, [1.0])))[:-20], "bench-file-unreadable"),
        (msgspec.json.encode(bench(row(MATMUL, [1.0]))).replace(b"1.0", b"1e999"),
         "bench-file-unreadable"),
        (msgspec.json.encode(bench(row(MATMUL, [1.0]))).replace(b'"limits"', b'"cards"'),
         "bench-file-unreadable"),
        (msgspec.json.encode(bench(row(MATMUL, [1.0]))).replace(b'"bench_version":1,', b""),
         "bench-file-unreadable"),
        (msgspec.json.encode(bench(*[row(f"{n}", [1.0]) for n in range(5001)])),
         "bench-file-too-large"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_files(written(tmp_path, content))
    assert caught.value.rule == rule and caught.value.because and caught.value.fix


def test_files_that_are_missing_or_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_files([tmp_path / "none.json"])
    assert caught.value.rule == "bench-file-not-found"
    with pytest.raises(UsageError) as caught:
        read_files([tmp_path])
    assert caught.value.rule == "bench-file-unreadable"
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UsageError):
            read_files([tmp_path / "pipe"])


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    content = msgspec.json.decode(msgspec.json.encode(bench(row(MATMUL, [1.0]))))
    content["later"] = {"deep": [1]}
    (file,) = read_files(written(tmp_path, json.dumps(content).encode()))
    assert file.file.rows[0].id == MATMUL


def test_impossible_numbers_cost_their_row_only(tmp_path: Path) -> None:
    rows = [row("a", [-1.0]), row("b", [1e300]), row("c", [0.0]), row("a", [5.0]), row("d", [5.0])]
    state = msgspec.structs.replace(STATE, clock_hz=-1e308, other_cpus=1e300)
    (file,) = read_files(written(tmp_path, bench(*rows, began=state)))
    assert [one.unread for one in file.file.rows] == [
        "-1 is not a measured value", "1e+300 is not a measured value",
        "a zero has no ratio to other values", None,
    ]  # fmt: skip
    assert len(file.problems) == 4 and file.problems[-1] == "1 more like these"
    assert file.file.began.clock_hz is None and file.file.began.other_cpus is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("machine", "cpu"), {"num_threads": 10**400}),
        (("machine", "cpu"), {"num_cores": 10**400, "num_threads": -(10**400)}),
        (("machine", "memory"), {"total_bytes": 10**400}),
        (("machine", "gpus"), [{"index": 0, "memory_bytes": 10**400}]),
    ],
    ids=str,
)
def test_numbers_of_a_machine_that_no_machine_has(
    tmp_path: Path, path: Sequence[str | int], value: Any
) -> None:
    """They can be written in JSON, but no float can hold them."""
    whole = json.loads(altered(path, value))
    whole["began"] = whole["ended"] = {"at": "now", "other_cpus": 1.5}
    other = {**whole, "machine": {**whole["machine"], "host": {"os": "windows"}}}
    found = read_files(written(tmp_path, *(json.dumps(one).encode() for one in (whole, other))))
    comparison = bench_compare.compare(found)
    assert report.page(found, comparison) and table_texts.markdown(comparison)
    show_bench_comparison.print_comparison(comparison, None)
    assert platforms.platforms_report(found).platforms == ("Windows", "unknown system")


def test_drift_to_nearly_nothing(tmp_path: Path) -> None:
    fading = [10.0 ** (28 - 5 * number) for number in range(11)]
    files = read_files(written(tmp_path, *(bench(row(MATMUL, fading)) for _ in range(2))))
    assert any("drifted" in text for text in bench_compare.compare(files).warnings)


def test_outlier_is_shown_among_many_samples() -> None:
    samples = [1.0] * 1000
    samples[501] = 9.0
    assert charts.sample_strip(samples, (1.0, 9.0), [9.0]).count('class="far"') == 1


def test_short_names_are_unique() -> None:
    names = short_names([Path("a/x.json"), Path("b/x.json"), Path("b/x.json")])
    assert names == ["a/x", "b/x", "b/x (2)"]


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(max_size=12)
ROWS = st.builds(
    BenchRow, id=st.sampled_from(["limits/matmul/a", "limits/memory/a", "run/a/step_s", "x", ""]),
    label=WORDS, unit=st.sampled_from(["flop/s", "B/s", "s", "B", "share", "J/sample", "loss"]),
    samples=st.lists(FLOATS, max_size=8).map(tuple), is_higher_better=st.booleans(),
    vendor=st.none() | FLOATS, conditions=st.dictionaries(WORDS, WORDS, max_size=2),
    unread=st.none() | WORDS,
)  # fmt: skip
STATES = st.builds(
    DeviceState, at=WORDS, clock_hz=st.none() | FLOATS, temperature_c=st.none() | FLOATS,
    power_limit_w=st.none() | FLOATS, other_cpus=st.none() | FLOATS,
)  # fmt: skip
FILES = st.builds(
    BenchFile, kind=st.sampled_from(["limits", "run"]), flatout=WORDS,
    machine=st.builds(Machine, cpu=st.builds(Cpu, name=WORDS, num_threads=st.integers(-2, 4))),
    settings=st.dictionaries(st.sampled_from(["num_processes", "device"]), WORDS | st.just("2")),
    began=STATES, ended=STATES, rows=st.lists(ROWS, max_size=5).map(tuple),
)  # fmt: skip


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow,
          HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.lists(FILES, min_size=1, max_size=3))
def test_whatever_a_file_contains_is_shown_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[BenchFile]
) -> None:
    try:
        found = read_files(written(tmp_path, *files))
        comparison = bench_compare.compare(found)
    except FlatoutError:
        return
    page = report.page(found, comparison)
    assert page.rstrip().endswith("</html>") and "nan%" not in page and "inf%" not in page
    table_texts.markdown(comparison)
    list(csv.reader(io.StringIO(table_texts.csv_text(comparison))))
    show_bench_comparison.print_comparison(comparison, None)
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=BenchComparison) == comparison
    capsys.readouterr()


class Tags(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def hostile() -> BenchFile:
    rows = [
        row(f"limits/{kind}/{ATTACK}", noisy(n), unit=unit, label=ATTACK, unread=None, vendor=200.0,
            vendor_source=ATTACK, conditions={ATTACK: f"{ATTACK}{n}"})
        for n, (kind, unit) in enumerate([("matmul", "flop/s"), ("memory", "B/s"), (ATTACK, "s")])
    ]  # fmt: skip
    state = DeviceState(at=ATTACK, throttles=(ATTACK,))
    return bench(
        *rows, flatout=ATTACK, machine=Machine(cpu=Cpu(name=ATTACK)), began=state, ended=state,
        versions={ATTACK: ATTACK}, settings={ATTACK: ATTACK}, warnings=(ATTACK,),
    )  # fmt: skip


def test_report_escapes_everything_and_loads_nothing() -> None:
    other = msgspec.structs.replace(hostile(), versions={ATTACK: "other" + ATTACK})
    files = [LoadedBench(name=ATTACK, path=ATTACK, file=hostile(), problems=(ATTACK,)),
             LoadedBench(name="B", path=ATTACK, file=other)]  # fmt: skip
    page = report.page(files, bench_compare.compare(files))
    found = Tags(page)
    assert not found.tags & {"script", "img", "link", "iframe", "object", "a"}
    assert not {name for name in found.attributes if name.startswith("on")}
    assert not found.attributes & {"src", "href", "style"}
    assert "svg" in found.tags and "url(" not in page and "http://" not in page


def test_report_has_all_parts(tmp_path: Path) -> None:
    rows = [
        row(MATMUL, noisy(1, 1e11), vendor=2e11),
        row("limits/memory/copy", noisy(2, 1e10), unit="B/s"),
    ]
    files = loaded(bench(*rows), bench(*rows, versions={"torch": "2"}))
    path = tmp_path / "r.html"
    report.write_report(path, files, bench_compare.compare(files))
    page = path.read_text(encoding="utf-8")
    for title in ("Machines", "B against A", "Where the differences are", "Roofline", "Samples",
                  "All values", "What differs", "Settings, versions and state"):  # fmt: skip
        assert f"<h2>{title}</h2>" in page
    assert page.count('class="roofline"') == 2 and 'class="vendor"' in page


def test_report_is_written_to_regular_files_only(tmp_path: Path) -> None:
    files = loaded(bench(row(MATMUL, [1.0])))
    for path in (tmp_path, tmp_path / "no" / "r.html", Path("/dev/null")):
        with pytest.raises(UsageError) as caught:
            report.write_report(path, files, bench_compare.compare(files))
        assert caught.value.rule == "bench-report-not-writable"


def test_csv_and_markdown_carry_no_formula_and_no_html() -> None:
    files = loaded(hostile(), hostile())
    comparison = bench_compare.compare(files)
    formula = msgspec.structs.replace(comparison.rows[0], label="=1+1")
    text = table_texts.csv_text(msgspec.structs.replace(comparison, rows=(formula,)))
    assert list(csv.DictReader(io.StringIO(text)))[0]["label"] == "'=1+1"
    assert "\n<" not in (found := table_texts.markdown(comparison)) and "|<" not in found
    assert "<script" not in found.replace("\\<script", "") and "\x1b" not in found


def test_hundreds_of_rows_take_seconds() -> None:
    rows = [row(f"limits/matmul/{n}", noisy(n % 7)) for n in range(400)]
    files = loaded(bench(*rows), bench(*rows))
    assert len(report.page(files, bench_compare.compare(files))) < 3_000_000


def test_command_when_asked_for_each_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = row(MATMUL, noisy(1), vendor=200.0, vendor_source="its maker")
    paths = written(tmp_path, bench(first), bench(row(MATMUL, noisy(2, 110))))
    names = [str(path) for path in paths]
    for option, sign in ((), "faster"), (("--md",), "| faster |"), (("--csv",), ",faster,"):
        command.main([*names, *option], standalone_mode=False)
        assert sign in capsys.readouterr().out
    command.main([*names, "--json", "--html", str(tmp_path / "r.html")], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["rows"][0]["id"] == MATMUL
    assert (tmp_path / "r.html").exists()
    command.main(names[:1], standalone_mode=False)
    assert "of vendor" in capsys.readouterr().out
