"""`flatout rules`: what doctor and explain know, and rules of one's own."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.group("rules", invoke_without_command=True)
@json_document
@click.pass_context
def command(context: click.Context, is_json: bool) -> None:
    """List the rules of `flatout doctor` and `flatout explain`, your own included.

    A rule of your own is a TOML file in your rules folder, which this command shows. See `flatout
    docs rules`.
    """
    if context.invoked_subcommand is None:
        from flatout.cli.render import show, show_rules
        from flatout.doctor import own_rules

        (show.print_json if is_json else show_rules.print_rules)(own_rules.list_rules())


@command.command("check")
@click.argument("file")
@click.option("--case", metavar="FILE", help="Text that the rule should explain, such as a log.")
@json_document
def check(file: str, case: str | None, is_json: bool) -> None:
    """Check a rule in a TOML file, before or after it is in your rules folder.

    With --case, the causes that all rules and this one find in a text are shown: the new rule
    should come first. Exit code 1 if it does not.
    """
    from flatout.cli.render import show, show_rules
    from flatout.doctor import own_rules

    checked = own_rules.check_rule(file, case)
    (show.print_json if is_json else show_rules.print_checked)(checked)
    if case is not None and not checked.is_first:
        raise SystemExit(1)
