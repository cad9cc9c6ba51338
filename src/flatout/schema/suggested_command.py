"""Commands of flatout as they are typed: each value quoted for the shell it is typed into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from flatout.schema import shell_quoting
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec, Value
from flatout.schema.run import Run
from flatout.schema.units import size_text

# A recipe whose fields are all fixed was read from a file, which a command cannot name.
_MOST_FIXED = 8


def command_line(words: Sequence[str]) -> str:
    """Words as one line of the shell here."""
    return shell_quoting.typed_here(words)


def resume_command(run: str, change: Change | None = None, *, is_changed: bool = False) -> str:
    """The command that continues a run.

    Args:
        run: its name; or its folder where it is not among flatout's runs, to be trusted then.
        change: length, recipe fields, ranks and interpreter to continue with; None keeps the run's.
        is_changed: with its changed file.
    """
    change = change or Change()
    words = ["flatout", "train", "--resume", run, *_fixed(change.fixed), *_length(change)]
    words += ["--changed"] if is_changed else []
    words += ["--trust"] if set(run) & set("/\\") else []
    return command_line([*words, *_where(change, change.leave_free_bytes)])


def resume_run(
    run: Run, *, epochs: int | None = None, steps: int | None = None, is_changed: bool = False
) -> str:
    """The command that continues a run as it was started last; a line of Python in a notebook."""
    if is_of_notebook(run.header.spec):
        return resume_in_python(run.id, epochs)
    change = msgspec.structs.replace(run.last_change, epochs=epochs, steps=steps)
    return resume_command(run.typed, change, is_changed=is_changed)


def resume_in_python(run: str, epochs: int | None) -> str:
    """The Python line that continues a notebook's run."""
    length = f", epochs={epochs}" if epochs is not None else ""
    return f'flatout.train(experiment, resume="{run}"{length})'


def is_of_notebook(spec: ExperimentSpec) -> bool:
    """Whether the experiment is known to the notebook alone that trained it."""
    return spec.file is None and spec.name == "notebook"


def show_command(run: str, *more: str) -> str:
    """The command that shows a run."""
    return command_line(["flatout", "show", run, *more])


def stop_command(run: str) -> str:
    """The command that stops a run."""
    return command_line(["flatout", "runs", "stop", run])


def train_command(
    spec: ExperimentSpec,
    change: Change | None = None,
    *,
    file: str | None = None,
    recipe: str | None = None,
    track: Sequence[str] = (),
) -> str | None:
    """The command for another run of the same experiment; None if it cannot be typed.

    Args:
        spec: of the run to repeat.
        change: in place of what the spec says; its ranks and interpreter.
        file: how the experiment's file is written; None takes its whole path.
        recipe: a file with a recipe, besides the fields that the spec fixes.
        track: trackers that it is sent to.
    """
    change = change or Change()
    if len(spec.fixed) > _MOST_FIXED or is_of_notebook(spec):
        return None
    words = ["flatout", "train", *_experiment(spec, file)]
    words += ["--recipe", recipe] if recipe else []
    words += _fixed(spec.fixed | change.fixed)
    words += _length(spec if change.epochs is None and change.steps is None else change)
    words += ["--seed", str(spec.seed)] if spec.seed else []
    words += ["--init", spec.init] if spec.init else []
    words += _tuning(spec, change)
    leave_free_bytes = change.leave_free_bytes
    if leave_free_bytes is None:
        leave_free_bytes = spec.leave_free_bytes
    words += _where(change, leave_free_bytes)
    return command_line([*words, *(word for one in track for word in ("--track", one))])


def tune_command(spec: ExperimentSpec, change: Change) -> str:
    """The command that makes a search again. change: its interpreter."""
    tuning = spec.tuning
    words = ["flatout", "tune", *_experiment(spec, None), *_fixed(spec.fixed), *_length(spec)]
    words += ["--numerics", tuning.numerics] if tuning.numerics != "default" else []
    words += ["--budget", f"{tuning.budget_s:g}"] if tuning.budget_s is not None else []
    words += ["--emit", tuning.emit] if tuning.emit is not None else []
    return command_line([*words, *_where(change, spec.leave_free_bytes)])


def resume_sweep_command(sweep: str) -> str:
    """The command that continues a sweep."""
    return command_line(["flatout", "sweep", "--resume", sweep])


def typed_value(value: Value) -> str:
    """A value as `-s` and `--use` take it, with all its digits."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _experiment(spec: ExperimentSpec, file: str | None) -> Iterator[str]:
    yield (file or spec.file or spec.name) if spec.file else spec.name
    for name, value in spec.parameters.items():
        yield from ("-s", f"{name}={typed_value(value)}")


def _fixed(fields: dict[str, Value]) -> Iterator[str]:
    for name, value in fields.items():
        yield from ("--use", f"{name}={typed_value(value)}")


def _length(length: ExperimentSpec | Change) -> list[str]:
    if length.steps is not None:
        return ["--steps", str(length.steps)]
    return [] if length.epochs is None else ["--epochs", str(length.epochs)]


def _tuning(spec: ExperimentSpec, change: Change) -> Iterator[str]:
    """The extent of the search, if it is not the default."""
    mode = spec.tuning.mode
    # Several ranks do not search, whatever was requested.
    if mode == "full" or (mode == "off" and change.on is None):
        yield from ("--tune", mode)
    if mode != "off" and spec.tuning.numerics != "default":
        yield from ("--numerics", spec.tuning.numerics)


def _where(change: Change, leave_free_bytes: int | None) -> Iterator[str]:
    if leave_free_bytes is not None:
        yield from ("--leave-free", size_text(leave_free_bytes))
    if change.on is not None:
        yield from ("--on", change.on)
    if change.python is not None:
        yield from ("--python", change.python)
