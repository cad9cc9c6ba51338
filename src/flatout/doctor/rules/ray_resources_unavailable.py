"""Ray is waiting for resources that no node has available.

**Checks.** Ray's notice about requests that cannot be scheduled.

**Why it matters.** A task that requests a GPU waits forever if Ray found none, or all are in use.

**Example.** `The following resource request cannot be scheduled right now: {'GPU': 1.0}`

**Fix.** Request less, or start nodes with `--num-gpus`; by hand.

**Source.** docs.ray.io/en/latest/ray-core/scheduling/resources.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Ray's notice about requests that cannot be scheduled."""
    if not case.sees("ray-cannot-schedule"):
        return None
    return Finding(
        rule="ray-resources-unavailable",
        severity="warning",
        certainty="likely",
        problem="Ray is waiting for resources that no node has available.",
        because="no node has the requested resources, or they are in use",
        evidence=case.evidence("ray-cannot-schedule"),
        fixes=(
            Fix(
                text="compare the request with the available resources",
                safety="safe",
                commands=("ray status -v",),
                changes="nothing",
            ),
        ),
        confirm=("ray status -v", "nvidia-smi -L"),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "ray-cannot-schedule",
            "cannot be scheduled right now",
            "No available node types can fulfill",
            "Insufficient resources",
            "resource request cannot be scheduled",
            "infeasible resource",
            pattern=r"cannot be scheduled right now|No available node types can fulfill"
            r"|infeasible resource requests?|\bray\b.{0,80}Insufficient resources"
            r"|placement group .{0,60}cannot be (?:created|scheduled)",
        ),
    ),
)
