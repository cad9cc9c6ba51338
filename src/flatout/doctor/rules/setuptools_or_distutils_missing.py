"""The code needs distutils or pkg_resources, which this Python no longer includes.

**Checks.** Failed imports of distutils and pkg_resources.

**Why it matters.** Python 3.12 removed distutils and no longer installs setuptools in new
environments; setuptools 81 and later remove pkg_resources.

**Example.** `ModuleNotFoundError: No module named 'distutils'`

**Fix.** `pip install "setuptools<81"`, or a newer version of the package; asks first.

**Source.** docs.python.org/3/whatsnew/3.12.html; setuptools.pypa.io/en/latest/pkg_resources.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Failed imports of distutils and pkg_resources."""
    if not case.sees("distutils-missing"):
        return None
    return Finding(
        rule="setuptools-or-distutils-missing",
        severity="error",
        problem="The code needs distutils or pkg_resources, which this Python no longer includes.",
        because="Python 3.12 has no distutils, and new environments have no setuptools",
        evidence=case.evidence("distutils-missing"),
        fixes=(
            Fix(
                text="install a setuptools that includes both",
                safety="ask",
                commands=('python -m pip install "setuptools<81"',),
                changes="the environment",
                undo="python -m pip uninstall setuptools",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "distutils-missing",
            "No module named 'distutils",
            "No module named 'pkg_resources'",
            "No module named 'distutils.msvccompiler'",
            "No module named distutils",
            "pkgutil",
            "canonicalize_version() got an unexpected",
            pattern=r"No module named '?(?:distutils|pkg_resources)"
            r"|module 'pkgutil' has no attribute 'ImpImporter'"
            r"|canonicalize_version\(\) got an unexpected",
        ),
    ),
)
