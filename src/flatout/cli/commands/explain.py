"""`flatout explain`: the cause in a text."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("explain")
@click.argument("subject", required=False, metavar="[FILE|ID|-]")
@click.option(
    "--here/--elsewhere", "is_here", default=None,
    help="Say whether the text is from this machine, whose facts are then added.",
)  # fmt: skip
@json_document
def command(subject: str | None, is_here: bool | None, is_json: bool) -> None:
    """Name the cause in a log, a traceback, or what nvidia-smi, docker or dmesg printed.

    Without FILE it reads what is piped in, else what the last failed run left, and adds what it
    sees of this machine, unless the text tells of another one. A FILE may come from any machine:
    say --here if it is from this one. ID is what stands behind `see:` in an error, or of a rule:
    then its page is shown. Nothing is sent anywhere.
    """
    from flatout import explaining
    from flatout.cli import show, show_doctor
    from flatout.nouns.diagnosis import Diagnosis

    told = explaining.explain(subject, is_here=is_here)
    if isinstance(told, Diagnosis):
        if is_json:
            show.print_json(explaining.as_shown(told))
        else:
            show_doctor.print_explanation(told)
    elif is_json:
        show.print_json({"rule": told.id, "page": told.text})
    else:
        show_doctor.print_page(told.id, told.text)
