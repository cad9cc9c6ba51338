"""Environments of `flatout setup`, as far as their records go."""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.schema.environment import (
    EnvironmentSpec,
    FrameworkName,
    MadeEnvironment,
    Pin,
    SmokeTestResult,
)
from flatout.system.paths import environments_folder
from flatout.system.store import environments

PIN = Pin(name="jax", version="0.9.0", url="", sha256="a" * 64)


def put_environment(
    name: str, framework: FrameworkName, folder: Path | None = None
) -> MadeEnvironment:
    """An environment that is whole, as far as its record goes."""
    folder = folder or environments_folder() / name
    made = MadeEnvironment(
        name=name,
        folder=str(folder),
        python=sys.executable,
        python_version="3.12",
        version="0.9.0",
        cuda="cpu",
        index=None,
        installer="pip",
        machine="driver none",
        spec=EnvironmentSpec(framework=framework),
        pins=(PIN,),
        size_bytes=5,
        made_at="2026-01-01",
        proof=SmokeTestResult(
            device="cpu", version="0.9.0", losses=(1.0,), deviation=0, tolerance=1, at=""
        ),
    )
    environments.begin(name, folder)
    (folder / "file").write_text(name)
    environments.finish(made, "")
    return made
