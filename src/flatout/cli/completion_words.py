"""The completions of a word in a shell: experiments, runs and parameters. Runs none of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from flatout.runs.experiment_params import Parameter

# Under this name a command keeps the parameters of the experiment that was named.
PARAMETERS = "flatout.parameters"


def experiments(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Built-ins by their names, Python files, and the folders on the way to them."""
    from flatout.runs import experiment_source

    return _items([*experiment_source.built_in_names(), *_files(incomplete, ".py")], incomplete)


def runs(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Ids of runs, the newest first, and `last`; folders once a path is being written."""
    from flatout.runs import listing

    if any(sign in incomplete for sign in (os.sep, os.altsep) if sign):
        return _items(_files(incomplete, None), incomplete)
    return _items([*reversed(listing.run_ids()), "last"], incomplete)


def runs_or_experiments(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Both, for a command that takes either."""
    return [*runs(context, option, incomplete), *experiments(context, option, incomplete)]


def weights(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Runs, and files of weights."""
    files = _items(_files(incomplete, ".safetensors"), incomplete)
    return list(
        {item.value: item for item in [*runs(context, option, incomplete), *files]}.values()
    )


def config_files(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """TOML files, and the folders on the way to them."""
    return _items(_files(incomplete, ".toml"), incomplete)


def settings(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """`name=` of each parameter of the experiment; behind it its values, where they are few."""
    from click.shell_completion import CompletionItem

    parameters: Sequence[Parameter] = context.meta.get(PARAMETERS, ())
    name, equals, _ = incomplete.partition("=")
    if equals:
        return [
            item for parameter in parameters if parameter.name == name
            for item in _items([f"{name}={value}" for value in values_of(parameter)], incomplete)
        ]  # fmt: skip
    return [
        CompletionItem(f"{parameter.name}=", help=parameter.doc)
        for parameter in parameters
        if parameter.is_settable and parameter.name.startswith(incomplete)
    ]


def values_of(parameter: Parameter) -> list[str]:
    """Every value that a parameter can have, where they are few; else none."""
    values = [str(choice) for choice in parameter.choices]
    if "bool" in parameter.kinds:
        values += ["true", "false"]
    if values and "None" in parameter.kinds:
        values.append("none")
    return values


def _items(words: Sequence[str], incomplete: str) -> list[CompletionItem[str]]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _files(incomplete: str, ending: str | None) -> list[str]:
    """Files of that ending below what is written already, and folders with their separator."""
    folder, beginning = os.path.split(incomplete)
    paths = []
    try:
        with os.scandir(os.path.expanduser(folder) or os.curdir) as entries:
            for entry in entries:
                if entry.name.startswith(".") and not beginning.startswith("."):
                    continue
                if entry.is_dir():
                    paths.append(os.path.join(folder, entry.name, ""))
                elif ending is not None and entry.name.endswith(ending):
                    paths.append(os.path.join(folder, entry.name))
    except OSError:
        return []
    return sorted(paths)
