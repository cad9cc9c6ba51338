"""The package is not installed in the running environment.

**Checks.** Modules that cannot be found.

**Why it matters.** `pip` and `python` may belong to different environments, and a notebook's kernel
to a third one.

**Example.** `ModuleNotFoundError: No module named 'torch'`

**Fix.** Run `python -m pip install` with the same `python` that runs the program; asks first.

**Source.** docs.python.org/3/library/venv.html;
packaging.python.org/en/latest/tutorials/installing-packages/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """A module was not found; build isolation has its own rule."""
    if not case.sees("module-not-found") or case.sees("build-isolation"):
        return None
    return Finding(
        rule="package-not-in-environment",
        severity="error",
        certainty="possible",
        problem="The package is not installed in the running environment.",
        because="`pip` and `python` may belong to different environments",
        evidence=case.evidence("module-not-found"),
        fixes=(
            Fix(
                text="install it with the Python that runs the program",
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
