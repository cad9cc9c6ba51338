"""Tables of what is known about a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from flatout.cli.render import wording
from flatout.schema.recipe import Recipe
from flatout.schema.run_lines import EpochEnded, Metric, Validated
from flatout.schema.suggested_command import typed_value

_NUM_VALIDATIONS = 12


def plain_table(*columns: str) -> Table:
    """Columns side by side, without lines between them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def recipe_table(recipe: Recipe, *, is_whole: bool = True) -> Table:
    """Fields with their value, who chose it, and why: all, or those that are not the default."""
    table = Table.grid(padding=(0, 2))
    for column in ("field", "value", "origin"):
        table.add_column(column, no_wrap=True)
    table.add_column("why", overflow="fold", style="dim")
    for name, choice in msgspec.structs.asdict(recipe).items():
        if is_whole or choice.origin != "default":
            why = choice.why + (f" ({choice.evidence})" if choice.evidence else "")
            table.add_row(f"  {name}", typed_value(choice.value), choice.origin, why)
    return table


def metrics_table(metrics: Sequence[Metric]) -> Table:
    """Losses and validations, the last ones and the best."""
    losses = {line.step: line for line in metrics if isinstance(line, EpochEnded)}
    validations = {line.step: line for line in metrics if isinstance(line, Validated)}
    names = list(dict.fromkeys(name for line in validations.values() for name in line.metrics))
    titles = [wording.validated_name(name) for name in names]
    # Those that an experiment's own step names say more than their sum.
    named = list(dict.fromkeys(name for line in losses.values() for name in line.losses))
    table = plain_table("  epoch", "step", *(named or ["train loss"]), *titles, "")
    best = max((line.step for line in validations.values() if line.is_best), default=None)
    steps = sorted({*losses, *validations})
    left_out = set(steps[:-_NUM_VALIDATIONS]) - {best}
    if left_out:
        table.add_row(f"  ({len(left_out)} more: --json)")
    for step in steps:
        if step in left_out:
            continue
        values = validations[step].metrics if step in validations else {}
        line = losses.get(step) or validations[step]
        table.add_row(
            f"  {line.epoch + 1}",
            f"{step:,}",
            *_loss_texts(losses.get(step), named),
            *(wording.metric_text(name, values[name]) if name in values else "" for name in names),
            Text("best", "green") if step == best else "",
        )
    return table


def _loss_texts(line: EpochEnded | None, named: Sequence[str]) -> list[str]:
    if line is None:
        return [""] * (len(named) or 1)
    if not named:
        return [wording.metric_text("loss", line.loss)]
    values = [line.losses.get(name) for name in named]
    return ["" if value is None else wording.metric_text("loss", value) for value in values]


def split_table(split: dict[str, float]) -> Table:
    """A table of the time spent, the longest first, with shares."""
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify)
    for name, seconds, share in wording.shares(split):
        table.add_row(f"  {name}", seconds, share)
    return table
