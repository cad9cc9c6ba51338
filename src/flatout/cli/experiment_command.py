"""Commands that take an experiment's parameters: as `-s lr=0.1`, and as options, `--lr 0.1`.

The options are those of the experiment named on the same line. Its text is parsed, never run, and
only when needed: for --help, for an option unknown to the command, or for completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flatout.cli.completion_words import PARAMETERS, settings, values_of
from flatout.cli.config_option import defaults_of, merge, read_config
from flatout.errors import FlatoutError, UsageError, nearest_name

if TYPE_CHECKING:
    from flatout.runs.api import ConfigFile
    from flatout.runs.experiment_params import Parameter

_PREFIX = "parameter_"
_METAVARS = {"int": "INT", "float": "FLOAT", "str": "TEXT", "bool": "BOOL", "None": "none"}
_OPTIONS, _EXPERIMENT = "flatout.options", "flatout.experiment"

set_parameters = click.option(
    "-s", "settings", multiple=True, metavar="KEY=VALUE", shell_complete=settings,
    help="Set a parameter of the experiment; the same as `--KEY VALUE`.",
)  # fmt: skip


class _Named(NamedTuple):
    """The experiment on a command line. error: why its parameters are unknown."""

    experiment: str
    parameters: tuple[Parameter, ...] = ()
    error: FlatoutError | None = None


class ExperimentCommand(click.Command):
    """A command whose first argument names an experiment, or (is_of_run) a run of one."""

    is_of_run = False

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Adds the options of the experiment that is named; their values become settings."""
        config = None if context.resilient_parsing else read_config(self, arguments)
        if config is not None:
            context.default_map = defaults_of(self, context, config)
        named = self._named(context, arguments, config)
        context.meta[PARAMETERS] = named.parameters
        context.meta[_EXPERIMENT] = named.experiment
        context.meta[_OPTIONS] = options = list(self._options(named.parameters))
        try:
            rest = super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            if named.error is not None:
                raise named.error from error
            if not named.experiment or not error.option_name.startswith("--"):
                raise
            names = [name for option in self.get_params(context) for name in option.opts]
            # Without the dashes, which all options share.
            bare = {name[2:]: name for name in names if name[:2] == "--"}
            near = nearest_name(error.option_name[2:], bare)
            raise UsageError(
                "wrong-usage",
                f"`{error.option_name}` is neither an option of `{context.command_path}` nor a "
                f"parameter of {named.experiment}.",
                fix=f"did you mean `{bare[near]}`?"
                if near
                else f"{context.command_path} {named.experiment} --help",
            ) from error
        given = [context.params.pop(option.name, None) for option in options if option.name]
        pairs = [
            pair
            for option, value in zip(options, given, strict=True)
            for pair in _pairs(str(option.name).removeprefix(_PREFIX), value)
        ]
        context.params["settings"] = (*(context.params.get("settings") or ()), *pairs)
        if config is not None:
            merge(context, config, named.parameters or None)
        return rest

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """The parameters of the command, then those of the experiment."""
        return [*super().get_params(context), *context.meta.get(_OPTIONS, ())]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own, then the parameters with their types, defaults and what they are."""
        own = context.meta.pop(_OPTIONS, [])
        super().format_options(context, formatter)
        context.meta[_OPTIONS] = own
        parameters: Sequence[Parameter] = context.meta.get(PARAMETERS, ())
        if not parameters:
            return
        by_name = {str(option.name).removeprefix(_PREFIX): option for option in own}
        with formatter.section(f"Parameters of {context.meta[_EXPERIMENT]}"):
            formatter.write_dl(
                [_help_of(parameter, by_name.get(parameter.name)) for parameter in parameters]
            )

    def _named(
        self, context: click.Context, arguments: Sequence[str], config: ConfigFile | None
    ) -> _Named:
        own = {name: option for option in super().get_params(context) for name in option.opts}
        words, unknown = _words(arguments, own)
        if config is not None and isinstance(experiment := config.options.get("experiment"), str):
            words.append(experiment)
        is_help = any(word in context.help_option_names for word in arguments)
        is_needed = unknown or is_help or (config is not None and config.settings)
        if not words or not (is_needed or context.resilient_parsing):
            return _Named("")
        first: _Named | None = None
        # An unknown option's value may stand before the experiment: `--lr 0.1 digits`.
        for word in words:
            try:
                return _Named(word, self._parameters_of(word))
            except FlatoutError as error:
                first = first or _Named(word, error=error)
        return first or _Named("")

    def _parameters_of(self, word: str) -> tuple[Parameter, ...]:
        from flatout.runs import listing

        return listing.parameters_of_run(word) if self.is_of_run else listing.parameters_of(word)

    def _options(self, parameters: Sequence[Parameter]) -> Iterator[click.Option]:
        taken = {
            name
            for parameter in self.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        taken |= {"--help"}
        for parameter in parameters:
            names = _option_names(parameter)
            every = {part for name in names for part in name.split("/")}
            if not parameter.is_settable or every & taken:
                continue
            taken |= every
            if parameter.is_flag:
                yield click.Option(
                    [*names, _PREFIX + parameter.name], default=None, help=parameter.doc
                )
            else:
                yield click.Option(
                    [*names, _PREFIX + parameter.name], multiple=True, metavar=_metavar(parameter),
                    help=parameter.doc, shell_complete=_values(values_of(parameter)),
                )  # fmt: skip


class RunCommand(ExperimentCommand):
    """A command whose first argument names a run, whose experiment's parameters it takes."""

    is_of_run = True


def _words(
    arguments: Sequence[str], own: dict[str, click.Parameter]
) -> tuple[list[str], list[str]]:
    """The words that may be the experiment, and the options that the command does not have."""
    words, unknown = [], []
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif not argument.startswith("-"):
            words.append(argument)
        else:
            option = own.get(argument.partition("=")[0] if argument[:2] == "--" else argument[:2])
            if option is None:
                unknown.append(argument)
            elif argument in own:
                is_value = isinstance(option, click.Option) and not option.is_flag
    return words, unknown


def _option_names(parameter: Parameter) -> list[str]:
    names = dict.fromkeys([parameter.name.replace("_", "-"), parameter.name])
    if parameter.is_flag:
        return [f"--{name}/--no-{name}" for name in names]
    return [f"--{name}" for name in names]


def _pairs(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"{name}={str(value).lower()}"]
    return [f"{name}={text}" for text in value or ()]


def _metavar(parameter: Parameter) -> str:
    kinds = [_METAVARS[kind] for kind in reversed(parameter.kinds)]
    return "|".join([*map(str, parameter.choices), *kinds])


def _help_of(parameter: Parameter, option: click.Option | None) -> tuple[str, str]:
    """A parameter as it is written, and what is known of it."""
    notes = [f"default: {parameter.default}" if parameter.default is not None else "required"]
    if not parameter.is_settable:
        name = parameter.name
        notes.append(f"is a {parameter.annotation}: set it in the file")
    elif option is None:
        name = f"-s {parameter.name}={_metavar(parameter)}"
        notes.append("only with -s: the command has an option of that name")
    else:
        name = option.opts[0]
        name += f" / {option.secondary_opts[0]}" if parameter.is_flag else f" {_metavar(parameter)}"
    return name, f"{parameter.doc or ''}  [{'; '.join(notes)}]".strip()


def _values(values: list[str]) -> Any:
    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete
