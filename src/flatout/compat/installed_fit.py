"""Whether the installed build of a framework fits this machine, according to the tables."""

from __future__ import annotations

from flatout.compat.fit import BuildRequest, Target, misfit
from flatout.compat.rows import Build, Tables
from flatout.compat.solve import solve
from flatout.schema.framework import Framework
from flatout.schema.versions import numbers

# The probes' name of a framework -> the tables' name.
FRAMEWORKS = {
    "torch": "torch", "tensorflow": "tensorflow", "paddlepaddle": "paddle", "jax": "jax",
}  # fmt: skip


def why_wrong(
    installed: Framework, target: Target, request: BuildRequest, tables: Tables
) -> str | None:
    """The reason why an installed build does not fit this machine; None if it fits, or is unknown.

    A CUDA build on a machine without a GPU runs on the CPU and counts as fitting.

    Args:
        installed: the framework, from its metadata.
        target: the machine.
        request: the user's constraints: the CPU, or a CUDA.
        tables: the published builds.
    """
    label = installed.build
    if label is None or not label.startswith(("cpu", "cu")):
        return None
    if label == "cpu":
        return _why_not_cpu(installed, target, request, tables)
    if request.is_cpu:
        return f"{_text(installed)} is built for {label}, but the CPU was requested"
    if request.cuda is not None and not label.startswith(request.cuda):
        return f"{_text(installed)} is built for {label}, but {request.cuda} was requested"
    rows = builds_of(installed, tables)
    reasons = [
        [misfit(row, target, request, (gpu,), tables) for row in rows] for gpu in target.gpus
    ]
    if not rows or not reasons or not all(all(per_build) for per_build in reasons):
        return None
    return f"{_text(installed)} for {label} does not run here: {reasons[0][0]}"


def builds_of(installed: Framework, tables: Tables) -> list[Build]:
    """The table rows for an installed CUDA build; patch releases contain the same code."""
    version, label = numbers(installed.version)[:2], installed.build or ""
    return [
        row
        for row in tables.builds
        if row.framework == FRAMEWORKS.get(installed.name)
        and not row.is_nightly
        and numbers(row.version)[:2] == version
        and label.startswith("cu")
        # "cu12" is every CUDA 12: wheels of jax name the major version alone.
        and (row.cuda == label or (len(row.cuda) == 4 and label.startswith(row.cuda)))
    ]


def _why_not_cpu(
    installed: Framework, target: Target, request: BuildRequest, tables: Tables
) -> str | None:
    if request.is_cpu or not (target.gpus or request.cuda):
        return None
    better = solve(target, request, tables)
    if better.choice is None or better.choice.cuda == "cpu":
        return None
    there = f"{target.gpus[0].name} is present" if target.gpus else f"{request.cuda} was requested"
    return f"{_text(installed)} is built for the CPU, but {there}"


def _text(installed: Framework) -> str:
    return f"{installed.name} {installed.version}"
