"""Dask's client, scheduler and workers have different package versions.

**Checks.** Dask's version table, and objects it cannot unpickle.

**Why it matters.** They exchange tasks as pickled objects and MessagePack. Different versions of
Python, dask, distributed, msgpack or cloudpickle misread each other, sometimes much later.

**Example.** `VersionMismatchWarning: Mismatched versions found`

**Fix.** Install the same environment on all machines, from one lock file or image; asks first.

**Source.** dask/distributed: distributed/versions.py;
docs.dask.org/en/stable/deploying-python-advanced.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Dask found different versions, or could not read a message."""
    is_pickled = case.sees("pickle-of-other-python", "dask-cannot-read") and case.sees("dask-named")
    if not case.sees("dask-versions-differ") and not is_pickled:
        return None
    has_failed = is_pickled or case.sees("dask-failed")
    return Finding(
        rule="dask-version-mismatch",
        severity="error" if has_failed else "warning",
        certainty="decided" if case.sees("dask-versions-differ") else "likely",
        problem="Dask's client, scheduler and workers have different package versions.",
        because="they exchange pickled objects, which other versions cannot read",
        evidence=case.evidence(
            "dask-versions-differ", "dask-cannot-read", "pickle-of-other-python"
        ),
        fixes=(
            Fix(
                text="install the same versions on all machines",
                safety="ask",
                commands=(
                    'python -c "import distributed as d; print(d.__version__)"',
                    "pip install 'dask[distributed]==<version of the scheduler>'",
                ),
                changes="the environment",
            ),
        ),
        confirm=('python -c "import distributed as d; print(d.__version__)"',),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "dask-versions-differ",
            "Mismatched versions found",
            "VersionMismatchWarning",
            "versions of Dask",
            "Dask versions",
            "dask version",
            "distributed versions",
            pattern=r"Mismatched versions found|VersionMismatchWarning|\b(?:dask"
            r"|distributed)\b[^\n]{0,40} versions? (?:mismatch|differ|do not"
            r" match|don't match)",
        ),
        signature(
            "dask-cannot-read",
            "could not deserialize",
            "Failed to deserialize",
            "strict_map_key",
            "msgpack",
            "cloudpickle",
            "Unrecognized message",
            "Error during deserialization",
            pattern=r"(?:Could not|Failed to) deserialize|strict_map_key|Unrecognized message"
            r"|Error during deserialization",
        ),
        signature(
            "dask-named",
            "distributed.protocol",
            "distributed.worker",
            "distributed.core",
            "distributed.scheduler",
            "distributed/protocol",
            "distributed/worker",
            "distributed/core",
            "distributed/scheduler",
            "distributed/comm",
            "dask",
            pattern=r"distributed[./](?:protocol|worker|core|scheduler|comm|client|nanny)"
            r"|\bdask\b",
        ),
        signature(
            "dask-failed",
            "KilledWorker",
            "CommClosedError",
            "distributed",
            pattern=r"KilledWorker|CommClosedError|distributed\.\w+ - ERROR",
        ),
    ),
    explains=("ray-python-version-mismatch",),
)
