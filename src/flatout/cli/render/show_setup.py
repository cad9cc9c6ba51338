"""Output of `flatout setup` and `flatout compat`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from flatout.cli.render import wording
from flatout.cli.render.show import make_console, print_lines, print_note
from flatout.compat.api import Chosen, CompatAnswer, CompatState
from flatout.schema.units import counted_text


def print_chosen(chosen: Chosen) -> None:
    """The choice for each framework, why, and what was ruled out."""
    console = make_console()
    if chosen.machine is not None:
        print_lines(console, [("machine", wording.machine_text(chosen.machine))])
    for answer in chosen.answers:
        if chosen.machine is not None or answer is not chosen.answers[0]:
            console.print()
        _print_answer(console, answer)


def print_compat(state: CompatState) -> None:
    """Prints the contents and the age of the tables."""
    console = make_console()
    age = f"{counted_text(state.age_days, 'day')} old"
    read = f"read on {state.read}"
    if state.updated:
        read += f"{wording.DOT}indexes queried on {state.updated}, "
        f"{counted_text(state.num_added, 'build')} added"
    print_lines(console, [
        ("tables", f"{age}{wording.DOT}{read}"),
        *((table.framework,
           f"up to {table.newest}{wording.DOT}{counted_text(table.num_builds, 'build')}")
          for table in state.tables),
        ("cards", f"{state.num_cards} names"),
    ])  # fmt: skip
    for reason in state.not_reached:
        print_note(f"not queried: {reason}")


def _print_answer(console: Console, answer: CompatAnswer) -> None:
    choice = answer.choice
    if choice is None:
        console.print(Text("nothing fits", "bold red"))
    else:
        cuda = "for the CPU" if choice.cuda == "cpu" else choice.cuda
        print_lines(console, [
            (choice.framework, f"{choice.version}{wording.DOT}{cuda}{wording.DOT}"
                               f"Python {choice.python}"),
            ("index", choice.index),
        ])  # fmt: skip
    for label, texts in (("why", answer.why), ("ruled out", answer.ruled_out),
                         ("would fit", answer.nearest)):  # fmt: skip
        print_lines(console, [(label if number == 0 else "", text)
                              for number, text in enumerate(texts)])  # fmt: skip
