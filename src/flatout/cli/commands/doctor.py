"""`flatout doctor`: what is wrong with this machine."""

from __future__ import annotations

from typing import Any

import click


@click.command("doctor")
@click.option("--python", metavar="PATH", help="The interpreter whose environment is read.")
@click.option("--deep", "is_deep", is_flag=True, help="Let the GPU compute, look up a name; slow.")
@click.option("--from", "replayed", metavar="FILE", help="Judge a recording, not this machine.")
@click.option("--record", metavar="FILE", help="Show and write what others may see of it.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), default="error", show_default=True,
    help="From which severity on the exit code is 1.",
)  # fmt: skip
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="What could not be read, too.")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--sarif", "is_sarif", is_flag=True, help="The findings as SARIF on stdout.")
def command(fail_on: str, is_verbose: bool, is_json: bool, is_sarif: bool, **options: Any) -> int:
    """Read this machine; name what is wrong, why, and the fix. Nothing is changed or sent."""
    from flatout import consult
    from flatout.cli import show, show_doctor
    from flatout.nouns.doctor_request import DoctorRequest

    request = DoctorRequest(**options)
    examined = consult.examine(request)
    found = examined.diagnosis
    if request.record:
        text = consult.recording_text(examined.machine)
        show_doctor.print_recording(text, request.record, is_beside=is_json or is_sarif)
        consult.write_recording(text, request.record)
    if is_sarif:
        show.print_json(consult.as_sarif(found))
    elif is_json:
        show.print_json(consult.report(examined))
    elif not request.record:
        show_doctor.print_examined(examined, is_verbose=is_verbose)
    failing = ("error",) if fail_on == "error" else ("error", "warning")
    return int(any(one.severity in failing for one in found.findings))
