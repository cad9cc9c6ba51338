"""The package is not in the environment that runs.

**Checks.** Modules that are not found.

**Why it matters.** `pip` and `python` may belong to different environments, and a notebook's
kernel to a third.

**Example.** `ModuleNotFoundError: No module named 'torch'`

**Fix.** `python -m pip install`, with the very `python` that runs; asked first.

**Source.** docs.python.org/3/library/venv.html;
packaging.python.org/en/latest/tutorials/installing-packages/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """A module was not found; a build that hides it is another rule's."""
    if not case.sees("module-not-found") or case.sees("build-isolation"):
        return None
    return Finding(
        rule="package-not-in-environment",
        severity="error",
        certainty="possible",
        problem="The package is not in the environment that runs.",
        because="`pip` and `python` may belong to different environments",
        evidence=case.evidence("module-not-found"),
        fixes=(
            Fix(
                text="install it with the Python that runs",
                safety="ask",
                commands=("python -m pip install <package>",),
                changes="the environment",
                undo="python -m pip uninstall <package>",
            ),
        ),
        confirm=("python -m pip --version", 'python -c "import sys; print(sys.executable)"'),
    )


RULE = Rule(
    check=check,
    prior=20,
    signatures=(
        signature(
            "module-not-found",
            "ModuleNotFoundError",
            pattern=r"ModuleNotFoundError: No module named '?(?P<module>(?!triton|_ctypes|_lzma"
            r"|_bz2|_sqlite3|_ssl|_tkinter|_curses|_hashlib|_uuid|distutils|pkg_reso"
            r"urces|pip\b"
            r"|venv|ensurepip|fcntl|pwd|grp|resource|termios|numpy\.core"
            r"|numpy\._core)[\w.]{2,60})",
        ),
    ),
)
