"""Requests to stop by the run's file: who hears them, and who finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.engine.runtime.stop_signals import StoppedEarly, StopRequest, watched_file


@pytest.mark.parametrize(
    ("error", "is_left"), [(None, False), (StoppedEarly("asked"), False), (ValueError(), True)]
)
def test_a_request_outlives_a_training_that_fails(
    tmp_path: Path, error: Exception | None, is_left: bool
) -> None:
    path = tmp_path / "stop"
    path.touch()

    def train() -> None:
        with watched_file(path, StopRequest()):
            assert not path.exists(), "it was meant for whoever trained before"
            path.touch()
            if error is not None:
                raise error

    if error is None:
        train()
    else:
        with pytest.raises(type(error)):
            train()
    assert path.exists() is is_left
