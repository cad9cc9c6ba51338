"""Nodes of the Ray cluster run different Python versions.

**Checks.** The versions that Ray prints when a process joins, and unpickling errors.

**Why it matters.** Ray sends functions between machines as pickled bytecode, which differs between
Python versions.

**Example.** `Version mismatch: The cluster was started with: ... Python: 3.6.5 ... This process
... Python: 3.6.7`

**Fix.** Use the same Python, down to the patch version, on all machines; asks first.

**Source.** ray-project/ray: python/ray/_private/utils.py (check_version_info),
python/ray/util/client/worker.py.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The Ray versions match, but the Python versions do not."""
    ours, theirs = (case.value("ray-versions", name) for name in ("python", "other_python"))
    is_other = ours is not None and theirs is not None and ours != theirs
    is_pickled = case.sees("pickle-of-other-python") and case.sees("ray-named")
    if not is_other and not is_pickled and not case.sees("ray-client-python"):
        return None
    return Finding(
        rule="ray-python-version-mismatch",
        severity="error",
        certainty="decided" if is_other or case.sees("ray-client-python") else "likely",
        problem="Nodes of the Ray cluster run different Python versions.",
        because=f"Python {ours} and Python {theirs} are both in use"
        if is_other
        else "functions are sent as bytecode, which differs between Python versions",
        evidence=case.evidence("ray-versions", "ray-client-python", "pickle-of-other-python"),
        fixes=(
            Fix(
                text="create an environment with the cluster's Python here",
                safety="ask",
                commands=(
                    f"uv venv --python {ours or '<version>'}",
                    "uv pip install 'ray==<version of the cluster>'",
                ),
                changes="a new environment",
            ),
        ),
        confirm=("ray --version; python --version",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "ray-client-python",
            "Python minor versions differ",
            "Python patch version",
            "Python versions",
            "Python version mismatch",
            "Python minor version",
            "python version",
            pattern=r"Python (?:minor |patch )?versions? differ between client and server"
            r"|Python versions? mismatch.{0,80}(?:client|server|ray|cluster|worker)|"
            r"(?:\bray\b"
            r"|raylet|RuntimeEnv|cluster|worker).{0,120}Python (?:minor "
            r"|patch )?versions? (?:mismatch|differ)"
            r"|different Python (?:minor )?versions?.{0,80}\b(?:ray|cluster|driver)\b",
        ),
        signature(
            "pickle-of-other-python",
            "unsupported pickle protocol",
            "code expected at most",
            "code() takes",
            "code() argument",
            "unknown opcode",
            pattern=r"unsupported pickle protocol|code expected at (?:most|least) \d+ arg"
            r"|code\(\) (?:takes|argument \d+)|SystemError: unknown opcode",
        ),
        signature(
            "ray-named",
            "ray.init",
            "raylet",
            "import ray",
            "ray::",
            "ray.exceptions",
            "ray/_private",
            "ray.get",
            "ray.remote",
            "cloudpickle",
            pattern=r"ray\.init|raylet|import ray|ray::|ray\.exceptions|\bray/|ray\.get"
            r"|ray\.remote",
        ),
    ),
    explains=("ray-head-unreachable",),
)
