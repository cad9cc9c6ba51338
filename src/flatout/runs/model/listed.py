"""Runs and data sets as rows of a list, and the filters and order of a list of runs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.experiment_spec import Value
from flatout.schema.run import DamagedRun, Run

# What a row has whatever its experiment is; parameters and metrics come on top.
_FIELDS = (
    "run", "experiment", "status", "epochs", "step", "duration", "created", "seed", "device",
    "sweep", "trial",
)  # fmt: skip
_CONDITION = re.compile(r"\s*([\w.-]+?)\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


class RunRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is about to be deleted.

    target: the linked folder, if the folder is a link. checkpoint_step: where it could be resumed,
    if it is not finished. is_in_use: it is running or starting.
    """

    id: str
    folder: str
    num_bytes: int
    target: str | None = None
    checkpoint_step: int | None = None
    is_in_use: bool = False


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with what a list shows of it.

    parameters: all that are known, by name, the defaults among them. changed: names of those that
    differ from their defaults. duration_s: how long it has trained; None if unknown.
    share_read: of its metrics; below 1, its best validation may be another one.
    """

    run: Run | DamagedRun
    parameters: dict[str, Value] = {}
    changed: tuple[str, ...] = ()
    duration_s: float | None = None
    share_read: float = 1.0

    @property
    def metrics(self) -> dict[str, float | None]:
        """Metrics of the best validation, else of the last; empty where there was none."""
        if isinstance(self.run, DamagedRun):
            return {}
        last = self.run.validations[-1] if self.run.validations else None
        judged = self.run.best_validation or last
        return judged.metrics if judged else {}

    def values(self) -> dict[str, Any]:
        """Everything that a user can sort or filter by, by key."""
        run = self.run
        known: dict[str, Any] = {"run": run.id, "status": run.status}
        if isinstance(run, Run):
            started = run.started
            per_epoch = started.steps_per_epoch if started else None
            made = datetime.fromtimestamp(run.header.created_at)
            known |= {
                "experiment": run.header.spec.name, "seed": run.header.spec.seed,
                "epochs": run.step / per_epoch if per_epoch else None, "step": run.step,
                "duration": self.duration_s, "created": made.isoformat(sep=" ", timespec="minutes"),
                "device": run.recipe.device.value if run.recipe else None,
                "sweep": run.header.sweep.id if run.header.sweep else None,
                "trial": run.header.sweep.trial if run.header.sweep else None,
            }  # fmt: skip
        # Where a parameter has the name of a field, the field has it; `param.NAME` is the other.
        for prefix, values in (("metric", self.metrics), ("param", self.parameters)):
            for name, value in values.items():
                known[f"{prefix}.{name}"] = value
                known.setdefault(name, value)
        return known

    def document(self) -> dict[str, Any]:
        """The JSON document: the run, and what the list adds to it."""
        run: dict[str, Any] = msgspec.to_builtins(self.run)
        added = {
            "parameters": self.parameters, "changed": self.changed, "duration_s": self.duration_s,
        }  # fmt: skip
        return run | added


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of `flatout runs`.

    experiments: names; all where there are none. conditions: texts like `accuracy>0.9`.
    sort: a key, with a minus before it from the largest on; None sorts by age, oldest first.
    """

    experiments: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    sort: str | None = None


def chosen_runs(rows: Sequence[ListedRun], request: ListRequest) -> list[ListedRun]:
    """The runs that a request asks for, in its order.

    Raises:
        UsageError: unknown-run-key, bad-condition, unknown-experiment.
    """
    table = [(row, row.values()) for row in rows]
    keys = list(dict.fromkeys([*_FIELDS, *(key for _, values in table for key in values)]))
    names = {values.get("experiment") for _, values in table} - {None}
    for name in request.experiments:
        if name not in names and rows:
            raise UsageError(
                "unknown-experiment", f"there are no runs of the experiment `{name}`.",
                fix=nearest(name, map(str, names)),
            )  # fmt: skip
    tests = [_condition(text, keys) for text in request.conditions]
    chosen = [
        (row, values)
        for row, values in table
        if (not request.experiments or values.get("experiment") in request.experiments)
        and all(test(values) for test in tests)
    ]
    if request.sort is not None:
        chosen = _sorted(chosen, request.sort, keys)
    return [row for row, _ in chosen]


def _sorted(
    rows: Iterable[tuple[ListedRun, dict[str, Any]]], sort: str, keys: Sequence[str]
) -> list[tuple[ListedRun, dict[str, Any]]]:
    key = _known_key(sort.removeprefix("-"), keys, f"--sort {sort}")
    rows = list(rows)
    having = [row for row in rows if row[1].get(key) is not None]
    having.sort(key=lambda row: _comparable(row[1][key]), reverse=sort.startswith("-"))
    # Whichever way it is sorted: what has no value comes last.
    return having + [row for row in rows if row[1].get(key) is None]


def _condition(text: str, keys: Sequence[str]) -> Callable[[dict[str, Any]], bool]:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            "bad-condition",
            f"`--where {text}` is not a condition.",
            because="a condition is a key, one of = != > >= < <=, and a value",
            fix="write it like --where 'accuracy>0.9' or --where status=failed",
        )
    name, sign, operand = match.groups()
    key, compare = _known_key(name, keys, f"--where {text}"), _COMPARE[sign]

    def holds(values: dict[str, Any]) -> bool:
        value = values.get(key)
        if value is None:
            return sign == "!=" if operand.lower() not in ("none", "-") else sign in ("=", "==")
        return compare(*_alike(value, operand))

    return holds


def _known_key(name: str, keys: Sequence[str], option: str) -> str:
    if name not in keys:
        short = [key for key in keys if "." not in key]
        raise UsageError(
            "unknown-run-key", f"`{option}`: no run has `{name}`.", fix=nearest(name, short)
        )
    return name


def _alike(value: Any, operand: str) -> tuple[Any, Any]:
    """Both as numbers where both are numbers, else both as texts."""
    number = _number(operand)
    if number is not None and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), number
    if isinstance(value, bool):
        operand = {"yes": "true", "no": "false"}.get(operand.lower(), operand.lower())
        return str(value).lower(), operand
    return str(value), operand


def _number(text: str) -> float | None:
    try:
        share = text.rstrip().endswith("%")
        return float(text.rstrip("% ")) / (100 if share else 1)
    except ValueError:
        return None


def _comparable(value: Any) -> tuple[bool, Any]:
    """Numbers before texts, so that a column of both has an order."""
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else str(value))


class DataState(msgspec.Struct, frozen=True, kw_only=True):
    """A known data set. folder: where it was found, else None."""

    name: str
    title: str
    licence: str
    source: str
    size_bytes: int
    folder: str | None
