"""`flatout explain`: the cause in a text."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("explain")
@click.argument("subject", required=False, metavar="[FILE|ID|-]")
@click.option(
    "--here/--elsewhere", "is_here", default=None,
    help="Whether the text comes from this machine; if so, facts about it are added.",
)  # fmt: skip
@json_document
def command(subject: str | None, is_here: bool | None, is_json: bool) -> None:
    """Find the cause in a log, a traceback, or output of nvidia-smi, docker or dmesg.

    Without FILE, it reads standard input if piped, else the log of the last failed run. Facts about
    this machine are added unless the text comes from another one. A FILE may come from any machine:
    pass --here if it is from this one. For the ID of a rule or an advice, or the one after `see:`
    in an error, its page is shown. Nothing is sent anywhere.
    """
    from flatout.cli.render import show, show_doctor
    from flatout.doctor import explain
    from flatout.doctor.model.diagnosis import Diagnosis

    explanation = explain.explain(subject, is_here=is_here)
    if isinstance(explanation, Diagnosis):
        if is_json:
            show.print_json(explain.as_shown(explanation))
        else:
            show_doctor.print_explanation(explanation)
    elif is_json:
        show.print_json({"rule": explanation.id, "page": explanation.text})
    else:
        show_doctor.print_page(explanation.id, explanation.text)
