"""Output of `flatout profile`: the split as bars, the table, lines, memory, limits, advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.text import Text

from flatout.bench.table_texts import ratio_text
from flatout.cli.render import show, wording
from flatout.monitor.text_table import sparkline
from flatout.schema.step_profile import (
    PART_NAMES,
    Advice,
    LineTime,
    MemoryUse,
    OperatorTime,
    ProcessorCounts,
    RoofUse,
    StepProfile,
)
from flatout.schema.suggested_command import typed_value
from flatout.schema.units import (
    bytes_text,
    counted_text,
    percent_text,
    quantity_text,
    rate_text,
    seconds_text,
)

By = Literal["operator", "layer", "kernel", "line"]
Sort = Literal["self", "total", "calls"]

_BAR_WIDTH = 36
_NARROWEST, _WIDEST = 60, 110
_LEAST_SHOWN = 0.0005
_NUMBER_WIDTH = 9
_NUM_KERNELS, _NUM_LINES = 5, 5
_CURVE_WIDTH = 60
_NO_KERNELS = "on a CPU, an operator is its own kernel"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a report. top: rows of each table."""

    by: By = "operator"
    sort: Sort = "self"
    top: int = 10


def print_profile(
    report: StepProfile, view: View, files: Sequence[str] = (), *, is_error: bool = False
) -> None:
    """Everything about a step; files: that were written, in words. is_error: on stderr."""
    console = show.make_console(is_error=is_error)
    width = max(_NARROWEST, min(console.width, _WIDEST))
    show.print_lines(console, list(_head(report)))
    sections: list[tuple[str, Sequence[Text | str]]] = [
        ("where a step's time goes", list(split_lines(report))),
        (_table_title(report, view), list(table_lines(report, view, width))),
    ]
    if view.by != "kernel" and report.kernels:
        few = msgspec.structs.replace(view, by="kernel", top=_NUM_KERNELS)
        rows = list(table_lines(report, few, width))[: 1 + _NUM_KERNELS]
        sections.append((_table_title(report, few), rows))
    if view.by != "line":
        of_code = list(line_lines(report.lines[:_NUM_LINES], report, width))
        sections.append(("lines of Python", of_code))
    sections.append(("memory", list(memory_lines(report))))
    for title, lines in sections:
        if lines:
            console.print()
            console.print(Text(title, "bold"))
            for line in lines:
                console.print(line, soft_wrap=True)
    console.print()
    limits = [*_roofs(report.roofs, report), *processor_lines(report.processor, report)]
    show.print_lines(console, limits)
    _print_advice(report, console)
    show.print_lines(console, [("written", file) for file in files])


def _head(report: StepProfile) -> Iterator[tuple[str, str]]:
    device = report.device_name or report.device
    about = [report.subject, device, f"torch {report.torch}"]
    yield "profile", wording.DOT.join(about)
    ends = sorted(report.step_s)
    cut = len(ends) // 20
    spread = f"[{seconds_text(ends[cut])}, {seconds_text(ends[-1 - cut])}]"
    step = [f"{seconds_text(report.mean_step_s)} {spread}"]
    if report.samples_per_s is not None:
        step.append(rate_text(report.samples_per_s, report.unit))
    if report.samples_per_step is not None:
        step.append(f"{report.samples_per_step:.4g} {report.unit} a step")
    yield "step", wording.DOT.join(step)
    if report.tuned:
        fields = " ".join(f"{name}={typed_value(value)}" for name, value in report.tuned.items())
        yield "recipe", f"found by a search: {fields}"
    if report.not_tuned is not None:
        yield "" if report.tuned else "recipe", report.not_tuned
    measured = [
        f"{counted_text(len(report.step_s), 'step')} without a profiler",
        f"{report.num_profiled:,} with it, which took x{report.overhead:.2f}",
    ]
    yield "measured", wording.DOT.join(measured)
    if report.load is not None and report.load.is_busy:
        yield "warning", f"other programs kept {report.load.text} busy: times are too long"
    for finding in report.warnings:
        yield "warning", finding.problem


def split_lines(report: StepProfile) -> Iterator[str]:
    """A bar for each part that takes time."""
    whole_s = report.mean_step_s
    for one in report.split:
        if one.seconds is None or one.seconds < _LEAST_SHOWN * whole_s:
            continue
        share = one.seconds / whole_s
        bar = "━" * max(1, round(share * _BAR_WIDTH))
        yield (
            f"  {PART_NAMES[one.part]:<18}{bar:<{_BAR_WIDTH}} {percent_text(share):>7}"
            f" {seconds_text(one.seconds):>8}"
        )


