"""`flatout export`: a run's model as a file for other programs."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.experiment_command import RunCommand, set_parameters
from flatout.cli.options import json_document, trusts_run


@click.command("export", cls=RunCommand)
@click.argument("run", shell_complete=completion_words.runs)
@click.option(
    "--to", "form", type=click.Choice(["onnx", "pt2", "safetensors", "hf"]), required=True,
    help="Format: ONNX, a program of torch.export, weights alone, or a transformers folder.",
)  # fmt: skip
@click.option("--output", metavar="FILE|DIR", help="File to write (default: RUN with an ending).")
@click.option("--int8", "is_int8", is_flag=True, help="Compute in 8 bits; with --to onnx.")
@click.option(
    "--opset", type=click.IntRange(18), metavar="N",
    help="Version of ONNX's operators; with --to onnx.",
)  # fmt: skip
@set_parameters
@click.option(
    "--experiment", metavar="NAME|FILE", shell_complete=completion_words.experiments,
    help="Experiment to build the model from, instead of the run's own copy.",
)  # fmt: skip
@click.option("--python", metavar="PATH", help="Python interpreter to export with.")
@click.option("--env", metavar="NAME", help="Environment to export in (see `flatout envs`).")
@trusts_run
@json_document
def command(is_json: bool, **options: Any) -> int:
    """Export a run's model, and check that the file answers as the run does.

    The file computes what `flatout predict` computes, for any number of samples. -s overrides
    parameters of the experiment.
    """
    for name, spelling in (("is_int8", "--int8"), ("opset", "--opset")):
        if options[name] and options["form"] != "onnx":
            raise click.UsageError(f"{spelling} cannot be combined with --to {options['form']}")
    from flatout.cli.flows import export
    from flatout.cli.render import show
    from flatout.runs import export as runs_export
    from flatout.schema.export_protocol import ExportRequest

    request = show.with_trust(ExportRequest(**options), options["run"])
    return export.show_export(runs_export.export(request), is_json=is_json)
