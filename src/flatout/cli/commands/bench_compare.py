"""`flatout bench compare`: bench files against the first of them."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("compare")
@click.argument("files", nargs=-1, required=True, metavar="FILE FILE...")
@click.option("--md", "is_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV, one line for each row and file.")
@click.option("--html", metavar="FILE", help="Also write a report with charts, for a browser.")
@json_document
def compare(
    files: tuple[str, ...], is_markdown: bool, is_csv: bool, html: str | None, is_json: bool
) -> None:
    """Compare bench files: ratios, verdicts and causes.

    Ratios are to the first file. Of a single file, the values are shown.
    """
    if is_markdown + is_csv + is_json > 1:
        raise click.UsageError("--md, --csv and --json cannot be combined")
    from pathlib import Path

    from flatout.bench import compare as bench_compare
    from flatout.bench import report, table_texts
    from flatout.cli.render import show, show_bench_comparison

    loaded = bench_compare.load([Path(file).expanduser() for file in files])
    comparison = bench_compare.compare(loaded)
    if html is not None:
        report.write_report(Path(html).expanduser(), loaded, comparison)
    if is_json:
        show.print_json(comparison)
    elif is_markdown or is_csv:
        text = table_texts.markdown if is_markdown else table_texts.csv_text
        click.echo(text(comparison), nl=False)
    else:
        show_bench_comparison.print_comparison(comparison, html)
