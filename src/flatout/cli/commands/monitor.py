"""`flatout monitor`: samples this machine, warns, and exports to Prometheus."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.group("monitor", invoke_without_command=True)
@click.option(
    "-i", "every_s", type=click.FloatRange(0.2, 3600), default=2.0, metavar="SECONDS",
    show_default=True, help="Time between samples.",
)  # fmt: skip
@click.option(
    "--days", type=click.IntRange(1, 3650), default=14, metavar="N", show_default=True,
    help="Days of samples to keep.",
)  # fmt: skip
@click.option(
    "--keep", default="1GiB", metavar="SIZE", show_default=True,
    help="Most disk space for samples; the oldest days are removed first.",
)  # fmt: skip
@click.option(
    "--prometheus", "address", metavar="[HOST]:PORT",
    help="Export metrics at this address; without a host, for this computer only.",
)  # fmt: skip
@click.option(
    "--dcgm-names", "has_dcgm_names", is_flag=True,
    help="Export GPU metrics under the names of dcgm-exporter.",
)  # fmt: skip
@click.option("--webhook", metavar="URL", help="Send each alarm as JSON by POST.")
@click.option(
    "--command", "command_line", metavar="COMMAND",
    help="Run a shell command for each alarm, with the alarm as JSON on its stdin.",
)  # fmt: skip
@click.option("--demo", "is_demo", is_flag=True, help="Show an invented machine; store nothing.")
@json_document
@click.pass_context
def command(context: click.Context, /, is_json: bool, is_demo: bool, **options: Any) -> None:
    """Sample this machine and its runs, and warn of problems, until Ctrl-C.

    Samples go to daily files. Alarms go to the terminal, a webhook or a command.
    """
    if context.invoked_subcommand:
        if is_json:
            raise click.UsageError(f"put --json after `{context.invoked_subcommand}`")
        return
    from flatout.cli.render import show
    from flatout.cli.render.show_monitor import MonitorDisplay
    from flatout.monitor import api as monitor_api
    from flatout.schema.finding import option_without_effect

    request = monitor_api.MonitorRequest(
        every_s=options["every_s"],
        days=options["days"],
        keep=options["keep"],
        address=options["address"],
        has_dcgm_names=options["has_dcgm_names"],
        webhook=options["webhook"],
        command=options["command_line"],
        is_demo=is_demo,
    )
    if request.has_dcgm_names and request.address is None:
        because = "nothing is exported"
        show.print_finding(option_without_effect("--dcgm-names", because, "add --prometheus :9400"))
    for name in ("days", "keep") if is_demo else ():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            because = "--demo stores nothing"
            show.print_finding(option_without_effect(f"--{name}", because, "leave it out"))
    with monitor_api.interrupts() as interrupts, MonitorDisplay(is_quiet=is_json) as display:
        for news in monitor_api.monitor(request, interrupts):
            display.take(news)
    if is_json:
        show.print_json(display.summary)


@command.command("grafana")
@click.argument("directory", metavar="[DIR]", default="flatout-grafana")
@click.option(
    "--prometheus", "address", metavar="[HOST]:PORT", default=":9400", show_default=True,
    help="Address at which `flatout monitor` exports.",
)  # fmt: skip
@json_document
def grafana(directory: str, address: str, is_json: bool) -> None:
    """Write a Compose file with Prometheus and Grafana, and a dashboard.

    DIR is a new folder; `flatout-grafana` by default.
    """
    from flatout.cli.render import show
    from flatout.cli.render.show_monitor import print_grafana
    from flatout.monitor import grafana as monitor_grafana

    written = monitor_grafana.write(directory, address)
    if is_json:
        show.print_json(written)
    else:
        print_grafana(written)
