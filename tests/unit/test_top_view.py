"""What `flatout top` shows, from frames alone."""

from __future__ import annotations

import csv
import io

import pytest

from flatout.cli.render.top_text import CSV_COLUMNS, csv_rows, print_csv
from flatout.monitor.text_table import sparkline
from flatout.monitor.top_view import (
    SORT_KEYS,
    TopView,
    ViewRequest,
    adjusted,
    keys_line,
    sorted_processes,
    top_view,
)
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.top_frame import RunningRun, TopFrame, TopProcess
from flatout.system.demo_frame import demo_frame
from flatout.system.demo_samples import demo_sample

DEMO = demo_frame(demo_sample(1_000_000.0))


def text_of(view: TopView) -> str:
    return "\n".join("".join(text for text, _ in spans) for spans in view.lines)


def styles_of(view: TopView, word: str) -> set[str]:
    return {style for spans in view.lines for text, style in spans if word in text}


def frame(*gpus: GpuSample, reason: str | None = None, host: HostSample | None = None) -> TopFrame:
    machine = MachineSample(
        at=1.0,
        host=host or HostSample(),
        gpus=gpus,
        source="nvml" if gpus else "none",
        reason=reason,
    )
    return TopFrame(machine=machine)


@pytest.mark.parametrize("width", [1, 5, 20, 40, 80, 120, 200])
@pytest.mark.parametrize("shown", [DEMO, frame(), frame(GpuSample(index=0), reason="old")])
def test_no_line_is_longer_than_the_width(width: int, shown: TopFrame) -> None:
    view = top_view([shown], ViewRequest(width=width, search="x" if width == 5 else ""))
    # Below eight columns, reasons are not cut into letters.
    longest = max(len(line) for line in text_of(view).splitlines())
    assert longest <= max(width, 8)
    assert len(keys_line(ViewRequest(), width, is_paused=False)) <= width


def test_80_columns_show_what_matters_most() -> None:
    text = text_of(top_view([DEMO], ViewRequest(width=80)))
    for word in ("RTX 3070", "busy", "memory", "temp", "power", "state", "clock", "resnet50-0007",
                 "images/s", "of limit", "left", "4190001"):  # fmt: skip
        assert word in text
    assert "PCIe" not in text
    assert "PCIe in" in text_of(top_view([DEMO], ViewRequest(width=200)))


def test_unknown_is_a_dash_with_its_reason_never_0() -> None:
    gpu = GpuSample(index=0, unread={"utilization": "NVML: GPU is lost", "power_w": "NVML: other"})
    text = text_of(top_view([frame(gpu)], ViewRequest(width=200)))
    row = next(line for line in text.splitlines() if line.startswith("0 "))
    assert "0 %" not in row and "-¹" in row
    assert "¹ NVML: GPU is lost" in text and "NVML: other" in text
    # The same reason has the same number.
    twice = GpuSample(index=0, unread=dict.fromkeys(("utilization", "power_w"), "same"))
    assert text_of(top_view([frame(twice)], ViewRequest(width=200))).count("same") == 1


def test_platform_that_lists_no_processes_says_why() -> None:
    gpu = GpuSample(index=1, unread={"processes": "NVML: Not Supported"})
    text = text_of(top_view([frame(gpu)], ViewRequest(width=80)))
    assert "processes of GPU 1 are not listed: NVML: Not Supported" in text


def test_machine_without_gpus_says_why() -> None:
    text = text_of(top_view([frame(reason="no NVIDIA driver is installed")], ViewRequest()))
    assert "no GPU: no NVIDIA driver is installed" in text


def test_gpu_that_has_vanished_stays_as_gone_with_its_history() -> None:
    both = frame(GpuSample(index=0, uuid="a", utilization=1.0),
                 GpuSample(index=1, uuid="b", utilization=0.5))  # fmt: skip
    one = frame(GpuSample(index=0, uuid="a", utilization=1.0))
    view = top_view([both, both, one], ViewRequest(width=100))
    assert styles_of(view, "gone") == {"wrong"}
    assert "▅▅ " in text_of(view)
    assert "no longer reported" in text_of(view)


