"""`flatout doctor`: what is wrong with this machine, and mending it."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("doctor")
@click.option("--python", metavar="PATH", help="Python interpreter whose environment to examine.")
@click.option("--env", metavar="NAME", help="Environment made by `flatout setup` to examine.")
@click.option(
    "--deep",
    "is_deep",
    is_flag=True,
    help="Also compute on the GPU, resolve a name, and time files; slow.",
)
@click.option(
    "--fix", "is_fixing", is_flag=True, help="Show a plan, ask, fix what is wrong, and check again."
)
@click.option("--yes", "is_sure", is_flag=True, help="With --fix: do what is safe without asking.")
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="With --fix: show the plan, change nothing."
)
@click.option(
    "--from", "replayed", metavar="FILE", help="Examine a recording instead of this machine."
)
@click.option(
    "--record", metavar="FILE", help="Write a recording of this machine without private data."
)
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True,
    help="Lowest severity that makes the exit code 1.",
)  # fmt: skip
@click.option(
    "-v", "--verbose", "is_verbose", is_flag=True, help="Also show what could not be read."
)
@json_document
@click.option("--sarif", "is_sarif", is_flag=True, help="Print the findings as SARIF on stdout.")
def command(**options: Any) -> int:
    """Check this machine: what is wrong, why, and how to fix it.

    Nothing is sent, and nothing is changed without --fix.
    """
    from flatout.cli import examining, fixing
    from flatout.nouns.doctor_request import DoctorManner, DoctorRequest

    read = {name: options.pop(name) for name in DoctorRequest.__struct_fields__}
    request, manner = DoctorRequest(**read), DoctorManner(**options)
    return (fixing.fix if manner.is_fixing else examining.report)(request, manner)
