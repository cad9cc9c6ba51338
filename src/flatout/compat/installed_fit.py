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


def why_wrong(held: Framework, target: Target, wish: BuildRequest, tables: Tables) -> str | None:
    """The reason why an installed build does not fit this machine; None if it fits, or is unknown.

    A CUDA build on a machine without a GPU runs on the CPU and counts as fitting.

    Args:
        held: the framework, from its metadata.
        target: the machine.
        wish: the user's constraints: the CPU, or a CUDA.
        tables: the published builds.
    """
    label = held.build
    if label is None or not label.startswith(("cpu", "cu")):
        return None
    if label == "cpu":
        return _why_not_cpu(held, target, wish, tables)
    if wish.is_cpu:
        return f"{_text(held)} is built for {label}, but the CPU was requested"
    if wish.cuda is not None and not label.startswith(wish.cuda):
        return f"{_text(held)} is built for {label}, but {wish.cuda} was requested"
    rows = builds_of(held, tables)
    reasons = [[misfit(row, target, wish, (gpu,), tables) for row in rows] for gpu in target.gpus]
    if not rows or not reasons or not all(all(one) for one in reasons):
        return None
    return f"{_text(held)} for {label} does not run here: {reasons[0][0]}"


def builds_of(held: Framework, tables: Tables) -> list[Build]:
    """The table rows for an installed CUDA build; a version's patch releases hold the same code."""
    version, label = numbers(held.version)[:2], held.build or ""
    return [
        one
        for one in tables.builds
        if one.framework == FRAMEWORKS.get(held.name)
        and not one.is_nightly
        and numbers(one.version)[:2] == version
        and label.startswith("cu")
        # "cu12" is every CUDA 12: wheels of jax name the major version alone.
        and (one.cuda == label or (len(one.cuda) == 4 and label.startswith(one.cuda)))
    ]


def _why_not_cpu(held: Framework, target: Target, wish: BuildRequest, tables: Tables) -> str | None:
    if wish.is_cpu or not (target.gpus or wish.cuda):
        return None
    better = solve(target, wish, tables)
    if better.choice is None or better.choice.cuda == "cpu":
        return None
    there = f"{target.gpus[0].name} is present" if target.gpus else f"{wish.cuda} was requested"
    return f"{_text(held)} is built for the CPU, but {there}"


def _text(held: Framework) -> str:
    return f"{held.name} {held.version}"
