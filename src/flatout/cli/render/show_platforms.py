"""Output of `flatout bench platforms`."""

from __future__ import annotations

from rich.text import Text

from flatout.bench.table_texts import ratio_text
from flatout.cli.render import show, show_bench_comparison, wording
from flatout.cli.render.tables import plain_table
from flatout.schema.bench_platforms import PlatformPlan, PlatformsReport


def print_plan(plan: PlatformPlan) -> None:
    """The commands, each on a line of its own, so that it can be copied."""
    console = show.make_console()
    for one in plan.platforms:
        console.print(Text.assemble((one.platform, "bold"), f", in {one.where}"), soft_wrap=True)
        for command in one.commands:
            console.print(Text(f"    {command}"), soft_wrap=True)
        console.print()
    console.print(Text("Then, with all files in one folder", "bold"), soft_wrap=True)
    console.print(Text(f"    {plan.join}"), soft_wrap=True)
    console.print()
    show.print_lines(console, [("note", note) for note in plan.notes])


def print_report(report: PlatformsReport, html: str | None) -> None:
    """What differs by platform, then the whole comparison."""
    console = show.make_console()
    lines = [("doubt", text) for text in report.doubts]
    if report.missing:
        lines.append(("missing", f"{', '.join(report.missing)}: `flatout bench platforms` prints"
                      " what to run there"))  # fmt: skip
    if lines:
        show.print_lines(console, lines)
        console.print()
    table = plain_table("platform", "what", "against", "ratio")
    for part in report.parts:
        table.add_row(part.platform, part.what, part.against, ratio_text(part.ratio))
    console.print(table)
    console.print(Text("above 1 is better: more per second, or less time", "dim"), soft_wrap=True)
    console.print()
    names = " ".join(wording.near_text(path) for path in report.files)
    show_bench_comparison.print_comparison(
        report.comparison, html, f"flatout bench platforms {names}"
    )
