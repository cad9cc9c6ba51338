"""Whether the build of a framework that is installed is one for this machine, by the tables."""

from __future__ import annotations

from flatout.nouns.framework import Framework
from flatout.setup.fit import Target, Wish, misfit
from flatout.setup.rows import Build, Tables
from flatout.setup.solve import solve
from flatout.setup.versions import numbers

# As the probes name a framework -> as the tables do.
FRAMEWORKS = {
    "torch": "torch", "tensorflow": "tensorflow", "paddlepaddle": "paddle", "jax": "jax",
}  # fmt: skip


def why_wrong(held: Framework, target: Target, wish: Wish, tables: Tables) -> str | None:
    """Why an installed build is none for this machine; None where it is, or nobody knows.

    A build for CUDA on a machine without a GPU computes on the CPU, and is left as it is.

    Args:
        held: the framework, as its metadata tell it.
        target: the machine.
        wish: what a person has settled: the CPU, or a CUDA.
        tables: what is published.
    """
    label = held.build
    if label is None or not label.startswith(("cpu", "cu")):
        return None
    if label == "cpu":
        return _why_not_cpu(held, target, wish, tables)
    if wish.is_cpu:
        return f"{_text(held)} is built for {label}, and the CPU was asked for"
    if wish.cuda is not None and not label.startswith(wish.cuda):
        return f"{_text(held)} is built for {label}, and {wish.cuda} was asked for"
    rows = _rows(held, tables)
    reasons = [[misfit(row, target, wish, (gpu,), tables) for row in rows] for gpu in target.gpus]
    if not rows or not reasons or not all(all(one) for one in reasons):
        return None
    return f"{_text(held)} for {label} does not run here: {reasons[0][0]}"


def _why_not_cpu(held: Framework, target: Target, wish: Wish, tables: Tables) -> str | None:
    if wish.is_cpu or not (target.gpus or wish.cuda):
        return None
    better = solve(target, wish, tables)
    if better.choice is None or better.choice.cuda == "cpu":
        return None
    there = f"{target.gpus[0].name} is here" if target.gpus else f"{wish.cuda} was asked for"
    return f"{_text(held)} is built for the CPU, and {there}"


def _rows(held: Framework, tables: Tables) -> list[Build]:
    release, label = numbers(held.version), held.build or ""
    return [
        one
        for one in tables.builds
        if one.framework == FRAMEWORKS.get(held.name)
        and not one.is_nightly
        and numbers(one.version)[:2] == release[:2]
        and (one.cuda == label or (len(one.cuda) == 4 and label.startswith(one.cuda)))
    ]


def _text(held: Framework) -> str:
    return f"{held.name} {held.version}"
