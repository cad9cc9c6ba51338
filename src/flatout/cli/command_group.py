"""A command with arguments of its own, and further commands below it."""

from __future__ import annotations

from typing import Any

import click


class LazyGroup(click.Group):
    """`setup torch` is the command itself, `setup export ...` a command below it.

    click takes the first word behind a group for a command below it; here only one that is.
    """

    # Options may stand behind arguments, as everywhere else.
    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:  # fmt: skip
        """The context of what the words are meant for."""
        if args and args[0] in self.commands:
            part = self.commands[args[0]]
            name = f"{info_name} {args[0]}"
            return part.make_context(name, args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Options and arguments, without `COMMAND [ARGS]...`, which is the rarer use."""
        return click.Command.collect_usage_pieces(self, ctx)
