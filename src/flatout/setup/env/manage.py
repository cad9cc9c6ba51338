"""Existing environments: listed, removed, and protected while a run trains in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from flatout.errors import UsageError
from flatout.schema.environment import MadeEnvironment
from flatout.schema.run import Run
from flatout.schema.suggested_command import stop_command
from flatout.system.store import environment_folder, environments
from flatout.system.store.run_reader import list_runs


def list_environments() -> list[MadeEnvironment]:
    """Every whole environment, by name."""
    return environments.list_environments()


def find(name: str) -> MadeEnvironment:
    """An environment by its name.

    Raises:
        UsageError: unknown-environment.
    """
    return environments.find_environment(name)


def remove(name: str) -> MadeEnvironment:
    """Removes an environment; what was downloaded for it stays in flatout's cache.

    Raises:
        UsageError: unknown-environment, environment-in-use, setup-in-progress.
    """
    with environments.locked():
        require_unused(name, environments.find_environment(name).folder)
        return environments.remove(name)


def require_unused(name: str, folder: str) -> None:
    """Refuses to change an environment in which a run is being trained.

    Args:
        name: as the user wrote it.
        folder: where it is.

    Raises:
        UsageError: environment-in-use.
    """
    runs = [run for run in list_runs() if isinstance(run, Run) and run.status == "running"]
    users = [run.id for run in runs if _trains_in(run, folder)]
    if users:
        raise UsageError(
            "environment-in-use",
            f"`{name}` cannot be changed or removed now.",
            because=f"it is in use by {', '.join(users)}",
            fix=f"wait for it, or stop it: {stop_command(users[0])}",
        )


@contextmanager
def unused(name: str, folder: str) -> Iterator[None]:
    """Keeps others from changing an environment that may be flatout's own; as `require_unused`.

    Raises:
        UsageError: environment-in-use, setup-in-progress.
    """
    is_made = environment_folder.read_holder(Path(folder)) is not None
    with environments.locked() if is_made else nullcontext():
        require_unused(name, folder)
        yield


def _trains_in(run: Run, folder: str) -> bool:
    # The interpreter itself is a link to the one that the environment was made from.
    programs = os.path.realpath(Path(run.header.python).parent)
    return Path(programs).is_relative_to(os.path.realpath(folder))
