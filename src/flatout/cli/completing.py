"""Completion in shells: the scripts, and the answers to what they ask.

Click knows zsh, fish and PowerShell well. In bash it takes `lr=0.1` for three words.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from flatout.errors import FlatoutError, UsageError

# Set by a script that asks, with the shell in it.
VARIABLE = "_FLATOUT_COMPLETE"

_BASH = """\
# Completion of flatout for bash.
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(
        COMP_WORDS="${COMP_LINE:0:$COMP_POINT}" %(complete_var)s=bash_complete "$1" 2>/dev/null
    )
    # More is to be written behind a parameter's name and a folder's.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
# Before 4.4 bash sorts; where nothing is known it offers files.
complete -o nosort -o default -F %(complete_func)s %(prog_name)s 2>/dev/null ||
    complete -o default -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    """bash ends a word at `=` and `:`, and replaces only what stands behind the last of them."""

    source_template = _BASH
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_WORDS", "")
        words = split_arg_string(line)
        incomplete = "" if not words or line[-1:].isspace() else words.pop()
        self._kept = incomplete[: max(incomplete.rfind("="), incomplete.rfind(":")) + 1]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # Behind `--size=` click offers the value alone; behind `-s size=` we offer all of it.
        value = str(item.value).removeprefix(self._kept)
        return shlex.quote(value) if any(sign in value for sign in " '\"$&;()") else value


def script(shell: str) -> str:
    """The script that a shell reads, so that it asks flatout.

    Raises:
        UsageError: wrong-usage.
    """
    kind = _kind(shell)
    if kind is None:
        raise UsageError(
            "wrong-usage",
            f"this version of click knows no completion for {shell}.",
            because="PowerShell needs click 8.5 or later",
            fix="install a newer click beside flatout: pip install --upgrade click",
        )
    own = kind(click.Command("flatout"), {}, "flatout", VARIABLE)
    # Not `own.source()`, which starts bash to ask for its version.
    return ShellComplete.source(own)


def answer(command: click.Command, instruction: str) -> int:
    """Prints what the shell may offer; nothing where the line cannot be understood."""
    shell = instruction.partition("_")[0]
    kind = _kind(shell)
    if kind is None:
        return 1
    try:
        print(kind(command, {}, "flatout", VARIABLE).complete())
    except (FlatoutError, click.ClickException, OSError, KeyError, ValueError):
        # An error in the middle of a line that is being typed would only be in the way.
        return 1
    return 0


def _kind(shell: str) -> type[ShellComplete] | None:
    add_completion_class(_Bash)
    return get_completion_class(shell)