def _table_title(report: StepProfile, view: View) -> str:
    if view.by == "line":
        return "lines of Python"
    if view.by == "kernel":
        return f"kernels, by {'calls' if view.sort == 'calls' else 'time on the GPU'}"
    by = "self time" if view.sort == "self" else view.sort
    return f"{view.by}s, by {by}" + (" on the GPU" if _has_device(report, view) else "")


def _has_device(report: StepProfile, view: View) -> bool:
    return view.sort != "calls" and any(row.device_s is not None for row in report.operators)


def sorted_rows(report: StepProfile, view: View) -> list[OperatorTime]:
    """The rows of the table, all of them, in its order."""
    tables = {"layer": report.layers, "kernel": report.kernels}
    rows = tables.get(view.by, report.operators)

    def key(row: OperatorTime) -> float:
        if view.sort == "calls":
            return row.calls
        if row.device_s is not None:
            return row.device_s if view.sort == "self" else row.device_total_s or 0.0
        return row.self_s if view.sort == "self" else row.total_s

    return sorted(rows, key=key, reverse=True)


def table_lines(report: StepProfile, view: View, width: int) -> Iterator[Text | str]:
    """The table of operators, layers or lines."""
    if view.by == "line":
        yield from line_lines(report.lines[: view.top], report, width)
        return
    rows = sorted_rows(report, view)
    if not rows:
        is_of_cpu = view.by == "kernel" and report.traits.device == "cpu"
        reason = _NO_KERNELS if is_of_cpu else "none were recorded"
        yield f"  {report.unread.get(f'{view.by}s', reason)}"
        return
    has_device = any(row.device_s is not None for row in rows)
    columns = ["calls", "CPU self", "CPU total", *(["GPU self"] if has_device else []), "share"]
    if view.by == "kernel":
        columns = ["calls", "GPU time", "share"]
    room = width - 2 - (_NUMBER_WIDTH + 1) * len(columns)
    header = "".join(f" {name:>{_NUMBER_WIDTH}}" for name in columns)
    yield Text(f"  {'':<{room}}{header}", "dim")
    for row in rows[: view.top]:
        yield _row(row, report, room, columns)
    if len(rows) > view.top:
        yield Text(f"  {len(rows) - view.top:,} more: --top {len(rows)}, or --json", "dim")


def _row(row: OperatorTime, report: StepProfile, room: int, columns: Sequence[str]) -> Text:
    own_s = row.self_s if row.device_s is None else row.device_s
    device = seconds_text(row.device_s or 0.0)
    texts = {
        "calls": f"{row.calls:,.4g}", "CPU self": seconds_text(row.self_s),
        "CPU total": seconds_text(row.total_s), "GPU self": device, "GPU time": device,
        "share": percent_text(own_s / report.mean_step_s),
    }  # fmt: skip
    shown = "".join(f" {texts[name]:>{_NUMBER_WIDTH}}" for name in columns)
    name = cut(row.name, room)
    shapes = cut(f"  {row.shapes}", room - len(name)) if row.shapes else ""
    return Text.assemble("  ", name, (shapes, "dim"), " " * (room - len(name + shapes)), shown)


def cut(text: str, width: int) -> str:
    """A text that fits, its end left out if need be."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "…" if width > 3 else ""


def line_lines(lines: Sequence[LineTime], report: StepProfile, width: int) -> Iterator[Text]:
    """Lines of the user's code, with their time in a step."""
    if not lines:
        return
    names = [Path(line.file).name for line in lines]
    places = [
        f"{cut(name, 27 - len(str(line.line)))}:{line.line}"
        for name, line in zip(names, lines, strict=True)
    ]
    place_width = max(map(len, places))
    room = width - place_width - 2 - 2 - 2 * (_NUMBER_WIDTH + 1)
    for line, place in zip(lines, places, strict=True):
        text = cut(line.text, room)
        share = percent_text(line.seconds / report.mean_step_s)
        yield Text.assemble(
            f"  {place:<{place_width}}  ",
            (f"{text:<{room}}", "dim"),
            f" {seconds_text(line.seconds):>{_NUMBER_WIDTH}} {share:>{_NUMBER_WIDTH}}",
        )


