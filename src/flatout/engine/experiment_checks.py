"""Checks an experiment's fields before anything is built from them.

Functions are checked by signature, other fields by type; a wrong name gets a suggestion.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from flatout.engine.runtime.user_code import Given, given_as, kind_text, location_of
from flatout.errors import UsageError, nearest

# The arguments that each function of an experiment is called with.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "model": (), "optimizer": ("parameters",), "loss": ("model", "batch"),
    "step": ("updates", "model", "batch"), "train_data": (), "validation_data": (),
    "metrics": ("model", "batch"), "schedule": ("optimizer",), "collate": ("samples",),
    "hooks": (), "generate": ("model",), "predict": ("model", "batch"), "predict_data": ("text",),
    "decode": ("content",), "encode": ("prediction",), "stream": ("model", "sample"),
}  # fmt: skip
# Functions that build something: they may be called repeatedly and must return a new one each time.
_FACTORIES = ("model", "optimizer", "schedule", "train_data", "validation_data", "hooks")
_REQUIRED = ("model", "optimizer", "train_data")
_KINDS: Mapping[str, str] = {
    "batch_size": "a whole number", "epochs": "a whole number", "steps": "a whole number",
    "early_stop": "a whole number", "ema": "a number", "clip_norm": "a number",
    "named_parameters": "True or False", "shuffle": "True or False", "best": "a string",
    "unit": "a string",
}  # fmt: skip
# Other libraries' names for a field, where the nearest spelling would suggest a different field.
_ELSEWHERE: Mapping[str, str] = {
    "criterion": "loss", "loss_fn": "loss", "loss_function": "loss", "objective": "loss",
    "training_step": "loss", "data": "train_data", "dataset": "train_data",
    "train_loader": "train_data", "train_dataloader": "train_data", "train_dataset": "train_data",
    "val_data": "validation_data", "val_dataset": "validation_data", "valid_data":
    "validation_data", "val_loader": "validation_data", "val_dataloader": "validation_data",
    "eval_data": "validation_data", "eval_dataset": "validation_data",
    "test_data": "validation_data", "max_epochs": "epochs", "num_epochs": "epochs",
    "n_epochs": "epochs", "num_train_epochs": "epochs", "max_steps": "steps", "bs": "batch_size",
    "num_steps": "steps", "lr_scheduler": "schedule", "scheduler": "schedule",
    "collate_fn": "collate", "grad_clip": "clip_norm", "gradient_clip_val": "clip_norm",
    "max_grad_norm": "clip_norm", "patience": "early_stop", "early_stopping": "early_stop",
    "monitor": "best", "class_names": "labels", "classes": "labels", "network": "model",
    "net": "model", "opt": "optimizer", "optim": "optimizer", "metric": "metrics",
    "compute_metrics": "metrics", "ema_decay": "ema", "validate": "validate_every",
    "callbacks": "hooks", "callback": "hooks", "hook": "hooks",
}  # fmt: skip
# Settings that belong elsewhere, and where.
_NO_FIELDS: Mapping[str, str] = {
    "lr": "give it to the optimizer: optimizer=lambda parameters: torch.optim.AdamW(parameters, "
    "lr=...)",
    "device": "give it to the command: flatout train FILE --device cuda",
    "seed": "give it to the command: flatout train FILE --seed 1",
    "num_workers": "give it to the command: flatout train FILE --use loader_workers=4",
    "precision": "give it to the command: flatout train FILE --use precision=bf16",
}
_NO_FIELDS = {**_NO_FIELDS, "learning_rate": _NO_FIELDS["lr"], "workers": _NO_FIELDS["num_workers"]}
_SHOWN_CODE = 70


def check_names(given: Iterable[str], positional: int, fields: Iterable[str]) -> None:
    """Refuses unknown fields.

    Raises:
        UsageError: unknown-field.
    """
    if positional:
        raise UsageError(
            "unknown-field",
            "`Experiment` takes keyword arguments only.",
            because=_because(given_as("")),
            fix="write Experiment(model=..., optimizer=..., loss=...); "
            "see `flatout docs experiments`",
        )
    fields = sorted(fields)
    for name in given:
        if name not in fields:
            meant = _ELSEWHERE.get(name)
            fix = _NO_FIELDS.get(name) or (
                f"did you mean `{meant}`?" if meant else nearest(name, fields)
            )
            raise UsageError(
                "unknown-field",
                f"`Experiment` has no field `{name}`.",
                because=_because(given_as(name)),
                fix=fix,
            )


def check_kinds(values: Mapping[str, Any]) -> None:
    """Refuses values of the wrong type.

    Raises:
        UsageError: bad-experiment.
    """
    for name, kind in _KINDS.items():
        value = values[name]
        if value is None and name not in ("batch_size", "named_parameters", "shuffle", "best"):
            continue
        if not _is_of_kind(value, kind):
            raise UsageError(
                "bad-experiment",
                f"`{name}` is {value!r}, {kind_text(value)}.",
                because=_because(given_as(name)),
                fix=f"give {kind}",
            )


def _is_of_kind(value: Any, kind: str) -> bool:
    if kind == "a string":
        return isinstance(value, str)
    if isinstance(value, bool) or kind == "True or False":
        return isinstance(value, bool) and kind == "True or False"
    # NumPy's numbers, too.
    return hasattr(value, "__index__" if kind == "a whole number" else "__float__")


def check_functions(values: Mapping[str, Any]) -> None:
    """Refuses values that are not functions, and functions with the wrong arguments.

    Raises:
        UsageError: not-a-function, wrong-arguments.
    """
    for name, arguments in ARGUMENTS.items():
        value = values[name]
        if value is None and name not in _REQUIRED:
            continue
        if name in _FACTORIES and _is_built(value) or not callable(value):
            raise _not_a_function(name, value)
        if name in ("loss", "step", "metrics") and _is_of_torch(value):
            raise _loss_of_torch(name, value)
        _check_signature(name, value, arguments)


def _is_built(value: Any) -> bool:
    """A model is callable too, so it is recognized by its type. Without torch there is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module | torch.Tensor)


