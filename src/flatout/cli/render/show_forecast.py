"""A forecast as a table: this machine next to many workers."""

from __future__ import annotations

from flatout.cli.render import show
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT
from flatout.cluster.model.scaling_model import Forecast, Forecasts
from flatout.schema.units import (
    bytes_text,
    count_text,
    energy_text,
    percent_text,
    rate_text,
    seconds_text,
)

_NOT_KNOWN = "-"


def print_forecasts(forecasts: Forecasts) -> None:
    """Prints the measured steps, a row for each number of workers, and the unknowns."""
    console = show.make_console()
    measured = forecasts.measured
    whose = "shared by all" if forecasts.scaling == "strong" else "for each worker"
    samples = f"{measured.samples:,.0f} {forecasts.unit}"
    show.print_lines(console, [
        ("measured", f"{forecasts.run}{DOT}{seconds_text(measured.step_s)} per step of {samples}"),
        ("batch", f"{samples}, {whose}"),
        ("link", f"{forecasts.link.bits_per_s / 1e9:g} Gbit/s{DOT}"
         f"{seconds_text(forecasts.link.latency_s)} per message{DOT}"
         f"{bytes_text(measured.gradient_bytes)} of gradients"),
        *([("power", _power_text(forecasts))] if forecasts.rates.power_w is not None else []),
    ])  # fmt: skip
    console.print()
    table = plain_table(
        "workers", "step", "throughput", "efficiency", "overlapped", "epoch", "energy", "cost"
    )
    for row in forecasts.rows:
        table.add_row(*_cells(row, forecasts))
    console.print(table)
    console.print()
    show.print_lines(console, [("not known", text) for text in _unknown(forecasts)])


def _cells(row: Forecast, forecasts: Forecasts) -> list[str]:
    name = "here: 1" if row.workers == 1 else count_text(row.workers)
    if row.step_s is None or row.samples_per_s is None or row.epoch_s is None:
        return [name, f"fewer {forecasts.unit} than workers", *[_NOT_KNOWN] * 6]
    is_here = row.workers == 1
    return [
        name,
        seconds_text(row.step_s),
        rate_text(row.samples_per_s, forecasts.unit),
        _NOT_KNOWN if is_here or row.efficiency is None else percent_text(row.efficiency, 0),
        _NOT_KNOWN
        if is_here or row.most_efficiency is None
        else percent_text(row.most_efficiency, 0),
        seconds_text(row.epoch_s),
        _NOT_KNOWN if row.energy_kwh is None else energy_text(row.energy_kwh),
        _NOT_KNOWN if row.cost is None else f"{row.cost:,.3g}",
    ]


def _power_text(forecasts: Forecasts) -> str:
    whose = (
        f"the GPU of {forecasts.run}, on average" if forecasts.is_power_measured else "each worker"
    )
    return f"{forecasts.rates.power_w:,.0f} W{DOT}{whose}"


def _unknown(forecasts: Forecasts) -> list[str]:
    rates = forecasts.rates
    lines = []
    if rates.power_w is None:
        lines.append("energy: no power was measured; pass --power")
    elif forecasts.is_power_measured:
        lines.append("energy of everything but the GPU; pass --power for a whole worker")
    if rates.price_per_hour is None and (rates.price_per_kwh is None or rates.power_w is None):
        lines.append("cost: pass --price for a rented worker, or --power and --energy-price")
    lines += _too_small(forecasts)
    lines.append("whether workers are as fast as this machine, and what else uses the link")
    return lines


def _too_small(forecasts: Forecasts) -> list[str]:
    """Warns of rows that assume small batches to be as fast per sample as larger, measured ones."""
    rows = [row for row in forecasts.rows if not row.is_shown and row.samples is not None]
    if not rows:
        return []
    first = rows[0]
    least = min(step.micro_batch_size for step in (forecasts.measured, *forecasts.smaller))
    return [
        f"how much slower {first.samples:,} {forecasts.unit} per worker "
        f"(on {first.workers:,} workers) "
        f"are than {least:,}; measure it: flatout train {forecasts.experiment} "
        f"--tune off --use micro_batch_size={first.samples}"
    ]
