"""The report of `flatout profile` for people: 80 columns, a page, and JSON."""

from __future__ import annotations

import msgspec
import pytest
from support.step_profiles import MS, line, probe, report

from flatout.cli.render.show_profile import (
    View,
    advice_lines,
    cut,
    line_lines,
    memory_lines,
    print_profile,
    processor_lines,
    sorted_rows,
    split_lines,
    table_lines,
)
from flatout.monitor.advice import advice_for
from flatout.runs.profile_page import page
from flatout.schema.step_profile import (
    Held,
    MemoryUse,
    OperatorTime,
    ProcessorCounts,
    StepProfile,
)
from flatout.schema.tuning import Interval

LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def row(name: str, calls: float, self_ms: float, total_ms: float, **others: object) -> OperatorTime:
    return OperatorTime(
        name=name,
        calls=calls,
        self_s=self_ms * MS,
        total_s=total_ms * MS,
        **others,  # type: ignore[arg-type]
    )


def whole() -> StepProfile:
    made = report(
        operators=(
            row("aten::addmm", 3, 6, 6.5, shapes="64x784 784x256 and many more of these 1x2x3x4x5"),
            row("aten::linear", 30, 0.5, 9),
            row(LONG, 12_345, 0.1, 0.1),
        ),
        layers=(row("body.0.a_layer_with_a_name_that_is_much_longer_than_a_terminal", 1, 3, 4),),
        lines=(line("x = inputs.clone().to(torch.float64) and much more that is cut off", 3, 41),),
        memory=MemoryUse(
            peak_bytes=4096,
            at_peak=(Held(name="weights", num_bytes=4000), Held(name="loss", num_bytes=96)),
            timeline=((0.0, 1024), (0.005, 4096), (0.01, 2048)),
        ),
        probes=(probe("slow-layout", 0.5, changes={"memory_format": "channels_last"}),),
    )
    return msgspec.structs.replace(made, advice=advice_for(made))


def test_table_fits_80_columns_and_shows_the_chosen_rows() -> None:
    made = whole()
    for by in ("operator", "layer", "line"):
        for shown in table_lines(made, View(by=by, top=2), 80):
            assert len(str(shown)) <= 80
    shown = [str(one) for one in table_lines(made, View(top=2), 80)]
    assert "aten::addmm" in shown[1]
    assert "60.0 %" in shown[1]
    assert "1 more: --top 3" in shown[-1]


def test_table_has_the_order_that_was_chosen() -> None:
    made = whole()
    assert sorted_rows(made, View(sort="self"))[0].name == "aten::addmm"
    assert sorted_rows(made, View(sort="total"))[0].name == "aten::linear"
    assert sorted_rows(made, View(sort="calls"))[0].name == LONG


def test_table_is_sorted_by_the_gpus_time_where_there_is_one() -> None:
    rows = (row("a", 1, 9, 9, device_s=1 * MS), row("b", 1, 1, 1, device_s=5 * MS))
    made = report(operators=rows)
    assert [one.name for one in sorted_rows(made, View())] == ["b", "a"]
    assert "GPU self" in str(next(iter(table_lines(made, View(), 80))))


def test_split_is_bars_of_at_most_80_columns() -> None:
    shown = list(split_lines(whole()))
    assert all(len(one) <= 80 for one in shown)
    assert "matrix products" in shown[0]
    assert "80.0 %" in shown[0]


def test_lines_and_memory_fit_80_columns() -> None:
    made = whole()
    shown = [str(one) for one in line_lines(made.lines, made, 80)]
    assert all(len(one) <= 80 for one in shown)
    assert "train.py:41" in shown[0]
    memory = list(memory_lines(made))
    assert all(len(one) <= 80 for one in memory)
    assert "98 %" in memory[2]


def test_memory_during_a_step_is_a_curve_of_what_is_held_at_most() -> None:
    curve = list(memory_lines(whole()))[1].strip()
    assert len(curve) == 60
    assert curve.startswith("▃" * 28)
    assert curve.endswith("█" * 30)


