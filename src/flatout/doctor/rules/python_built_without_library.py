"""This Python was built without a required library.

**Checks.** Missing modules of the standard library.

**Why it matters.** pyenv and others compile Python on the machine. Libraries not installed then,
such as libffi or OpenSSL, are skipped without an error.

**Example.** `ModuleNotFoundError: No module named '_ctypes'`

**Fix.** Install the development packages and recompile Python, or use a prebuilt one from uv or
conda; asks first.

**Source.** github.com/pyenv/pyenv/wiki (suggested build environment);
docs.astral.sh/uv/concepts/python-versions/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Missing modules of the standard library."""
    if not case.sees("standard-module-missing"):
        return None
    return Finding(
        rule="python-built-without-library",
        severity="error",
        problem="This Python was built without a required library.",
        because="the library's headers were not installed when this Python was compiled",
        evidence=case.evidence("standard-module-missing"),
        fixes=(
            Fix(
                text="use a complete Python",
                safety="ask",
                commands=("uv venv --python 3.12",),
                changes="a new folder .venv",
                undo="rm -r .venv",
            ),
            Fix(
                text="or recompile it with the headers",
                safety="ask",
                commands=(
                    "sudo apt install libssl-dev libffi-dev libsqlite3-dev liblzma-dev",
                    "pyenv install --force <version>",
                ),
                where="linux",
                changes="installs packages and replaces that Python",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "standard-module-missing",
            "No module named '_ctypes'",
            "No module named '_lzma'",
            "No module named '_bz2'",
            "No module named '_sqlite3'",
            "No module named '_ssl'",
            "No module named '_tkinter'",
            "No module named '_hashlib'",
            "No module named '_uuid'",
            "SSL module is not available",
            "SSL module in Python is not available",
            "ssl module in Python is not available",
            "compiled without",
            "Could not import the lzma module",
            pattern=r"No module named '_(?:ctypes|lzma|bz2|sqlite3|ssl|tkinter|hashlib|uuid)'"
            r"|ssl module (?:in Python )?is not available|Python.{0,60} was not"
            r" compiled with"
            r"|Could not import the lzma module|extension was not compiled",
        ),
    ),
)
