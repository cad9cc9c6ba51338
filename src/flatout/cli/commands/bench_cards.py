"""`flatout bench cards`: what other cards would do."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("cards")
@click.argument("workload")
@click.option(
    "--from", "file", metavar="FILE", help="Result of `flatout bench run`; default: the stored one."
)
@click.option(
    "--gpus", "num_devices", type=click.IntRange(1, 8), multiple=True, metavar="N",
    help="Number of GPUs in one machine; can be repeated.  [default: 1]",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
    help="Data type on the cards; default: the measured one.",
)  # fmt: skip
@click.option(
    "--price", "prices", multiple=True, metavar="NAME=PRICE",
    help="Price of a card or instance for an hour; can be repeated.",
)  # fmt: skip
@click.option("--prices", "prices_file", metavar="FILE", help="TOML file of prices, with its date.")
@json_document
def cards(
    workload: str,
    file: str | None,
    num_devices: tuple[int, ...],
    prices: tuple[str, ...],
    is_json: bool,
    **more: str | None,
) -> None:
    """Predict throughput on other cards and cloud instances.

    From the measured step of a workload, with a roofline of FLOPs, memory and host. The interval
    is as wide as such predictions of published figures were wrong.
    """
    from flatout.bench import cards as bench_cards
    from flatout.cli.render import show
    from flatout.cli.render.show_bench_cards import print_cards

    report = bench_cards.cards(
        bench_cards.CardsRequest(
            workload=workload, file=file, num_devices=num_devices or (1,), prices=prices, **more
        )
    )
    if is_json:
        show.print_json(report)
    else:
        print_cards(report)
