"""Completion in shells: the scripts, and the replies to their requests.

Click knows zsh, fish and PowerShell well. In bash it takes `lr=0.1` for three words.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
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
from flatout.schema.shell_quoting import powershell_word

# Set by a script that requests completions, with the shell in it.
VARIABLE = "_FLATOUT_COMPLETE"
_HOME = re.compile(r"~[\w.-]*/")

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
    # A parameter's name or a folder's is not the end of the word.
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
    _is_in_quotes = False

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_WORDS", "")
        words = split_arg_string(line)
        incomplete = "" if not words or line[-1:].isspace() else words.pop()
        self._kept = incomplete[: max(incomplete.rfind("="), incomplete.rfind(":")) + 1]
        self._is_in_quotes = _has_quotes(line)
        return words[1:], incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        items = super().get_completions(args, incomplete)
        # bash would put one pair of quotes into the other, and run what is between them.
        return [item for item in items if not self._is_in_quotes or _is_plain(str(item.value))]

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # Behind `--size=` click offers the value alone; behind `-s size=` we offer all of it.
        value = str(item.value).removeprefix(self._kept)
        # What bash itself is to replace by a folder, and what it looks for at the end of one.
        home = _HOME.match(value) if value.startswith("~") and not self._kept else None
        start = home[0] if home and _typed_home() else ""
        end = "/" if value.endswith("/") and value != start else ""
        name = value[len(start) : len(value) - len(end)]
        return start + (shlex.quote(name) if name else "") + end


def _is_plain(value: str) -> bool:
    return shlex.quote(value) == value


def _has_quotes(line: str) -> bool:
    """Whether quotes were opened in the last word of a line, be they closed or not."""
    quote, has_quotes, is_escaped = "", False, False
    for sign in line:
        if is_escaped:
            is_escaped = False
        elif sign == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote, has_quotes = sign, True
        elif sign.isspace():
            has_quotes = False
    return has_quotes


def _typed_home() -> bool:
    """Whether the word that is being typed begins with `~`, not quoted."""
    return os.environ.get("COMP_WORDS", "").rpartition(" ")[2].startswith("~")


def script(shell: str) -> str:
    """The script that a shell reads, so that it calls flatout.

    Raises:
        UsageError: wrong-usage.
    """
    kind = _kind(shell)
    if kind is None:
        raise UsageError(
            "wrong-usage",
            f"this version of click has no completion for {shell}.",
            because="PowerShell needs click 8.5 or later",
            fix="install a newer click in flatout's environment: pip install --upgrade click",
        )
    own = kind(click.Command("flatout"), {}, "flatout", VARIABLE)
    # Not `own.source()`, which starts bash to read its version.
    return ShellComplete.source(own)


def print_completions(command: click.Command, instruction: str) -> int:
    """Prints what the shell may offer; nothing where the line cannot be understood."""
    shell = instruction.partition("_")[0]
    kind = _kind(shell)
    if kind is None:
        return 1
    try:
        print("\n".join(_completions(kind(command, {}, "flatout", VARIABLE))))
    except (FlatoutError, click.ClickException, OSError, KeyError, ValueError):
        # An error in the middle of a line that is being typed would only be in the way.
        return 1
    return 0


def _completions(shell: ShellComplete) -> Iterator[str]:
    for item in shell.get_completions(*shell.get_completion_args()):
        # A line break would end the reply, and the terminal would obey an escape sequence.
        if not str(item.value).isprintable():
            continue
        if shell.name == "powershell" and item.type == "plain":
            item.value = powershell_word(str(item.value))
        yield shell.format_completion(item)


def _kind(shell: str) -> type[ShellComplete] | None:
    add_completion_class(_Bash)
    return get_completion_class(shell)
