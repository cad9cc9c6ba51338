"""Preprocessing that is computed from the training data and kept with the run.

    @data.fitted
    def mean() -> float:
        return float(table().tensors[0].mean())

Predicting, evaluating and resuming read the value from the run's folder, so they give the same
result if the training data has changed since, and predicting works without that data.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import threading
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import torch
from torch import Tensor

from flatout.errors import UsageError
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

# How JSON holds a tensor: bytes lose no digits.
_TENSOR = "__tensor__"


class _Kept:
    """The values of one run: as stored in its file, and as used here."""

    def __init__(self, file: Path, *, is_written: bool) -> None:
        self.file = file
        # A loader worker is a copy of this process and must not write.
        self._writer = os.getpid() if is_written else None
        self._values: dict[str, Any] = atomic_files.read_json(file, dict) if file.is_file() else {}
        self._used: dict[str, Any] = {}
        self._modules: dict[str, str] = {}

    def value(self, name: str, function: Callable[..., Any], compute: Callable[[], Any]) -> Any:
        """The run's value; computed and kept if it has none yet."""
        if self._modules.setdefault(name, function.__module__) != function.__module__:
            raise UsageError(
                "preprocessing-not-kept",
                f"two fitted functions are named `{name}`.",
                because=f"in {self._modules[name]} and in {function.__module__}; a run stores what "
                "they return by name",
                fix="rename one of them",
            )
        if name in self._used:
            return self._used[name]
        if name not in self._values:
            self._values[name] = _plain(name, compute())
            if self._writer == os.getpid():
                atomic_files.write_json(self.file, self._values)
        self._used[name] = _used(name, self._values[name], _kind(function))
        return self._used[name]


_here: _Kept | None = None
# A fitted function may call another one.
_lock = threading.RLock()


@contextlib.contextmanager
def fitted_for(folder: RunFolder, *, is_written: bool = False) -> Iterator[None]:
    """Makes fitted functions return the values of this run.

    Args:
        folder: of the run.
        is_written: stores missing values in it; otherwise the folder is only read.
    """
    global _here
    before = _here
    if before is None or before.file != folder.preprocessing:
        _here = _Kept(folder.preprocessing, is_written=is_written)
    try:
        yield
    finally:
        _here = before


def fitted(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Keeps what a function computes from the training data with the run.

    When a run starts, the function is called and its result is written to `preprocessing.json` in
    the run's folder. `flatout predict`, `flatout evaluate` and a resume read it from there.

    Args:
        function: returns numbers, texts, tensors, or lists, tuples, dicts and dataclasses of them.
            Annotate its return type: without it, tuples come back as lists. Its arguments, if
            any, must be of these types too.

    Returns:
        The function, which computes each value only once.

    Raises:
        UsageError: preprocessing-not-kept, preprocessing-does-not-fit; by the function.
    """
    elsewhere: dict[str, Any] = {}

    @functools.wraps(function)
    def cached(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        name = _name(function, args, kwargs)
        with _lock:
            if _here is not None:
                value: Value = _here.value(name, function, lambda: function(*args, **kwargs))
                return value
            if name not in elsewhere:
                plain = _plain(name, function(*args, **kwargs))
                elsewhere[name] = _used(name, plain, _kind(function))
            fitted: Value = elsewhere[name]
            return fitted

    return cached


def _name(function: Callable[..., Any], args: Any, kwargs: Any) -> str:
    if not args and not kwargs:
        return function.__name__
    given = [json.dumps(_plain(function.__name__, value)) for value in args]
    given += [f"{key}={json.dumps(_plain(key, value))}" for key, value in sorted(kwargs.items())]
    return f"{function.__name__}({', '.join(given)})"


def _kind(function: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(function).get("return", Any)
    except NameError:  # The annotation uses names that exist only inside a function.
        return Any


def _plain(name: str, value: Any) -> Any:
    """A value in the form that JSON holds.

    Raises:
        UsageError: preprocessing-not-kept.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encoded))
    except (TypeError, NotImplementedError, ValueError, RecursionError) as error:
        raise UsageError(
            "preprocessing-not-kept",
            f"a run cannot keep what `{name}` returned, {_named(value)}.",
            because=str(error) or type(error).__name__,
            fix="return numbers, strings, tensors, or lists, dicts and dataclasses of them",
        ) from error


def _named(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _encoded(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, Tensor):
        raise NotImplementedError(f"{_named(value)} is not made of numbers, strings or tensors")
    plain = value.detach().cpu().contiguous()
    content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        _TENSOR: str(plain.dtype).removeprefix("torch."),
        "shape": list(plain.shape),
        "data": base64.b64encode(content).decode(),
    }


def _used(name: str, plain: Any, kind: Any) -> Any:
    """Converts a JSON value to the function's return type.

    Raises:
        UsageError: preprocessing-does-not-fit.
    """
    try:
        value = _with_tensors(plain)
        return value if kind is Any else msgspec.convert(
            value, kind, str_keys=True, dec_hook=_checked
        )  # fmt: skip
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(
            "preprocessing-does-not-fit",
            f"`{name}` returns a different type than the value stored in the run.",
            because=str(error),
            fix="return the type that it returned when the run started, or rename it",
        ) from error


def _with_tensors(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_with_tensors(value) for value in plain]
    if not isinstance(plain, dict):
        return plain
    if _TENSOR not in plain:
        return {key: _with_tensors(value) for key, value in plain.items()}
    content = bytearray(base64.b64decode(plain["data"]))
    kind = getattr(torch, plain[_TENSOR])
    if not content:
        return torch.empty(plain["shape"], dtype=kind)
    return torch.frombuffer(content, dtype=kind).reshape(plain["shape"])


def _checked(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    raise TypeError(f"expected {kind.__name__}, found {_named(value)}")
