"""`flatout doctor`: finds what is wrong with this machine, and fixes it."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("doctor")
@click.option("--python", metavar="PATH", help="Python interpreter of the environment to check.")
@click.option("--env", metavar="NAME", help="Environment to check (see `flatout envs`).")
@click.option(
    "--deep",
    "is_deep",
    is_flag=True,
    help="Also test GPU computation, DNS and file speed (slow).",
)
@click.option(
    "--fix", "is_fixing", is_flag=True, help="Show a plan, ask, fix what is wrong, and check again."
)
@click.option("--yes", "is_sure", is_flag=True, help="With --fix: apply safe fixes without asking.")
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="With --fix: show the plan, change nothing."
)
@click.option(
    "--from", "replayed", metavar="FILE", help="Check a recording instead of this machine."
)
@click.option("--record", metavar="FILE", help="Record this machine in FILE, without private data.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True,
    help="Exit with code 1 at this severity or above.",
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
    from flatout.cli.flows import doctor, fix
    from flatout.doctor.model.doctor_request import DoctorOptions, DoctorRequest

    read = {name: options.pop(name) for name in DoctorRequest.__struct_fields__}
    request, manner = DoctorRequest(**read), DoctorOptions(**options)
    return (fix.fix if manner.is_fixing else doctor.report)(request, manner)
