"""Packages from the user folder or PYTHONPATH are used instead of the environment's.

**Checks.** Paths of `~/.local` or `%APPDATA%\\\\Python` together with those of an environment, and
PYTHONPATH. On the machine: packages that come from those folders although there is an environment.

**Why it matters.** Python searches PYTHONPATH first, and conda environments also see the user
folder, which `pip install --user` fills for all of them.

**Example.** `/home/me/.local/lib/python3.10/site-packages/torch/__init__.py` in an environment's
traceback

**Fix.** `PYTHONNOUSERSITE=1` and no PYTHONPATH; safe. Then remove the copy from the user folder;
asks first.

**Source.** docs.python.org/3/using/cmdline.html (PYTHONNOUSERSITE);
docs.python.org/3/library/site.html.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """Modules from the user folder were loaded in an environment, or PYTHONPATH adds others."""
    is_mixed = case.sees("user-site-path") and case.sees("environment-path")
    is_path = case.sees("pythonpath-set") and case.sees("import-failed")
    if not is_mixed and not is_path and not case.sees("user-site-told"):
        return None
    is_failing = case.sees("import-failed", "user-site-told")
    return Finding(
        rule="user-site-shadows-env",
        severity="error" if is_failing else "warning",
        certainty="decided" if is_failing and is_mixed else "likely",
        problem=(
            "Packages from the user folder or PYTHONPATH are used instead of the environment's."
        ),
        because=("Python searches PYTHONPATH before the environment, and the user folder as well"),
        evidence=case.evidence(
            "user-site-told", "user-site-path", "environment-path", "pythonpath-set"
        ),
        fixes=(
            Fix(
                text="start without either",
                safety="safe",
                commands=("env -u PYTHONPATH PYTHONNOUSERSITE=1 <the same command>",),
                changes="nothing permanently",
            ),
            Fix(
                text="remove the copy from the user folder",
                safety="ask",
                commands=("python -m site --user-site", "pip uninstall <package>"),
                changes="removes it for all environments",
                undo="pip install --user <package>",
            ),
        ),
        confirm=('python -c "import sys; print(*sys.path)"', "python -m site"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Packages come from outside the environment."""
    first = next(iter(machine.environments or ()), None)
    if first is None or not first.outside:
        return ()
    names = ", ".join(first.outside[:4])
    return fact(f"from outside the environment: {names}", "the user folder or PYTHONPATH")


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="user-site-told", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "user-site-path",
            "/.local/lib/python",
            "AppData\\Roaming\\Python",
            pattern=r"/\.local/lib/python[23]\.\d{1,2}/site-packages"
            r"|Roaming\\{1,2}Python\\{1,2}Python3\d{1,2}\\{1,2}site-packages",
        ),
        signature(
            "environment-path",
            "envs",
            "venv",
            "virtualenvs",
            "miniconda",
            "anaconda",
            "miniforge",
            "mambaforge",
            "conda",
            pattern=r"(?:/envs/|\\envs\\|/\.?venv|\\\.?venv|/virtualenvs/|/\.?(?:mini|ana)conda\d?/"
            r"|/mini(?:forge|mamba)\d?/|/mambaforge/|\\(?:mini|ana)conda\d?\\"
            r"|/opt/conda/)[^\s:]{0,80}(?:lib|Lib|bin|Scripts|python)|CONDA_PREFIX=|"
            r"VIRTUAL_ENV=",
        ),
        signature(
            "pythonpath-set",
            "PYTHONPATH",
            pattern=r"PYTHONPATH\s*[=:]\s*\W?(?:\S{0,200}(?:site|dist)-packages|/opt/ros/"
            r"|[A-Z]:\\)",
        ),
        signature(
            "user-site-told",
            "user site",
            "user-site",
            "usersite",
            "ENABLE_USER_SITE",
            pattern=r"ENABLE_USER_SITE: True|user[- ]site.{0,60}(?:shadow|instead of|before|over"
            r"|wins)|(?:shadow|instead of|picked up).{0,60}(?:user[- ]site|~/\.local)",
        ),
        signature(
            "import-failed",
            "ImportError",
            "ModuleNotFoundError",
            "AttributeError",
            "undefined symbol",
            "RuntimeError",
            "VersionConflict",
            "ContextualVersionConflict",
            "OSError",
            "TypeError",
            "numpy.dtype size changed",
            pattern=r"^\S{0,3}(?:ImportError|ModuleNotFoundError|AttributeError|RuntimeError"
            r"|OSError|TypeError|ValueError|\w*VersionConflict)\b|undefined symbol",
        ),
    ),
    explains=("package-not-in-environment",),
)
