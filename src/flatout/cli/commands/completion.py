"""`flatout completion`: the script by which a shell completes flatout's words."""

from __future__ import annotations

import os

import click

from flatout.cli.completing import SHELLS, script


@click.command("completion")
@click.argument("shell", required=False, type=click.Choice(SHELLS), metavar=f"[{'|'.join(SHELLS)}]")
def command(shell: str | None) -> None:
    """Print the script that lets a shell complete commands, options, experiments and runs.

    \b
    bash:  flatout completion bash >~/.local/share/bash-completion/completions/flatout
    zsh:   flatout completion zsh >~/.zfunc/_flatout
    fish:  flatout completion fish >~/.config/fish/completions/flatout.fish
    """
    own = os.path.basename(os.environ.get("SHELL", ""))
    if shell is None and own not in SHELLS:
        raise click.UsageError(f"which shell? One of: {', '.join(SHELLS)}")
    click.echo(script(shell or own), nl=False)
