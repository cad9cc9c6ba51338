"""Output of `flatout bench cards`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from flatout.cli.render import show, wording
from flatout.cli.render.show_bench import interval_text
from flatout.cli.render.tables import plain_table
from flatout.schema.bench_cards import CardPrediction, CardsReport
from flatout.schema.units import bytes_text, percent_text, quantity_text, seconds_text


def print_cards(report: CardsReport) -> None:
    """The measured step, cards, instances, and what the numbers rest on."""
    console = show.make_console()
    show.print_lines(console, _head(report))
    console.print()
    lines = [("how", report.how)]
    if any(row.throughput is not None for row in report.cards):
        _print_table(report, report.cards, "card")
        console.print()
        _print_table(report, report.instances, "instance")
        console.print()
    else:
        # What the peaks allow are billions of samples, which no card reaches.
        lines.insert(0, ("predicted", "nothing: see the notes (--json has what the peaks allow)"))
    if report.parts is not None:
        lines.append(("interval", f"x{report.error:.2f} to both sides: 9 of 10 predictions of"
                      " published figures were no further off"))  # fmt: skip
    lines += [("note", note) for note in report.notes]
    if report.prices_from is not None:
        lines.append(("prices", report.prices_from))
    show.print_lines(console, lines)


def _head(report: CardsReport) -> list[tuple[str, str]]:
    step = report.measured
    rate = quantity_text(step.per_step / step.step_s, step.unit)
    where = step.card or ("this CPU" if step.device == "cpu" else "a GPU")
    measured = [f"{step.way} loop" if step.way == "plain" else step.way, where, step.dtype, rate]
    size = [step.size] if step.size else []
    size += [f"batch {step.batch_size:,.0f}"] if step.batch_size else []
    lines = [
        ("workload", wording.DOT.join([step.workload, *size])),
        ("measured", wording.DOT.join([*measured, f"{seconds_text(step.step_s)} a step"])),
    ]
    if report.parts is not None:
        shares = (
            ("FLOPs at the peak", report.parts.compute), ("the rest", report.parts.memory),
            ("host busy meanwhile", report.parts.host),
        )  # fmt: skip
        lines.append(("step", wording.DOT.join(
            f"{name} {percent_text(part / step.step_s, 0)}" for name, part in shares
        )))  # fmt: skip
    if report.dtype != step.dtype:
        lines.append(("predicted", f"in {report.dtype}"))
    return lines


def _print_table(report: CardsReport, rows: Sequence[CardPrediction], first: str) -> None:
    unit = report.measured.unit
    has_prices = any(row.price_per_hour is not None for row in rows)
    has_several = any(row.num_devices > 1 for row in rows)
    is_card = first == "card"
    heads = [first, *(["GPUs"] if has_several else []), unit, "interval"]
    # Instances have longer names, and the same cards: two columns fewer, for 80 characters.
    heads += ["vs measured", "fits", "limit"] if is_card else ["fits"]
    prices = ["per hour", f"{unit.partition('/')[0]}/price"] if has_prices else []
    table = plain_table(*heads, *prices)
    for row in rows:
        cells: list[str | Text] = [row.instance or row.short]
        if has_several:
            num = str(row.num_devices)
            cells.append(f"{num} x {row.short}" if row.instance else num)
        cells += _throughput(row, unit)
        if is_card:
            cells += [_ratio(row.ratio), _fit(row), f"{row.watts:,.0f} W"]
        else:
            cells.append(_fit(row))
        table.add_row(*cells, *(_price(row) if has_prices else []))
    show.make_console().print(table)


def _throughput(row: CardPrediction, unit: str) -> list[str | Text]:
    if row.throughput is not None:
        middle = quantity_text(row.throughput.middle, unit).removesuffix(f" {unit}")
        return [middle, interval_text(row.throughput, unit)]
    if row.at_most is not None:
        most = quantity_text(row.at_most, unit).removesuffix(f" {unit}")
        return [f"< {most}", Text("launches decide", "dim")]
    return ["", Text(row.unread or "", "dim")]


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"x{ratio:.3g}" if ratio < 100 else f"x{ratio:,.0f}"


def _fit(row: CardPrediction) -> Text | str:
    if row.does_fit is None:
        return "?"
    word = "yes" if row.does_fit else "no"
    text = word if row.instance else f"{word}, {bytes_text(row.memory_bytes)}"
    return Text(text, "" if row.does_fit else "red")


def _price(row: CardPrediction) -> list[str]:
    if row.price_per_hour is None:
        return ["", ""]
    per = "" if row.per_price is None else f"{row.per_price.middle:,.0f}"
    return [f"{row.price_per_hour:,.2f}", per]
