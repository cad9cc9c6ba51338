"""`flatout completion`: the script by which a shell completes flatout's words."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish", "powershell")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), metavar="|".join(SHELLS))
def command(shell: str) -> None:
    """Print a shell script that completes commands, options, experiments and runs.

    \b
    bash:  flatout completion bash >~/.local/share/bash-completion/completions/flatout
    zsh:   flatout completion zsh >~/.zfunc/_flatout
    fish:  flatout completion fish >~/.config/fish/completions/flatout.fish
    """
    from flatout.cli import shell_completion

    click.echo(shell_completion.script(shell), nl=False)