@pytest.mark.parametrize(
    ("gpu", "text", "style"),
    [
        (GpuSample(index=0, throttle_reasons=()), "ok", "good"),
        (GpuSample(index=0, throttle_reasons=("idle",)), "idle", "dim"),
        (GpuSample(index=0, throttle_reasons=("power-cap",)), "power cap", "attention"),
        (GpuSample(index=0, throttle_reasons=("thermal-slowdown",), xid=79), "Xid 79", "wrong"),
        (GpuSample(index=0, ecc_uncorrected=2), "ECC 2", "wrong"),
    ],
)
def test_state_of_a_gpu(gpu: GpuSample, text: str, style: str) -> None:
    assert styles_of(top_view([frame(gpu)], ViewRequest()), text) == {style}


PROCESSES = (
    TopProcess(pid=3, name="b", gpu_bytes=5, utilization=0.1, memory_bytes=7),
    TopProcess(pid=1, name="C", gpu_bytes=None, utilization=2.0, memory_bytes=None),
    TopProcess(pid=2, name="a", gpu_bytes=9, utilization=None, memory_bytes=8, run="digits-0001"),
)


@pytest.mark.parametrize(
    ("sort", "order", "reverse"),
    [
        ("gpu memory", [2, 3, 1], [3, 2, 1]),
        ("cpu", [1, 3, 2], [3, 1, 2]),
        ("memory", [2, 3, 1], [3, 2, 1]),
        ("name", [2, 3, 1], [1, 3, 2]),
        ("pid", [1, 2, 3], [3, 2, 1]),
    ],
)
def test_processes_are_sorted_with_unknown_last(
    sort: str, order: list[int], reverse: list[int]
) -> None:
    assert sort in SORT_KEYS
    for is_reversed, expected in ((False, order), (True, reverse)):
        request = ViewRequest(sort=sort, is_reversed=is_reversed)
        assert [one.pid for one in sorted_processes(PROCESSES, request)] == expected


def test_search_finds_processes_and_runs_by_any_of_their_words() -> None:
    found = sorted_processes(PROCESSES, ViewRequest(search="DIGITS"))
    assert [one.pid for one in found] == [2]
    text = text_of(top_view([DEMO], ViewRequest(search="charlm")))
    assert "charlm-0002" in text and "resnet50-0007" not in text and "only `charlm`" in text


def test_chosen_process_is_marked_where_it_is_now() -> None:
    view = top_view([DEMO], ViewRequest(selected=4_190_003, sort="cpu"))
    assert view.selected_line is not None
    assert "4190003" in "".join(text for text, _ in view.lines[view.selected_line])
    assert styles_of(view, "4190003") == {"selected"}
    assert top_view([DEMO], ViewRequest(selected=7)).selected_line is None


def test_requests_change_by_key() -> None:
    request = ViewRequest(search="a", selected=3, is_reversed=True)
    assert adjusted(request, "sort").sort == SORT_KEYS[1]
    assert adjusted(adjusted(request, "reverse"), "reverse") == request
    cleared = adjusted(request, "clear")
    assert (cleared.search, cleared.selected) == ("", None)
    last = ViewRequest(sort=SORT_KEYS[-1])
    assert adjusted(last, "sort").sort == SORT_KEYS[0]


def test_run_that_cannot_be_read_says_so() -> None:
    run = RunningRun(id="a-0001", folder="/a", unread={"step": "Permission denied"})
    shown = TopFrame(machine=frame().machine, runs=(run,))
    text = text_of(top_view([shown], ViewRequest()))
    assert "Permission denied" in text


def test_sparkline_of_unknown_values_has_gaps() -> None:
    assert sparkline([0.0, None, 0.5, 1.0, 2.0]) == "▁ ▅██"
    assert sparkline([]) == ""


def test_csv_has_a_row_for_each_gpu_and_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(DEMO.machine, has_header=True)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["device"] for row in rows] == ["gpu0", "gpu1", "host"]
    assert tuple(rows[0]) == CSV_COLUMNS
    assert rows[0]["used_bytes"] == str(DEMO.machine.gpus[0].used_bytes)
    # Unknown is empty, none is a word.
    assert rows[1]["fan"] == "" and rows[2]["power_w"] == ""
    silent = GpuSample(index=0, throttle_reasons=())
    assert csv_rows(frame(silent).machine)[0]["throttle_reasons"] == "none"
