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


def print_forecasts(found: Forecasts) -> None:
    """Prints the measured steps, a row for each number of workers, and the unknowns."""
    console = show.make_console()
    measured = found.measured
    whose = "shared by all" if found.scaling == "strong" else "for each worker"
    samples = f"{measured.samples:,.0f} {found.unit}"
    show.print_lines(console, [
        ("measured", f"{found.run}{DOT}{seconds_text(measured.step_s)} per step of {samples}"),
        ("batch", f"{samples}, {whose}"),
        ("link", f"{found.link.bits_per_s / 1e9:g} Gbit/s{DOT}"
         f"{seconds_text(found.link.latency_s)} per message{DOT}"
         f"{bytes_text(measured.gradient_bytes)} of gradients"),
        *([("power", _power_text(found))] if found.rates.power_w is not None else []),
    ])  # fmt: skip
    console.print()
    table = plain_table(
        "workers", "step", "throughput", "efficiency", "overlapped", "epoch", "energy", "cost"
    )
    for row in found.rows:
        table.add_row(*_cells(row, found))
    console.print(table)
    console.print()
    show.print_lines(console, [("not known", text) for text in _unknown(found)])


def _cells(row: Forecast, found: Forecasts) -> list[str]:
    name = "here: 1" if row.workers == 1 else count_text(row.workers)
    if row.step_s is None or row.samples_per_s is None or row.epoch_s is None:
        return [name, f"fewer {found.unit} than workers", *[_NOT_KNOWN] * 6]
    is_here = row.workers == 1
    return [
        name,
        seconds_text(row.step_s),
        rate_text(row.samples_per_s, found.unit),
        _NOT_KNOWN if is_here or row.efficiency is None else percent_text(row.efficiency, 0),
        _NOT_KNOWN
        if is_here or row.most_efficiency is None
        else percent_text(row.most_efficiency, 0),
        seconds_text(row.epoch_s),
        _NOT_KNOWN if row.energy_kwh is None else energy_text(row.energy_kwh),
        _NOT_KNOWN if row.cost is None else f"{row.cost:,.3g}",
    ]


def _power_text(found: Forecasts) -> str:
    whose = f"the GPU of {found.run}, on average" if found.is_power_measured else "each worker"
    return f"{found.rates.power_w:,.0f} W{DOT}{whose}"


def _unknown(found: Forecasts) -> list[str]:
    rates = found.rates
    told = []
    if rates.power_w is None:
        told.append("energy: no power was measured; pass --power")
    elif found.is_power_measured:
        told.append("energy of everything but the GPU; pass --power for a whole worker")
    if rates.price_per_hour is None and (rates.price_per_kwh is None or rates.power_w is None):
        told.append("cost: pass --price for a rented worker, or --power and --energy-price")
    told += _too_small(found)
    told.append("whether workers are as fast as this machine, and what else uses the link")
    return told


def _too_small(found: Forecasts) -> list[str]:
    """Warns of rows that assume small batches to be as fast per sample as larger, measured ones."""
    rows = [row for row in found.rows if not row.is_shown and row.samples is not None]
    if not rows:
        return []
    first = rows[0]
    least = min(step.micro_batch_size for step in (found.measured, *found.smaller))
    return [
        f"how much slower {first.samples:,} {found.unit} per worker (on {first.workers:,} workers) "
        f"are than {least:,}; measure it: flatout train {found.experiment} "
        f"--tune off --use micro_batch_size={first.samples}"
    ]