def memory_lines(report: StepProfile) -> Iterator[str]:
    """The peak, memory during a step, and what holds it at the peak."""
    use = report.memory
    if use.peak_bytes is None:
        if use.reason is not None:
            yield f"  unknown: {use.reason}"
        return
    held = "" if use.process_bytes is None else f"; {bytes_text(use.process_bytes)} by the process"
    yield f"  {bytes_text(use.peak_bytes)} of tensors at the peak of a step{held}"
    if use.timeline and use.peak_bytes:
        yield f"  {_memory_curve(use, use.peak_bytes)}"
    for one in use.at_peak[:6]:
        share = percent_text(one.num_bytes / use.peak_bytes, 0)
        yield f"  {cut(one.name, 44):<46}{bytes_text(one.num_bytes):>12} {share:>8}"


def _memory_curve(use: MemoryUse, peak_bytes: int) -> str:
    """The timeline as bars, each as high as the most in its part of the step."""
    # What is held at the first allocation was held before.
    rest, held = list(reversed(use.timeline)), use.timeline[0][1]
    end_s, heights = use.timeline[-1][0], list[float]()
    for number in range(1, _CURVE_WIDTH + 1):
        most = held
        while rest and (number == _CURVE_WIDTH or rest[-1][0] <= end_s * number / _CURVE_WIDTH):
            held = rest.pop()[1]
            most = max(most, held)
        heights.append(most)
    return sparkline(heights, peak_bytes)


def _roofs(use: RoofUse, report: StepProfile) -> Iterator[tuple[str, str]]:
    if use.flops is not None:
        text = [f"{quantity_text(use.flops, 'flop/s').removesuffix('/s')} a step"]
        if use.flop_share is not None:
            text.append(f"{percent_text(use.flop_share, 0)} of {use.dtype} while products run")
        if use.step_flop_share is not None:
            text.append(f"{percent_text(use.step_flop_share, 0)} over the whole step")
        yield "FLOP", wording.DOT.join(text)
    elif "flops" in use.reasons:
        yield "FLOP", f"unknown: {use.reasons['flops']}"
    if use.num_bytes is not None and use.byte_share is not None:
        share = percent_text(use.byte_share, 0)
        moved = bytes_text(use.num_bytes)
        yield "bytes", f"{moved} by memory-bound operators{wording.DOT}{share} of this memory"
    reason = use.reasons.get("flop_limit")
    if reason is not None:
        yield "limits", reason
    elif use.is_limit_doubtful:
        yield "limits", "were measured while other programs ran: flatout bench limits --again"


def processor_lines(counts: ProcessorCounts, report: StepProfile) -> Iterator[tuple[str, str]]:
    """What the processor has counted in a step, as far as that can be read."""
    text = []
    if counts.instructions_per_cycle is not None:
        text.append(f"{counts.instructions_per_cycle:.2f} instructions per cycle")
    if counts.cache_misses is not None:
        text.append(counted_text(round(counts.cache_misses), "cache miss", "cache misses"))
    if counts.page_faults is not None:
        text.append(counted_text(round(counts.page_faults), "page fault"))
    if text:
        yield "processor", wording.DOT.join(text)


def _print_advice(report: StepProfile, console: Console) -> None:
    console.print()
    if not report.advice:
        show.print_lines(console, [("advice", "nothing stands out that a change would speed up")])
        return
    for number, advice in enumerate(report.advice, 1):
        show.print_lines(console, list(advice_lines(number, advice)))
    is_open = any(
        one.changes and one.measured is None and one.not_proved is None for one in report.advice
    )
    if is_open:
        show.print_lines(console, [("next", "measure what this brings: add --prove")])


def advice_lines(number: int, advice: Advice) -> Iterator[tuple[str, str]]:
    """One change: what is wrong, what to do, what it brings."""
    yield f"advice {number}", advice.problem
    yield "  because", advice.because
    yield "  do", advice.fix
    for line in advice.lines:
        yield "  line", f"{Path(line.file).name}:{line.line}  {line.text}"
    yield "  predicted", f"{ratio_text(advice.speedup)}, {advice.basis}"
    if advice.measured is not None:
        verdict = f"; {advice.verdict}" if advice.verdict else ""
        measured = f"{ratio_text(advice.measured)}, in pairs of fresh processes{verdict}"
        yield "  measured", measured
    elif advice.not_proved is not None:
        yield "  not proved", advice.not_proved
    if advice.changes_result is not None:
        yield "  changes", advice.changes_result
    yield "  see", advice.see
