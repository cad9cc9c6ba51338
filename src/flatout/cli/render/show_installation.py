"""Output about flatout itself: its files on disk, its origin, and its removal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flatout.cli.render.show import make_console, print_lines, print_note
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT, home_text
from flatout.schema.shell_quoting import typed_here
from flatout.schema.units import bytes_text, count_text, counted_text
from flatout.setup.model.disk_use import FREEABLE, DiskUse, Freed
from flatout.setup.model.flatout_installation import (
    Installation,
    InstalledPart,
    SelfUpdate,
    UninstallPlan,
)

_WAYS = {
    "script": "install script", "uv": "uv tool", "pipx": "pipx", "pip": "pip",
    "conda": "pip in a conda environment", "checkout": "a source checkout",
}  # fmt: skip

_MOST_PATHS = 12


def print_disk(uses: Sequence[DiskUse]) -> None:
    """A line for each kind of data, and the total."""
    console = make_console()
    table = plain_table("kept", "items", "size", "freeable", "where")
    for column in ("items", "size", "freeable"):
        table.columns[("kept", "items", "size", "freeable").index(column)].justify = "right"
    for use in uses:
        # What has a command of its own is not freed here.
        free = bytes_text(use.freeable_bytes) if use.kind in FREEABLE else ""
        size = bytes_text(use.num_bytes)
        table.add_row(use.kind, count_text(use.num_items), size, free, home_text(use.folder))
    console.print(table)
    total = sum(use.num_bytes for use in uses)
    free_total = sum(use.freeable_bytes for use in uses)
    console.print(
        f"\n{bytes_text(total)} in total; {bytes_text(free_total)} can be freed:", end=" "
    )
    console.print("flatout disk --free KIND", soft_wrap=True)


def print_freeing(uses: Sequence[DiskUse]) -> None:
    """Prints the things that will be deleted, the cost of that, and the things that stay."""
    console = make_console(is_error=True)
    for use in uses:
        size = bytes_text(use.freeable_bytes)
        text = f"{counted_text(len(use.freeable), 'item')}, {size}, in {home_text(use.folder)}"
        size_text = text if use.freeable else "nothing to free"
        lines: list[tuple[str, str]] = [(use.kind, size_text)]
        if use.freeable:
            lines.append(("", use.cost))
        lines += [("stays", reason) for reason in use.in_use]
        print_lines(console, lines)


def print_freed(freed: Freed) -> None:
    """Prints the freed space."""
    print_note(f"freed {bytes_text(freed.num_bytes)}")


def print_installation(here: Installation) -> None:
    """Prints the origin of this flatout."""
    lines = [
        ("flatout", f"{here.version}{DOT}by {_WAYS[here.way]}"),
        ("in", home_text(here.checkout or here.folder)),
        ("python", home_text(here.python)),
    ]
    if here.launcher:
        lines.append(("command", home_text(here.launcher)))
    lines += [("edited", home_text(profile)) for profile in here.profiles]
    print_lines(make_console(), lines)


def print_update(planned: SelfUpdate) -> None:
    """Prints the commands of an update."""
    here = planned.installation
    console = make_console(is_error=True)
    print_lines(console, [("flatout", f"{here.version}{DOT}by {_WAYS[here.way]}"), ("runs", "")])
    _print_command(console, planned.command)


def print_updated(done: SelfUpdate) -> None:
    """Prints the version after an update."""
    before = done.installation.version
    if done.after is None:
        print_note("the installed flatout does not start; install it again")
    elif done.after == before:
        print_note(f"flatout is {before}, unchanged")
    else:
        print_note(f"flatout {before} -> {done.after}")


def print_removal(removal: UninstallPlan) -> None:
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


def removal_prompt(part: InstalledPart) -> str:
    """The question before a part is removed."""
    size = f" ({bytes_text(part.num_bytes)})" if part.num_bytes else ""
    return "Remove flatout itself?" if part.name == "flatout" else f"Remove {part.name}{size}?"


def last_words(removal: UninstallPlan, part: InstalledPart) -> str:
    """The last message before flatout is removed: afterwards none of its modules can be loaded."""
    lines = [f"removed {part.name}"]
    if part.is_only_shown and part.commands:
        lines.append("to remove it, run this once this program has exited:")
        lines += [f"    {typed_here(command)}" for command in part.commands]
    if removal.installation.way == "checkout":
        lines = [f"the sources stay: {removal.installation.checkout}"]
    return "\n".join(lines)


def _print_part(console: Console, part: InstalledPart) -> None:
    size = f", {bytes_text(part.num_bytes)}" if part.num_bytes else ""
    lines = [(part.name, f"{part.text}{size}"), ("", part.cost)]
    print_lines(console, lines)
    # Of a hundred runs the first few show where they are.
    for path in part.paths[:_MOST_PATHS]:
        console.print(f"    {home_text(path)}", soft_wrap=True)
    if len(part.paths) > _MOST_PATHS:
        console.print(f"    and {len(part.paths) - _MOST_PATHS} more")
    for command in part.commands:
        _print_command(console, command)


def _print_command(console: Console, command: Sequence[str]) -> None:
    # Never broken, so that it can be copied.
    console.print(f"    {typed_here(command)}", soft_wrap=True)
