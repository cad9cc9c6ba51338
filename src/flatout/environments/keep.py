"""Environments that are there: listed, proved once more, removed."""

from __future__ import annotations

from pathlib import Path

from flatout.errors import UsageError
from flatout.nouns.made_environment import MadeEnvironment
from flatout.nouns.run import Run
from flatout.system import made_environments
from flatout.system.reading import list_runs


def list_environments() -> list[MadeEnvironment]:
    """Every whole environment, by name."""
    return made_environments.list_environments()


def remove(name: str) -> MadeEnvironment:
    """Removes an environment; what was downloaded for it stays in flatout's cache.

    Raises:
        UsageError: unknown-environment, environment-in-use, setup-in-progress.
    """
    found = made_environments.find_environment(name)
    users = [run.id for run in list_runs() if _trains_in(run, found)]
    if users:
        raise UsageError(
            "environment-in-use",
            f"`{name}` cannot be removed now.",
            because=f"{', '.join(users)} is being trained in it",
            fix=f"stop it first: flatout runs stop {users[0]}",
        )
    with made_environments.locked():
        return made_environments.remove(name)


def _trains_in(run: object, environment: MadeEnvironment) -> bool:
    return (
        isinstance(run, Run)
        and run.status == "running"
        and Path(run.header.python).is_relative_to(environment.folder)
    )
