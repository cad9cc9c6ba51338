"""`flatout doctor`: what is wrong with this machine, and mending it."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("doctor")
@click.option("--python", metavar="PATH", help="The interpreter whose environment is read.")
@click.option("--env", metavar="NAME", help="An environment of `flatout setup` to be read.")
@click.option("--deep", "is_deep", is_flag=True, help="Let the GPU compute, look up a name; slow.")
@click.option("--fix", "is_fixing", is_flag=True, help="Show a plan, ask, mend, and read again.")
@click.option("--yes", "is_sure", is_flag=True, help="With --fix: do what is safe unasked.")
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="With --fix: show the plan, change nothing."
)
@click.option("--from", "replayed", metavar="FILE", help="Judge a recording, not this machine.")
@click.option("--record", metavar="FILE", help="Show and write what others may see of it.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True,
    help="From which severity on the exit code is 1.",
)  # fmt: skip
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="What could not be read, too.")
@json_document
@click.option("--sarif", "is_sarif", is_flag=True, help="The findings as SARIF on stdout.")
def command(**options: Any) -> int:
    """Read this machine; name what is wrong, why, and the fix.

    Nothing is sent, and nothing is changed without --fix.
    """
    from flatout.cli import examining, fixing
    from flatout.nouns.doctor_request import DoctorManner, DoctorRequest

    read = {name: options.pop(name) for name in DoctorRequest.__struct_fields__}
    request, manner = DoctorRequest(**read), DoctorManner(**options)
    return (fixing.fix if manner.is_fixing else examining.report)(request, manner)
