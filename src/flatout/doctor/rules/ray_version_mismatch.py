"""Nodes of the Ray cluster run different Ray versions.

**Checks.** The versions that Ray prints when a process joins, and the server's response to a Ray
client.

**Why it matters.** Ray's internal protocol changes from release to release, so all machines need
the same Ray and the same Python.

**Example.** `RuntimeError: Version mismatch: The cluster was started with: Ray: 2.12.0 ... This
process on node ... was started with: Ray: 2.42.0`

**Fix.** Install one version on all machines, in environments with the same Python; asks first.

**Source.** ray-project/ray: python/ray/_private/utils.py (check_version_info);
docs.ray.io/en/latest/cluster/faq.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The printed Ray versions differ."""
    ours, theirs = (case.value("ray-versions", name) for name in ("ray", "other_ray"))
    is_other = ours is not None and theirs is not None and ours != theirs
    is_unread = case.sees("ray-version-mismatch") and ours is None
    if not is_other and not is_unread and not case.sees("ray-client-version"):
        return None
    return Finding(
        rule="ray-version-mismatch",
        severity="error",
        certainty="likely" if is_unread else "decided",
        problem="Nodes of the Ray cluster run different Ray versions.",
        because=f"Ray {ours} and Ray {theirs} are both in use"
        if is_other
        else "all nodes of a cluster need the same Ray and the same Python",
        evidence=case.evidence("ray-versions", "ray-client-version", "ray-version-mismatch"),
        fixes=(
            Fix(
                text=(
                    "install the cluster's version here, or one version everywhere, and restart Ray"
                ),
                safety="ask",
                commands=(f"pip install ray=={ours or '<version>'}", "ray stop"),
                changes="the environment",
            ),
        ),
        confirm=("ray --version; python --version",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "ray-versions",
            "cluster was started with",
            "cluster is running",
            # Atomic groups: of several "Ray:" in a line only the first is tried. Otherwise each of
            # them is tried with each "Python:" of the next line, and so on.
            pattern=r"cluster (?:was started"
            r"|is running) with:?[^\n]{0,80}+\n(?>[^\n]{0,80}?Ray:)"
            r" ?(?P<ray>[\w.+]++)[^\n]{0,40}+\n(?>[^\n]{0,80}?Python:)"
            r" ?(?P<python>[\w.]++)[^\n]{0,40}+\n(?:[^\n]{0,120}+\n){0,3}?(?>[^\n]{0,160}?s"
            r"tarted with:?)[^\n]{0,40}+\n(?>[^\n]{0,80}?Ray:)"
            r" ?(?P<other_ray>[\w.+]++)[^\n]{0,40}+\n(?>[^\n]{0,80}?Python:)"
            r" ?(?P<other_python>[\w.]+)",
            lines=12,
        ),
        signature(
            "ray-version-mismatch",
            "Version mismatch: The cluster",
            "Version mismatch",
            pattern=r"Version mismatch: The cluster|ray.{0,60}version mismatch",
        ),
        signature(
            "ray-client-version",
            "Client Ray installation incompatible",
            "Ray version mismatch",
            "Changing the ray version is not allowed",
            "Ray versions",
            pattern=r"Client Ray installation incompatible with server"
            r"|\bRay versions? (?:mismatch|differ|do not match)"
            r"|Changing the ray version is not allowed|mismatched Ray versions?",
        ),
    ),
    explains=("ray-python-version-mismatch", "ray-head-unreachable"),
)
