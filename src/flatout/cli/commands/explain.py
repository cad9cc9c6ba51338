"""`flatout explain`: the cause in a text."""

from __future__ import annotations

import click


@click.command("explain")
@click.argument("subject", required=False, metavar="[FILE|RULE-ID|-]")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
def command(subject: str | None, is_json: bool) -> None:
    """Name the cause in a log, a traceback, or what nvidia-smi, docker or dmesg printed.

    Without FILE it reads what is piped in, else what the last failed run left. Nothing is sent
    anywhere.
    """
    from flatout import consult
    from flatout.cli import show, show_doctor
    from flatout.nouns.diagnosis import Diagnosis

    told = consult.explain(subject)
    if isinstance(told, Diagnosis):
        if is_json:
            show.print_json(told)
        else:
            show_doctor.print_explanation(told)
    elif is_json:
        show.print_json({"rule": told.id, "page": told.page})
    else:
        show_doctor.print_page(told.id, told.page)
