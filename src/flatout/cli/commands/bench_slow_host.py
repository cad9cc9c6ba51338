"""`flatout bench slow-host`: what a slower host would cost a workload."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("slow-host")
@click.argument("workload")
@click.option(
    "--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True,
    help="Device to train on.",
)  # fmt: skip
@click.option(
    "--quick", "is_quick", is_flag=True, help="Measure less: one process, shorter blocks."
)
@click.option("--python", metavar="PATH", help="Python interpreter with torch.")
@click.option("--env", metavar="NAME", help="Environment with torch (see `flatout envs`).")
@json_document
def slow_host(
    workload: str, device: str, is_quick: bool, is_json: bool, **interpreter: str | None
) -> None:
    """Slow the host down, and measure the effect on a step.

    Microseconds before each operator, a later batch, and a host that may run only in a share of the
    time: what a platform with slower launches, data or CPUs would cost.
    """
    from flatout.bench import slow_host as bench_slow_host
    from flatout.cli.render import show
    from flatout.cli.render.show_bench import LimitsProgress
    from flatout.cli.render.show_slow_host import print_slow_host
    from flatout.schema.slow_host import SlowHostReport

    command = bench_slow_host.SlowHostCommand(
        workload=workload, device=device, is_quick=is_quick, **interpreter
    )
    report = None
    with LimitsProgress() as progress:
        for value in bench_slow_host.slow_host(command):
            if isinstance(value, SlowHostReport):
                report = value
            else:
                progress.show(value)
    assert report is not None
    if is_json:
        show.print_json(report)
    else:
        print_slow_host(report)
