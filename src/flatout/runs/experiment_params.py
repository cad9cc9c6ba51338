"""The parameters of an experiment, read from its source text without running it.

    def experiment(lr: float = 1e-3, width: int = 128, act: Literal["relu", "gelu"] = "relu"): ...

gives three parameters; `-s lr=3e-4` is then checked and converted before anything is started.
"""

from __future__ import annotations

import ast
import io
import math
import re
import textwrap
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.experiment_spec import Value
from flatout.schema.key_values import split_pairs

# In the order in which a text is tried for a union: `int | str` takes 3 as a number.
_KINDS = ("None", "bool", "int", "float", "str")
_EXPECTED = {
    "None": "none",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "a text",
}
# What `ast.literal_eval` raises for anything but a plain value: a call, `{[]: 1}`, too deep a nest.
_NOT_PLAIN = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
# Until Python 3.12.2, `ast.parse` fails where two threads use it at the same time.
# Source: https://github.com/python/cpython/issues/106905
_PARSING = threading.Lock()
_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of `experiment(...)`.

    kinds: types a text may become, of None, bool, int, float and str; empty where the annotation
        is something else, which cannot be set from the command line.
    choices: the values of a Literal, which are then the only ones (and None, where in kinds).
    annotation, default: as written; default is None for an argument that must be given.
    doc: its description in the function's docstring, else a comment on its line or above it.
    """

    name: str
    kinds: tuple[str, ...] = ()
    choices: tuple[Value, ...] = ()
    annotation: str | None = None
    default: str | None = None
    doc: str | None = None

    @property
    def is_settable(self) -> bool:
        """Whether a text can become its value."""
        return bool(self.kinds or self.choices)

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false, and nothing else."""
        return self.kinds == ("bool",) and not self.choices

    @property
    def default_value(self) -> Value:
        """Its default, where that is a plain value; else the text as it is written."""
        if self.default is None:
            return None
        try:
            with _PARSING:
                value = ast.literal_eval(self.default)
        except _NOT_PLAIN:
            return self.default
        return value if isinstance(value, bool | int | float | str | None) else self.default

    @property
    def expected(self) -> str:
        """The expected form of a value, for people: "a number", "one of: relu, gelu"."""
        words = [f"one of: {', '.join(map(str, self.choices))}"] if self.choices else []
        return " or ".join(words + [_EXPECTED[kind] for kind in reversed(self.kinds)])


def parse_parameters(text: str, file: str) -> tuple[Parameter, ...]:
    """The parameters of the function `experiment` in a file's text.

    Raises:
        UsageError: experiment-syntax-error, no-experiment-function.
    """
    try:
        with _PARSING:
            module = ast.parse(text, filename=file)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _syntax_error(error, file) from error
    functions = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name == "experiment"
    ]
    if not functions:
        raise UsageError(
            "no-experiment-function",
            f"{file} has no function `experiment`.",
            because=_lookalike(module),
            fix="add `def experiment(lr: float = 1e-3) -> flatout.Experiment:` at its top level",
        )
    arguments = functions[-1].args
    docs = _comments(text, arguments) | _docstring_args(ast.get_docstring(functions[-1]) or "")
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    return tuple(
        _parameter(argument, default, docs.get(argument.arg))
        for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True)
    )


def parse_settings(parameters: Sequence[Parameter], settings: Sequence[str]) -> dict[str, Value]:
    """The values of `key=value` texts, by the types of the parameters.

    Raises:
        UsageError: bad-setting, set-twice, unknown-parameter, bad-parameter-value,
            parameter-missing.
    """
    values = _converted(parameters, settings)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is None and parameter.name not in values
    ]
    if needed:
        raise UsageError(
            "parameter-missing",
            f"the experiment needs {', '.join(f'`{name}`' for name in needed)}.",
            because="a parameter without a default needs a value",
            fix=" ".join(f"-s {name}=..." for name in needed),
        )
    return values


