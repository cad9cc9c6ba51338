"""A command in a child of a process that has loaded flatout is the one that is started."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")


@pytest.mark.parametrize(
    "words", [("--help",), ("runs",), ("runs", "--json"), ("train", "nothing.py"), ("shwo",)]
)
def test_forked_command_does_what_a_started_one_does(trained: Any, words: tuple[str, ...]) -> None:
    started = trained.start(*words)
    out, err = started.communicate(timeout=60)
    done = trained.run(*words)
    assert (done.returncode, done.stdout, done.stderr) == (started.returncode, out, err)


def test_forked_command_leaves_nothing_to_the_next(trained: Any) -> None:
    narrow = trained.run("--help", COLUMNS="60").stdout
    assert narrow != trained.run("--help").stdout
    assert trained.run("--help", COLUMNS="60").stdout == narrow


def test_command_is_started_where_python_would_start_in_another_way(trained: Any) -> None:
    environment = trained.environment(PYTHONUTF8="0")
    assert not trained.forked.can_run(environment)
    assert trained.forked.can_run(trained.environment(COLUMNS="60"))


def test_command_that_takes_too_long_is_killed(trained: Any) -> None:
    arguments = trained.train(steps=2000, pause=0.02)
    with pytest.raises(subprocess.TimeoutExpired):
        trained.forked.run(
            arguments, environment=trained.environment(), folder=trained.folder, limit_s=1.0
        )
    # Its successor is there for others.
    assert trained.run("runs").returncode == 0