def test_kernels_of_a_gpu_have_a_table_and_a_cpu_says_why_it_has_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kernels = tuple(row(f"kernel_{ms}", 1, 0, 0, device_s=ms * MS) for ms in range(1, 8))
    made = report(kernels=kernels)
    shown = [str(one) for one in table_lines(made, View(by="kernel", top=2), 80)]
    assert all(len(one) <= 80 for one in shown)
    assert "GPU time" in shown[0] and "CPU" not in shown[0]
    assert "kernel_7" in shown[1] and "5 more" in shown[-1]
    print_profile(made, View())
    printed = capsys.readouterr().out
    assert "kernels, by time on the GPU" in printed
    assert "kernel_3" in printed and "kernel_2" not in printed and "5 more" not in printed
    [reason] = table_lines(report(), View(by="kernel"), 80)
    assert "its own kernel" in str(reason)


def test_what_the_processor_counts_is_shown_as_far_as_it_is_known() -> None:
    counts = ProcessorCounts(cycles=2e7, instructions=3e7, cache_misses=2**20, page_faults=12.4)
    [(title, text)] = processor_lines(counts, report())
    assert title == "processor"
    assert "1.50 instructions per cycle" in text
    # A line of the cache for each miss, in 10 ms.
    assert "1,048,576 cache misses" in text
    assert "12 page faults" in text
    assert list(processor_lines(ProcessorCounts(reasons={"cycles": "no"}), report())) == []


def test_long_name_of_a_file_leaves_the_number_of_the_line() -> None:
    made = whole()
    long = msgspec.structs.replace(
        made.lines[0], file="the_experiment_of_last_winter.py", line=1234
    )
    [shown] = [str(one) for one in line_lines([long], made, 80)]
    assert shown.startswith("  the_experiment_of_last…:1234  ")
    assert len(shown) <= 80


def test_unknown_memory_has_its_reason() -> None:
    [shown] = memory_lines(report(memory=MemoryUse(reason="no allocations")))
    assert shown == "  unknown: no allocations"


def test_advice_says_what_was_predicted_and_measured() -> None:
    advice = next(one for one in whole().advice if one.id == "slow-layout")
    advice = msgspec.structs.replace(advice, measured=Interval(middle=1.5, low=1.4, high=1.6))
    shown = dict(advice_lines(1, advice))
    assert shown["  do"] == "--use memory_format=channels_last"
    assert shown["  predicted"].startswith("x1.82 [")
    assert shown["  measured"].startswith("x1.50 [1.40, 1.60]")
    assert shown["  see"] == "flatout explain slow-layout"
    assert shown["  see"] in page(report(advice=(advice,)))


@pytest.mark.parametrize(("high", "is_said"), [(0.62, True), (1.02, False)])
def test_advice_that_made_steps_slower_is_not_recommended(high: float, is_said: bool) -> None:
    advice = next(one for one in whole().advice if one.id == "slow-layout")
    measured = Interval(middle=0.57, low=0.52, high=high)
    advice = msgspec.structs.replace(advice, measured=measured)
    assert ("slower: do not use it" in dict(advice_lines(1, advice))["  measured"]) is is_said
    assert ("slower: do not use it" in page(report(advice=(advice,)))) is is_said


def test_cut_keeps_what_fits() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"


def test_page_loads_nothing_and_escapes_what_an_experiment_says() -> None:
    made = msgspec.structs.replace(whole(), subject="<script>alert(1)</script>")
    text = page(made)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text
    for part in ("matrix products", "aten::addmm", "train.py:41", "channels_last", "polyline"):
        assert part in text


def test_report_is_the_same_after_json() -> None:
    made = whole()
    assert msgspec.json.decode(msgspec.json.encode(made), type=StepProfile) == made


@pytest.mark.parametrize(("reason", "is_open"), [(None, True), ("it is slower here", False)])
def test_prove_is_offered_only_for_what_was_not_tried(
    capsys: pytest.CaptureFixture[str], reason: str | None, is_open: bool
) -> None:
    made = whole()
    advice = tuple(msgspec.structs.replace(one, not_proved=reason) for one in advice_for(made))
    print_profile(msgspec.structs.replace(made, advice=advice), View())
    assert ("add --prove" in capsys.readouterr().out) is is_open
