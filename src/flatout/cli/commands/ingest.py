"""`flatout ingest`: shards to train on from images, tables or texts."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("ingest")
@click.argument("source")
@click.argument("dest")
@click.option(
    "--on", type=click.Choice(["local", "ray", "dask", "cluster"]), default="local",
    show_default=True, help="Engine that does the work; the shards are the same.",
)  # fmt: skip
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes; one per CPU by default.",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Address of Ray's or Dask's head; without it, one is started.",
)
@click.option(
    "--kind",
    type=click.Choice(["images", "idx", "csv", "parquet", "text"]),
    help="Kind of data to read, where SOURCE holds several.",
)
@click.option(
    "--validation",
    type=float,
    metavar="SHARE",
    help="Share of the data for validation.  [default: 0.1]",
)
@click.option(
    "--test", type=float, metavar="SHARE", help="Share of the data for the test.  [default: 0.1]"
)
@click.option("--key", metavar="COLUMN", help="Keep rows with equal values in the same part.")
@click.option(
    "--max-rejected",
    "most_rejected",
    type=float,
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="Share of bad records to accept.",
)
@click.option("--python", metavar="PATH", help="Python interpreter to run with.")
@click.option("--env", metavar="NAME", help="Environment made by `flatout setup` to run in.")
@json_document
def command(on: Any, is_json: bool, **options: Any) -> int:
    """Make shards of SOURCE in the folder DEST, to train on.

    SOURCE is a folder with a folder of images for each class, IDX files, CSV or Parquet files, or
    texts. Run again, it does what is new; SOURCE is only read.
    """
    from flatout import ingesting
    from flatout.cli import ingestion
    from flatout.nouns.ingestion import IngestRequest

    if on == "cluster":
        from flatout.clustering import ingestion as over_cluster

        answers = over_cluster.ingest(IngestRequest(**options))
    else:
        answers = ingesting.ingest(IngestRequest(on=on, **options))
    return ingestion.follow(answers, is_json=is_json)
