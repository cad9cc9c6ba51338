"""`flatout bench run`: workloads as the plain loop and as flatout's recipe."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("run")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@click.option(
    "--devices", default="auto", metavar="auto|cpu|cuda|cpu,cuda", show_default=True,
    help="Devices to measure; two to compare them.",
)  # fmt: skip
@click.option(
    "--frameworks", metavar="NAME[=PYTHON],...",
    help="Compare frameworks instead: torch, tensorflow, paddle, jax, keras.",
)  # fmt: skip
@click.option("--quick", "is_quick", is_flag=True, help="Measure less: one process, no search.")
@click.option("--out", metavar="FILE", help="Write the result to a JSON file as well.")
@click.option("--md", "is_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV, one line for each row.")
@click.option("--html", metavar="FILE", help="Also write a report with charts, for a browser.")
@click.option("--python", metavar="PATH", help="Python interpreter with torch.")
@click.option("--env", metavar="NAME", help="Environment with torch (see `flatout envs`).")
@json_document
def run(
    workloads: tuple[str, ...],
    devices: str,
    is_quick: bool,
    out: str | None,
    html: str | None,
    **others: Any,
) -> None:
    """Measure workloads: a plain loop and flatout's recipe.

    Workloads: mlp, mnist-large, mnist-wsl2, resnet50, bert-large, gpt3-small, charlm; all by
    default. Sizes are chosen for the machine. With --frameworks: mlp and mnist-large.
    """
    frameworks = others.pop("frameworks")
    is_markdown, is_csv, is_json = (
        others.pop(f"is_{kind}") for kind in ("markdown", "csv", "json")
    )
    if is_markdown + is_csv + is_json > 1:
        raise click.UsageError("--md, --csv and --json cannot be combined")
    from pathlib import Path

    from flatout.bench import compare, read_files, report, table_texts
    from flatout.bench import frameworks as bench_frameworks
    from flatout.bench import run as bench_run
    from flatout.bench.limits import Doing
    from flatout.cli.render import show
    from flatout.cli.render.show_bench import LimitsProgress
    from flatout.cli.render.show_bench_frameworks import print_frameworks
    from flatout.cli.render.show_bench_run import print_run

    command = bench_run.BenchRequest(
        workloads=workloads, devices=devices, is_quick=is_quick, out=out, **others
    )
    for option, path in (("--html", html), ("--out", out)):
        if path is not None:
            report.check_writable(Path(path).expanduser(), option)
    file = None
    with LimitsProgress() as progress:
        measuring = bench_run.run(command)
        if frameworks is not None:
            measuring = bench_frameworks.run_frameworks(command, frameworks)
        for value in measuring:
            if isinstance(value, Doing):
                progress.show(value)
            else:
                file = value
    assert file is not None
    loaded = read_files.loaded(file, "this machine", out or "")
    comparison = compare.compare([loaded])
    if html is not None:
        report.write_report(Path(html).expanduser(), [loaded], comparison)
    if is_json:
        show.print_json(file)
    elif is_markdown or is_csv:
        text = table_texts.markdown if is_markdown else table_texts.csv_text
        click.echo(text(comparison), nl=False)
    elif frameworks is not None:
        print_frameworks(file, out=out, html=html)
    else:
        print_run(file, out=out, html=html)
