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
    show_default=True, help="Engine that does the work; all produce the same shards.",
)  # fmt: skip
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of worker processes; by default one per CPU.",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Address of the Ray or Dask head; by default one is started.",
)
@click.option(
    "--kind",
    type=click.Choice(["images", "idx", "csv", "parquet", "text"]),
    help="Kind of data to read if SOURCE holds several.",
)
@click.option(
    "--validation",
    type=float,
    metavar="SHARE",
    help="Fraction of the data for validation.  [default: 0.1]",
)
@click.option(
    "--test", type=float, metavar="SHARE", help="Fraction of the data for testing.  [default: 0.1]"
)
@click.option(
    "--key", metavar="COLUMN", help="Keep rows with equal values in COLUMN in the same split."
)
@click.option(
    "--max-rejected",
    "most_rejected",
    type=float,
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="Maximum fraction of bad records to tolerate.",
)
@click.option("--python", metavar="PATH", help="Python interpreter to run with.")
@click.option("--env", metavar="NAME", help="Environment to run in (see `flatout envs`).")
@json_document
def command(on: Any, is_json: bool, **options: Any) -> int:
    """Convert SOURCE into shards for training, in the folder DEST.

    SOURCE holds one folder of images per class, IDX files, CSV or Parquet files, or texts. A second
    run converts only what is new. SOURCE is never changed.
    """
    from flatout.cli.flows import ingest as ingestion
    from flatout.cluster import api as cluster_api
    from flatout.schema.ingest_protocol import IngestRequest

    in_cluster = on == "cluster"
    request = IngestRequest(**options) if in_cluster else IngestRequest(on=on, **options)
    return ingestion.follow(cluster_api.ingest(request, in_cluster=in_cluster), is_json=is_json)
