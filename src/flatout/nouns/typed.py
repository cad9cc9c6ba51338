"""Commands of flatout as they are typed: each value quoted for the shell it is typed into."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from flatout.nouns.experiment_spec import ExperimentSpec, Value

# A recipe whose fields are all fixed was read from a file, which a command cannot name.
_MOST_FIXED = 8


def command_line(words: Sequence[str]) -> str:
    """Words as one line of the shell here."""
    if sys.platform != "win32":
        return shlex.join(words)
    # Both of its shells take words in double quotes.
    return " ".join(
        f'"{word}"' if not word or set(word) & set(" \t&|<>^();") else word for word in words
    )


def resume_command(
    run: str, *, epochs: int | None = None, steps: int | None = None, is_changed: bool = False
) -> str:
    """What goes on with a run; longer, or with its changed file, where that is asked for.

    run: its name; or its folder, where it is not among flatout's runs, whose code must be trusted.
    """
    words = ["flatout", "train", "--resume", run, *_length(epochs, steps)]
    words += ["--changed"] if is_changed else []
    return command_line([*words, "--trust"] if set(run) & set("/\\") else words)


def show_command(run: str, *more: str) -> str:
    """What shows a run."""
    return command_line(["flatout", "show", run, *more])


def stop_command(run: str) -> str:
    """What stops a run."""
    return command_line(["flatout", "runs", "stop", run])


def train_command(
    spec: ExperimentSpec,
    *,
    file: str | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    init: str | None = None,
) -> str | None:
    """What makes another run of the same experiment; None where that cannot be typed.

    Args:
        spec: of the run that it is to be like.
        file: how the experiment's file is written; None takes its whole path.
        seed, epochs, steps, init: in place of the run's own.
    """
    if len(spec.fixed) > _MOST_FIXED or (spec.file is None and spec.name == "notebook"):
        return None
    if epochs is None and steps is None:
        epochs, steps = spec.epochs, spec.steps
    seed = spec.seed if seed is None else seed
    init = spec.init if init is None else init
    words = ["flatout", "train", (file or spec.file) if spec.file else spec.name]
    for name, value in spec.parameters.items():
        words += ["-s", f"{name}={typed_value(value)}"]
    for name, value in spec.fixed.items():
        words += ["--use", f"{name}={typed_value(value)}"]
    words += _length(epochs, steps)
    words += ["--seed", str(seed)] if seed else []
    words += ["--init", init] if init else []
    return command_line(words)


def typed_value(value: Value) -> str:
    """A value as `-s` and `--use` take it, with all its digits."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _length(epochs: int | None, steps: int | None) -> list[str]:
    if steps is not None:
        return ["--steps", str(steps)]
    return [] if epochs is None else ["--epochs", str(epochs)]