def _is_of_torch(value: Any) -> bool:
    """Whether it is one of torch's losses, as a module or as a function."""
    kind = value if inspect.isfunction(value) or inspect.isclass(value) else type(value)
    return str(getattr(kind, "__module__", "")).startswith(
        ("torch.nn.functional", "torch.nn.modules")
    )


def _not_a_function(name: str, value: Any) -> UsageError:
    given = given_as(name)
    kind = kind_text(value)
    call = f"{name}({', '.join(ARGUMENTS[name])})"
    if name not in _FACTORIES:
        return UsageError(
            "not-a-function",
            f"`{name}` is {kind}, not a function.",
            because=_because(given),
            fix=f"pass a function, without calling it: {name}={name}; it is called as {call}",
        )
    if value is None:
        return UsageError(
            "not-a-function",
            f"`{name}` is None.",
            because=_because(given),
            fix=f"pass a function that builds it: {_factory(name, None)}",
        )
    return UsageError(
        "not-a-function",
        f"`{name}` is {kind}, not a function that builds one.",
        because=_because(given, "it is built after the seed is set, and again on resume"),
        fix=f"pass a function: {_factory(name, given.code)}",
    )


def _factory(name: str, code: ast.expr | None) -> str:
    """The field as it should be written."""
    arguments = " ".join(ARGUMENTS[name])
    begin = f"{name}=lambda {arguments}: " if arguments else f"{name}=lambda: "
    is_data = name.endswith("_data") or name == "hooks"
    if isinstance(code, ast.Call):
        if arguments and code.args:
            code = ast.Call(code.func, [ast.Name(arguments), *code.args[1:]], code.keywords)
        text = ast.unparse(code)
        if len(text) <= _SHOWN_CODE:
            return begin + text
        return f"{begin}{ast.unparse(code.func)}({arguments + ', ' if arguments else ''}...)"
    if is_data and code is not None and len(text := ast.unparse(code)) <= _SHOWN_CODE:
        return begin + (f"({text})" if isinstance(code, ast.Lambda) else text)
    example = {"model": "Net(...)", "optimizer": "torch.optim.AdamW(parameters, lr=1e-3)"}
    return begin + example.get(name, "...")


def _loss_of_torch(name: str, value: Any) -> UsageError:
    kind = getattr(value, "__name__", None) or type(value).__name__
    call = f"lambda {', '.join(ARGUMENTS[name])}: "
    function = f"nn.{kind}()" if inspect.isclass(value) or kind[0].isupper() else f"F.{kind}"
    return UsageError(
        "wrong-arguments",
        f"`{name}` is torch's {kind}, which takes a model's output and targets.",
        because=_because(given_as(name), f"it is called as {name}({', '.join(ARGUMENTS[name])})"),
        fix=f"call the model in it: {name}={call}{function}(model(batch[0]), batch[1])",
    )


def _check_signature(name: str, value: Any, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # Compiled code may have no signature.
    # `total_steps` is passed by keyword, and only to a schedule that takes it.
    length = (
        {"total_steps": 1} if name == "schedule" and "total_steps" in signature.parameters else {}
    )
    try:
        signature.bind(*arguments, **length)
    except TypeError:
        raise _wrong_arguments(name, value, signature, arguments) from None


def _wrong_arguments(
    name: str, value: Any, signature: inspect.Signature, arguments: tuple[str, ...]
) -> UsageError:
    location = None if inspect.isclass(value) else location_of(value)
    given = given_as(name)
    at = location.with_code if location is not None else _because(given)
    takes = ", ".join(
        str(parameter.replace(annotation=parameter.empty))
        for parameter in signature.parameters.values()
    )
    called = f"({', '.join(arguments)})" if arguments else "without arguments"
    own = getattr(value, "__name__", type(value).__name__)
    if own == "<lambda>":
        fix = f"write {name}=lambda {', '.join(arguments)}: ...".replace("lambda :", "lambda:")
    elif not arguments:
        needed = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_POSITIONAL
        ]
        fix = f"pass its required arguments ({', '.join(needed)}): {name}=lambda: {own}(...)"
    else:
        fix = f"define it as `def {own}({', '.join(arguments)}):`"
    return UsageError(
        "wrong-arguments",
        f"`{name}` takes ({takes}), but is called {called}.",
        because=at,
        fix=fix,
    )


def _because(given: Given, *reasons: str) -> str | None:
    at = (given.location.with_code,) if given.location is not None else ()
    return "; ".join((*at, *reasons)) or None
