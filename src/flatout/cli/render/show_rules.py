"""Output of `flatout rules`."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from flatout.cli.render.show import make_console, print_command, print_note
from flatout.cli.render.show_doctor import print_explanation
from flatout.doctor.own_rules import CheckedRule, KnownRules


def print_rules(known: KnownRules) -> None:
    """Rules by family, then where a user's own go, and which of them are invalid."""
    console = make_console()
    for family, rules in groupby(known.rules, lambda rule: rule.family):
        console.print(Text(family, "bold"))
        for rule in rules:
            console.print(f"  {rule.id}", soft_wrap=True, highlight=False)
    for problem in known.problems:
        print_note(f"ignored: {problem}")
    console.print()
    print_command(console, "a rule's page", "flatout explain ID")
    print_command(console, "your own rules", known.folder)


def print_checked(checked: CheckedRule) -> None:
    """That a rule is valid, what is looked for, and what it makes of a text."""
    console = make_console()
    console.print(f"{checked.id} is a valid rule.", soft_wrap=True)
    for signature, texts in checked.texts.items():
        console.print(f"  {signature}: looks for {', '.join(texts)}", soft_wrap=True)
    if checked.diagnosis is not None:
        console.print()
        print_explanation(checked.diagnosis)
        if not checked.is_first:
            print_note(f"{checked.id} is not the first cause found in this text")
