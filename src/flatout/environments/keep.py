"""Environments that are there: listed, removed, and not changed under a run that trains in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from flatout.errors import UsageError
from flatout.nouns.made_environment import MadeEnvironment
from flatout.nouns.run import Run
from flatout.nouns.typed import stop_command
from flatout.system import environment_folder, made_environments
from flatout.system.reading import list_runs


def list_environments() -> list[MadeEnvironment]:
    """Every whole environment, by name."""
    return made_environments.list_environments()


def find(name: str) -> MadeEnvironment:
    """An environment by its name.

    Raises:
        UsageError: unknown-environment.
    """
    return made_environments.find_environment(name)


def remove(name: str) -> MadeEnvironment:
    """Removes an environment; what was downloaded for it stays in flatout's cache.

    Raises:
        UsageError: unknown-environment, environment-in-use, setup-in-progress.
    """
    with made_environments.locked():
        require_unused(name, made_environments.find_environment(name).folder)
        return made_environments.remove(name)


def require_unused(name: str, folder: str) -> None:
    """Refuses to change an environment in which a run is being trained.

    Args:
        name: how a person calls it.
        folder: where it lies.

    Raises:
        UsageError: environment-in-use.
    """
    runs = [run for run in list_runs() if isinstance(run, Run) and run.status == "running"]
    users = [run.id for run in runs if _trains_in(run, folder)]
    if users:
        raise UsageError(
            "environment-in-use",
            f"`{name}` cannot be changed or removed now.",
            because=f"{', '.join(users)} is being trained in it",
            fix=f"wait for it, or stop it: {stop_command(users[0])}",
        )


@contextmanager
def unused(name: str, folder: str) -> Iterator[None]:
    """Keeps others from changing an environment that may be flatout's own; as `require_unused`.

    Raises:
        UsageError: environment-in-use, setup-in-progress.
    """
    is_made = environment_folder.read_holder(Path(folder)) is not None
    with made_environments.locked() if is_made else nullcontext():
        require_unused(name, folder)
        yield


def _trains_in(run: Run, folder: str) -> bool:
    # The interpreter itself is a link to the one that the environment was made from.
    programs = os.path.realpath(Path(run.header.python).parent)
    return Path(programs).is_relative_to(os.path.realpath(folder))
