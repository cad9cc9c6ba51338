"""Training steps in an environment's own interpreter."""

from __future__ import annotations

from pathlib import Path

import msgspec

import flatout
from flatout.errors import RunFailed
from flatout.schema.environment import FrameworkName
from flatout.system.command import run
from flatout.system.process_env import proof_environment

# A framework may compile code for a new GPU at its first start.
_LIMIT_S = 900.0
_PROGRAMS = Path(flatout.__file__).parent / "engine" / "smoke_tests"


def train_steps(
    python: str, framework: FrameworkName, problem: dict[str, object], variables: dict[str, str]
) -> str:
    """Runs the steps; gives what the program printed.

    Args:
        python: the environment's interpreter.
        framework: which.
        problem: what the program is given; its `device` says where to compute.
        variables: what a process in this environment needs in addition to flatout's own.

    Raises:
        RunFailed: training-step-failed.
    """
    environment = proof_environment(is_cpu=problem["device"] == "cpu", **variables)
    program = _PROGRAMS / f"{framework}_steps.py"
    done = run(
        [python, "-s", str(program)],
        _LIMIT_S,
        environment,
        text=msgspec.json.encode(problem).decode(),
    )
    if done.exit_code != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RunFailed(
            "training-step-failed",
            f"{framework} was installed, but a training step fails.",
            because=done.reason or " ".join(lines[-3:])[-500:] or f"exit code {done.exit_code}",
            fix="flatout doctor --deep; or without a GPU: --cpu",
            printed=f"{done.stdout}\n{done.stderr}",
        )
    return done.stdout
