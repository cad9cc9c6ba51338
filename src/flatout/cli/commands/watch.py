"""`flatout watch`: a program of the user's own, recorded."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


# Options after the program's name belong to the program.
@click.command("watch", context_settings={"allow_interspersed_args": False})
@click.option("--out", metavar="DIR", help="Folder for the record, instead of one of flatout's.")
@click.option("--show", "shown", metavar="ID|DIR", help="Show a record again; last: the newest.")
@json_document
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[--] [PROGRAM]...")
def command(out: str | None, shown: str | None, is_json: bool, program: tuple[str, ...]) -> int:
    """Run PROGRAM unchanged, and record its output, the machine and how it ends.

    Its exit code, output and signals are passed through. With --json, its output goes to stderr.
    Without PROGRAM, the records are listed.
    """
    if program and shown is not None:
        raise click.UsageError("--show cannot be combined with a program")
    if out is not None and not program:
        raise click.UsageError("--out needs a program")
    from flatout.cli.flows import watch as watching

    if shown is not None:
        return watching.show(shown, is_json=is_json)
    if not program:
        return watching.list_all(is_json=is_json)
    return watching.run(program, out=out, is_json=is_json)
