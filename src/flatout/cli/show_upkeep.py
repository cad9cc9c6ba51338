"""What is shown of flatout itself: what it keeps, where it came from, what takes it away."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flatout.cli.show import make_console, print_lines, print_note
from flatout.cli.tables import plain_table
from flatout.cli.wording import DOT, home_text
from flatout.nouns.disk_use import FREEABLE, DiskUse, Freed
from flatout.nouns.installation import Installation, Part, Removal, Update
from flatout.nouns.shells import typed_here
from flatout.nouns.units import bytes_text, count_text, counted_text

_WAYS = {
    "script": "install script", "uv": "uv tool", "pipx": "pipx", "pip": "pip",
    "conda": "pip in a conda environment", "checkout": "a source checkout",
}  # fmt: skip

_MOST_PATHS = 12


def print_disk(uses: Sequence[DiskUse]) -> None:
    """A line for each kind of thing, and what the sum is."""
    console = make_console()
    table = plain_table("kept", "items", "size", "to free", "where")
    for column in ("items", "size", "to free"):
        table.columns[("kept", "items", "size", "to free").index(column)].justify = "right"
    for use in uses:
        # What has a command of its own is not freed here.
        free = bytes_text(use.freeable_bytes) if use.kind in FREEABLE else ""
        size = bytes_text(use.num_bytes)
        table.add_row(use.kind, count_text(use.num_items), size, free, home_text(use.folder))
    console.print(table)
    total = sum(use.num_bytes for use in uses)
    free_total = sum(use.freeable_bytes for use in uses)
    console.print(f"\n{bytes_text(total)} in all; {bytes_text(free_total)} can be freed:", end=" ")
    console.print("flatout disk --free KIND", soft_wrap=True)


def print_freeing(uses: Sequence[DiskUse]) -> None:
    """What is about to be freed, what that costs, and what stays."""
    console = make_console(is_error=True)
    for use in uses:
        size = bytes_text(use.freeable_bytes)
        text = f"{counted_text(len(use.freeable), 'item')}, {size}, in {home_text(use.folder)}"
        told = text if use.freeable else "nothing to free"
        lines: list[tuple[str, str]] = [(use.kind, told)]
        if use.freeable:
            lines.append(("", use.cost))
        lines += [("stays", reason) for reason in use.in_use]
        print_lines(console, lines)


def print_freed(freed: Freed) -> None:
    """What is free again."""
    print_note(f"freed {bytes_text(freed.num_bytes)}")


def print_installation(here: Installation) -> None:
    """Where this flatout comes from."""
    lines = [
        ("flatout", f"{here.version}{DOT}by {_WAYS[here.way]}"),
        ("in", home_text(here.checkout or here.folder)),
        ("python", home_text(here.python)),
    ]
    if here.launcher:
        lines.append(("command", home_text(here.launcher)))
    lines += [("edited", home_text(profile)) for profile in here.profiles]
    print_lines(make_console(), lines)


def print_update(planned: Update) -> None:
    """What would be run."""
    here = planned.installation
    console = make_console(is_error=True)
    print_lines(console, [("flatout", f"{here.version}{DOT}by {_WAYS[here.way]}"), ("runs", "")])
    _print_command(console, planned.command)


def print_updated(done: Update) -> None:
    """Which version there is now."""
    before = done.installation.version
    if done.after is None:
        print_note("the installed flatout does not start; install it again")
    elif done.after == before:
        print_note(f"flatout is {before}, as before")
    else:
        print_note(f"flatout {before} -> {done.after}")


def print_removal(removal: Removal) -> None:
    """All that would be taken away, what it costs, and what stays."""
    console = make_console(is_error=True)
    console.print(Text("to be removed", "bold"))
    for part in removal.parts:
        _print_part(console, part)
    for use in removal.kept:
        size = bytes_text(use.num_bytes)
        text = (
            f"{use.kind}: {counted_text(use.num_items, 'item')}, {size}, in {home_text(use.folder)}"
        )
        print_lines(console, [("stays", text)])
        if use.kind == "runs":
            print_lines(console, [("", "--runs removes them too")])


def question(part: Part) -> str:
    """What is asked before a part is taken away."""
    size = f" ({bytes_text(part.num_bytes)})" if part.num_bytes else ""
    return "Remove flatout itself?" if part.name == "flatout" else f"Remove {part.name}{size}?"


def last_words(removal: Removal, part: Part) -> str:
    """What is said before flatout goes: afterwards nothing of it can be loaded any more."""
    lines = [f"removed {part.name}"]
    if part.is_only_told and part.commands:
        lines.append("this takes it away, once this program has ended:")
        lines += [f"    {typed_here(command)}" for command in part.commands]
    if removal.installation.way == "checkout":
        lines = [f"the sources stay: {removal.installation.checkout}"]
    return "\n".join(lines)


def _print_part(console: Console, part: Part) -> None:
    size = f", {bytes_text(part.num_bytes)}" if part.num_bytes else ""
    lines = [(part.name, f"{part.text}{size}"), ("", part.cost)]
    print_lines(console, lines)
    # Of a hundred runs the first few tell where they are.
    for path in part.paths[:_MOST_PATHS]:
        console.print(f"    {home_text(path)}", soft_wrap=True)
    if len(part.paths) > _MOST_PATHS:
        console.print(f"    and {len(part.paths) - _MOST_PATHS} more")
    for command in part.commands:
        _print_command(console, command)


def _print_command(console: Console, command: Sequence[str]) -> None:
    # Never broken, so that it can be copied.
    console.print(f"    {typed_here(command)}", soft_wrap=True)