def check_values(parameters: Sequence[Parameter], values: Mapping[str, Value]) -> None:
    """Refuses parameters that do not accept the values that a run was started with.

    Raises:
        UsageError: unknown-parameter, parameter-missing.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    for name, value in values.items():
        if name not in by_name:
            raise UsageError(
                "unknown-parameter",
                f"the run was started with `{name}={value}`; the experiment no longer has this "
                "parameter.",
                fix=nearest(name, by_name),
            )
    needed = [
        name
        for name, parameter in by_name.items()
        if parameter.default is None and name not in values
    ]
    if needed:
        raise UsageError(
            "parameter-missing",
            f"the run was started without {', '.join(f'`{name}`' for name in needed)}.",
            because="a parameter without a default needs a value, and a run keeps its parameters",
            fix="give it a default in the file",
        )


def parse_changes(text: str, file: str, settings: Sequence[str]) -> dict[str, Value]:
    """The values of `key=value` texts that differ from those a run was started with.

    Raises:
        UsageError: bad-setting, set-twice, unknown-parameter, bad-parameter-value.
    """
    return _converted(parse_parameters(text, file), settings)


def _converted(parameters: Sequence[Parameter], settings: Sequence[str]) -> dict[str, Value]:
    by_name = {parameter.name: parameter for parameter in parameters}
    values: dict[str, Value] = {}
    for name, text in split_pairs(settings, "-s"):
        if name not in by_name:
            raise UsageError(
                "unknown-parameter",
                f"the experiment has no parameter `{name}`.",
                fix=nearest(name, by_name),
            )
        values[name] = convert(by_name[name], text)
    return values


def convert(parameter: Parameter, text: str) -> Value:
    """A parameter's value from its text.

    Raises:
        UsageError: bad-parameter-value.
    """
    for choice in parameter.choices:
        if text == str(choice):
            return choice
    for kind in parameter.kinds:
        try:
            return _CONVERTERS[kind](text)
        except ValueError:
            continue
    if not parameter.kinds and not parameter.choices:
        raise UsageError(
            "bad-parameter-value",
            f"`{parameter.name}` cannot be set from the command line.",
            because=f"it is a {parameter.annotation}; -s can set bool, int, float or str",
            fix="change its default in the file, or use one of those types",
        )
    raise UsageError(
        "bad-parameter-value",
        f"`{parameter.name}={text}` is not a valid value for this parameter.",
        because=f"`{parameter.name}` is annotated as `{parameter.annotation}`"
        if parameter.annotation
        else f"its default is {parameter.default}",
        fix=f"give {parameter.expected}",
    )


def _none(text: str) -> None:
    if text.lower() not in ("none", "null"):
        raise ValueError(text)


def _bool(text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise ValueError(text)
    return _BOOLS[text.lower()]


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        # 1e3 is how people write a thousand steps.
        number = _float(text)
        if not number.is_integer():
            raise
        return int(number)


def _float(text: str) -> float:
    number = float(text)
    # JSON, which carries the value to the worker, has neither NaN nor infinity.
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_CONVERTERS: dict[str, Callable[[str], Value]] = {
    "None": _none,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": str,
}


def _docstring_args(text: str) -> dict[str, str]:
    """The texts on each argument in the section `Args:` of a docstring (Google's form)."""
    section = re.search(r"^(?:Args|Arguments|Parameters):[ ]*\n((?:[ \t]+.*\n?|\n)+)", text, re.M)
    if section is None:
        return {}
    parts_of: dict[str, list[str]] = {}
    lines = [line for line in textwrap.dedent(section[1]).splitlines() if line.strip()]
    for line in lines:
        entry = re.match(r"(\*{0,2}\w+(?:, *\w+)*)\s*(?:\([^)]*\))?:\s*(.*)", line)
        if entry:
            words = parts_of.setdefault(entry[1].lstrip("*"), [])
            words.append(entry[2].strip())
        elif parts_of:
            words.append(line.strip())
    # One line may be about several: `width, depth: of the model.`
    return {
        name.strip(): doc
        for names, parts in parts_of.items()
        if (doc := " ".join(filter(None, parts)))
        for name in names.split(",")
    }


def _comments(text: str, arguments: ast.arguments) -> dict[str, str]:
    """The comment on each argument's line, else those on the lines right above it."""
    lines = text.splitlines()
    by_line: dict[int, tuple[int, str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                by_line[token.start[0]] = (token.start[1], token.string.lstrip("#: ").strip())
    except (tokenize.TokenError, SyntaxError):
        return {}
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    on_line = Counter(argument.lineno for argument in every)
    comments: dict[str, str] = {}
    for argument in every:
        number = argument.lineno
        if on_line[number] > 1:
            continue
        if number in by_line:
            comments[argument.arg] = by_line[number][1]
            continue
        above: list[str] = []
        while (number := number - 1) in by_line and not lines[number - 1][
            : by_line[number][0]
        ].strip():
            above.insert(0, by_line[number][1])
        if above:
            comments[argument.arg] = " ".join(above)
    return {name: doc for name, doc in comments.items() if doc and not _is_for_tools(doc)}


def _is_for_tools(comment: str) -> bool:
    return comment.startswith(("noqa", "type:", "fmt:", "pylint:", "pyright:", "mypy:", "ruff:"))


def _parameter(argument: ast.arg, default: ast.expr | None, doc: str | None) -> Parameter:
    names: set[str] = set()
    choices: list[Value] = []
    if argument.annotation is not None:
        is_known = _read_annotation(argument.annotation, names, choices)
    else:
        is_known = _read_default(default, names)
    return Parameter(
        name=argument.arg,
        kinds=tuple(kind for kind in _KINDS if kind in names) if is_known else (),
        choices=tuple(choices) if is_known else (),
        annotation=ast.unparse(argument.annotation) if argument.annotation else None,
        default=ast.unparse(default) if default is not None else None,
        doc=doc,
    )


def _read_annotation(node: ast.expr, names: set[str], choices: list[Value]) -> bool:
    """Adds an annotation's types and choices; False for one that a text cannot become."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            with _PARSING:
                inside = ast.parse(node.value, mode="eval").body
            return _read_annotation(inside, names, choices)
        except SyntaxError:
            return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [_read_annotation(side, names, choices) for side in (node.left, node.right)]
        return all(sides)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        outer = _last_name(node.value)
        if outer == "Literal":
            return all(_read_choice(item, names, choices) for item in inner)
        if outer == "Optional":
            names.add("None")
        if outer in ("Optional", "Union"):
            return all(_read_annotation(item, names, choices) for item in inner)
        return False
    name = "None" if isinstance(node, ast.Constant) and node.value is None else _last_name(node)
    names.add(name)
    return name in _KINDS


def _read_choice(node: ast.expr, names: set[str], choices: list[Value]) -> bool:
    value = _literal(node)
    if value is None and isinstance(node, ast.Constant):
        names.add("None")
        return True
    choices.append(value)
    return isinstance(value, bool | int | float | str)


def _read_default(default: ast.expr | None, names: set[str]) -> bool:
    """Types of an argument without annotation: those of its default, where that is plain."""
    value = _literal(default) if default is not None else ""
    if value is None:
        # `def experiment(limit=None)` does not show its other types.
        names.update(_KINDS)
        return isinstance(default, ast.Constant)
    names.add(type(value).__name__)
    return type(value).__name__ in _KINDS


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except _NOT_PLAIN:
        return None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _lookalike(module: ast.Module) -> str | None:
    functions = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    if any(
        isinstance(node, ast.AsyncFunctionDef) and node.name == "experiment" for node in module.body
    ):
        return "its `experiment` is an async function"
    if any("experiment" in _assigned(node) for node in module.body):
        return "its `experiment` is a variable, and flatout calls a function that builds it"
    return f"its functions are: {', '.join(functions)}" if functions else None


def _assigned(node: ast.stmt) -> list[str]:
    """The names that a statement assigns to."""
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _syntax_error(error: Exception, file: str) -> UsageError:
    number = error.lineno if isinstance(error, SyntaxError) else None
    location = f"{file}, line {number}," if number is not None else file
    line = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
    reason = error.msg if isinstance(error, SyntaxError) else str(error) or "nested too deeply"
    return UsageError(
        "experiment-syntax-error",
        f"{location} is not valid Python.",
        because=f"{reason}: {line}" if line else reason,
        fix="fix that line",
    )
