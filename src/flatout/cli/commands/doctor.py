"""`flatout doctor`: what is wrong with this machine."""

from __future__ import annotations

import click


@click.command("doctor")
@click.option("--python", metavar="PATH", help="The interpreter whose environment is read.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True,
    help="From which severity on the exit code is 1.",
)  # fmt: skip
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="What could not be read, too.")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
def command(python: str | None, fail_on: str, is_verbose: bool, is_json: bool) -> int:
    """Read this machine; name what is wrong, why, and the fix. Nothing is changed."""
    from flatout import consult
    from flatout.cli import show, show_doctor

    examined = consult.examine(python)
    found = examined.diagnosis
    if is_json:
        show.print_json(
            {
                "report_version": 1,
                "machine": examined.machine,
                "findings": found.findings,
                "undecided": found.undecided,
            }
        )
    else:
        show_doctor.print_examined(examined.machine, found, is_verbose=is_verbose)
    failing = ("error",) if fail_on == "error" else ("error", "warning")
    return int(any(one.severity in failing for one in found.findings))
