"""The ranges and choices in `-s name=value`: what a sweep varies, and what is the same in all."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_DOWN, Context, Decimal

from flatout.errors import UsageError, nearest
from flatout.runs.experiment_params import Parameter, convert, parse_settings
from flatout.schema.experiment_spec import Value
from flatout.schema.key_values import split_pairs
from flatout.schema.suggested_command import typed_value
from flatout.schema.sweep import Choices, Range, Space

_NUMBER = r"[+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::[^:]*)*)")
_MOST_VALUES = 100_000


def parse_space(
    parameters: Sequence[Parameter], settings: Sequence[str]
) -> tuple[tuple[str, ...], Space]:
    """Settings that are the same in all trials, and what the others vary.

    Raises:
        UsageError: bad-sweep-range, sweep-varies-nothing, and what parse_settings says.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    fixed: list[str] = []
    space: Space = {}
    for name, text in split_pairs(settings, "-s"):
        if name not in by_name:
            raise UsageError(
                "unknown-parameter", f"the experiment has no parameter `{name}`.",
                fix=nearest(name, by_name),
            )  # fmt: skip
        varied = _varied(by_name[name], text)
        if varied is None:
            fixed.append(f"{name}={text}")
        else:
            space[name] = varied
    # Refuses what the first trial would be refused for.
    first = {name: next(values_of(one)) for name, one in space.items()}
    parse_settings(parameters, [*fixed, *settings_of(first)])
    if not space:
        name = next((one.name for one in parameters if "float" in one.kinds), "lr")
        raise UsageError(
            "sweep-varies-nothing",
            "no parameter has a range or several values, so all trials would be the same.",
            fix=f"give one, such as -s {name}=1e-4..1e-2:log",
        )
    return tuple(fixed), space


def settings_of(values: dict[str, Value]) -> tuple[str, ...]:
    """Values as `-s` takes them."""
    return tuple(f"{name}={typed_value(value)}" for name, value in values.items())


def grid(space: Space) -> list[dict[str, Value]]:
    """Every combination of the values of a space, the last parameter the fastest.

    Raises:
        UsageError: bad-sweep-range.
    """
    for name, one in space.items():
        if isinstance(one, Range) and one.step is None:
            step = _quarter(one)
            raise _bad_range(
                f"`{name}` has no step, and a grid needs one.",
                f"-s {name}={_text(one)}:step={typed_value(step)}, or several "
                f"values: -s {name}={typed_value(one.low)},{typed_value(one.high)}",
            )
    num_points = num_combinations(space)
    assert num_points is not None, "each range has a step"
    if num_points > _MOST_VALUES:
        raise _bad_range(
            f"the grid has {num_points:,} points; at most {_MOST_VALUES:,} are possible.",
            "use larger steps, or --sampler random",
        )
    names = list(space)
    return [
        dict(zip(names, point, strict=True))
        for point in itertools.product(*(tuple(values_of(one)) for one in space.values()))
    ]


def num_combinations(space: Space) -> int | None:
    """How many combinations of values a space has; None with a range without a step."""
    if any(isinstance(one, Range) and one.step is None for one in space.values()):
        return None
    return math.prod(num_values(one) for one in space.values())


def values_of(one: Range | Choices) -> Iterator[Value]:
    """The values of a parameter; of a range without a step its bounds."""
    if isinstance(one, Choices):
        yield from one.values
    elif one.step is None:
        yield from (one.low, one.high)
    else:
        low, step = Decimal(str(one.low)), Decimal(str(one.step))
        for number in range(num_values(one)):
            value = low + number * step
            yield int(value) if one.is_int else float(value)


def num_values(one: Range | Choices) -> int:
    """How many values a parameter with a step or choices has."""
    if isinstance(one, Choices):
        return len(one.values)
    if one.step is None:
        return 2
    low, high, step = (Decimal(str(number)) for number in (one.low, one.high, one.step))
    return int((high - low) // step) + 1


def _varied(parameter: Parameter, text: str) -> Range | Choices | None:
    """What a text lets vary; None for a single value."""
    has_numbers = bool({"int", "float"} & set(parameter.kinds))
    if has_numbers and ".." in text:
        match = _RANGE.fullmatch(text)
        if match is not None:
            return _range(parameter, *match.groups())
        if "str" not in parameter.kinds:
            raise _bad_range(
                f"`{parameter.name}={text}` is not a range.",
                f"write it like {parameter.name}=1..8, {parameter.name}=1e-4..1e-2:log or "
                f"{parameter.name}=0..1:step=0.25",
            )
    if "," not in text:
        return None
    values = tuple(convert(parameter, part.strip()) for part in text.split(","))
    if len(set(map(typed_value, values))) < len(values):
        raise _bad_range(f"`{parameter.name}={text}` has a value twice.", "give each once")
    return Choices(values=values)


def _range(parameter: Parameter, low_text: str, high_text: str, rest: str) -> Range:
    name = parameter.name
    typed = f"{name}={low_text}..{high_text}{rest}"
    low, high = (_number(parameter, text) for text in (low_text, high_text))
    is_int = "float" not in parameter.kinds
    is_log, step = False, None
    for word in rest.split(":")[1:]:
        if word == "log":
            is_log = True
        elif word.startswith("step="):
            step = _number(parameter, word.removeprefix("step="))
        else:
            raise _bad_range(
                f"`{typed}` has an unknown ending `:{word}`.", "use :log or :step=NUMBER"
            )
    if low >= high:
        problem = "its bounds the wrong way round" if low > high else "two equal bounds"
        fix = f"-s {name}={high_text}..{low_text}{rest}" if low > high else f"-s {name}={low_text}"
        raise _bad_range(f"`{typed}` has {problem}.", fix)
    if is_log and low <= 0:
        raise _bad_range(
            f"`{typed}` is logarithmic, and begins at {low_text}.",
            "begin above 0, or leave out :log",
        )
    if is_log and step is not None:
        raise _bad_range(f"`{typed}` has both :log and :step.", "leave out one of them")
    if step is not None and not 0 < step <= high - low:
        raise _bad_range(
            f"`{typed}` has a step that does not fit into it.", "use a step between 0 and its width"
        )
    if is_int and not is_log:
        step = step or 1
    return Range(low=low, high=high, step=step, is_log=is_log, is_int=is_int)


def _number(parameter: Parameter, text: str) -> int | float:
    """A bound or a step by the type of the parameter.

    Raises:
        UsageError: bad-parameter-value.
    """
    kind = "float" if "float" in parameter.kinds else "int"
    value = convert(Parameter(name=parameter.name, kinds=(kind,), annotation=kind), text)
    assert isinstance(value, int | float)
    return value


def _quarter(one: Range) -> int | float:
    """A step of about a quarter of a range; with few digits, and four of them fit into it."""
    quarter = (Decimal(str(one.high)) - Decimal(str(one.low))) / 4
    if one.is_int:
        return max(1, round(quarter))
    return float(Context(prec=3, rounding=ROUND_DOWN).plus(quarter))


def _text(one: Range) -> str:
    return f"{typed_value(one.low)}..{typed_value(one.high)}"


def _bad_range(problem: str, fix: str) -> UsageError:
    return UsageError("bad-sweep-range", problem, fix=fix)
