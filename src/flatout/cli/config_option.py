"""`--config FILE`: options of a command from a TOML file, below those that are typed.

A command has it with `@config_file` and `cls=ExperimentCommand`; its `config` is then what was
used, or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flatout.cli import completion_words

if TYPE_CHECKING:
    from flatout.runs.api import ConfigFile
    from flatout.runs.experiment_params import Parameter

_NAME = "config"
# Of these only one can be used: what is typed replaces the other one of the file.
_RIVALS = {"epochs": "steps", "steps": "epochs", "python": "env", "env": "python"}
# Options that set a field of the recipe.
_FIELDS = {"device": "device", "on_oom": "out_of_memory"}

config_file = click.option(
    "--config", _NAME, metavar="FILE", shell_complete=completion_words.config_files,
    help="Read options from a TOML file; those typed take precedence.",
)  # fmt: skip


def read_config(command: click.Command, arguments: Sequence[str]) -> ConfigFile | None:
    """The file that is named on a command line.

    Raises:
        UsageError: bad-config, and what keeps the file from being read.
    """
    if all(parameter.name != _NAME for parameter in command.params):
        return None
    names = [word.partition("=")[2] for word in arguments if word.startswith("--config=")]
    names += [word for before, word in zip(arguments, arguments[1:], strict=False)
              if before == "--config"]  # fmt: skip
    if not names:
        return None
    # Only here: it loads what --help has no use for.
    from pathlib import Path

    from flatout.runs import api as runs_api

    return runs_api.ConfigFile(Path(names[-1]).expanduser())


def defaults_of(
    command: click.Command, context: click.Context, config: ConfigFile
) -> dict[str, Any]:
    """What a file sets, for click to use where nothing is typed.

    Raises:
        UsageError: bad-config.
    """
    known = _options_by_key(command)
    config.check_names(config.options, known, f"an option of `{context.command_path}`")
    return {
        str(known[key].name): _checked(context, config, key, known[key]) for key in config.options
    }


def _options_by_key(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of a command by their names in a file; `-s` and `--use` are its tables."""
    return {
        name.removeprefix("--"): parameter
        for parameter in command.params
        for name in parameter.opts
        if parameter.name not in (_NAME, "settings", "uses")
    }


def _checked(
    context: click.Context, config: ConfigFile, key: str, parameter: click.Parameter
) -> Any:
    from flatout.schema.suggested_command import typed_value

    value = config.options[key]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise config.wrong(key, f"`{key}` needs `true` or `false`", fix=f"{key} = true")
        return value
    is_many = isinstance(parameter, click.Option) and parameter.multiple
    values = value if is_many and isinstance(value, list) else [value]
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values):
        raise config.wrong(key, f"`{key}` needs a single value", fix="write a number or a text")
    texts = [typed_value(one) for one in values]
    given = texts if is_many else texts[0]
    try:
        parameter.type_cast_value(context, given)
    except click.BadParameter as error:
        problem = f"`{key}`: {error.message.rstrip('.')}"
        raise config.wrong(key, problem, fix=f"see: {context.command_path} --help") from error
    return given


def merge(
    context: click.Context, config: ConfigFile, parameters: Sequence[Parameter] | None
) -> None:
    """Adds the tables of a file to what was typed, and keeps what was used of the file.

    parameters: of the experiment; None where they are unknown.

    Raises:
        UsageError: bad-config.
    """
    from flatout.schema.experiment_spec import UsedConfig
    from flatout.schema.recipe import recipe_fields

    if parameters is not None:
        names = {parameter.name for parameter in parameters}
        config.check_names(config.settings, names, "a parameter of the experiment", "set")
    config.check_names(config.uses, recipe_fields(), "a field of the recipe", "use")
    params, source = context.params, context.get_parameter_source
    typed = {name for name in params if source(name) is ParameterSource.COMMANDLINE}
    fields = _names_of(params["uses"]) | {_FIELDS[name] for name in typed & _FIELDS.keys()}
    used = {}
    for key, option in _options_by_key(context.command).items():
        name = str(option.name)
        if source(name) is not ParameterSource.DEFAULT_MAP:
            continue
        if _RIVALS.get(name) in typed or _FIELDS.get(name) in fields:
            params[name] = "auto" if name == "device" else None
        else:
            used[key] = _shown(config.options[key])
    for name, table, values, given in (
        ("settings", "set", config.settings, _names_of(params["settings"])),
        ("uses", "use", config.uses, fields),
    ):
        taken = {key: text for key, text in values.items() if key not in given}
        params[name] = (*params[name], *(f"{key}={text}" for key, text in taken.items()))
        used |= {f"{table}.{key}": text for key, text in taken.items()}
    params[_NAME] = UsedConfig(file=str(config.path.absolute()), values=used)


def _names_of(pairs: Sequence[str]) -> set[str]:
    return {pair.partition("=")[0].strip() for pair in pairs}


def _shown(value: Any) -> str:
    """A value for the run's folder: without a password, as an address of `track` may have one."""
    from flatout.schema.addresses import masked
    from flatout.schema.suggested_command import typed_value

    values = value if isinstance(value, list) else [value]
    return masked(", ".join(map(typed_value, values)))
