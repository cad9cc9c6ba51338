"""The package has no build for this Python or platform.

**Checks.** Messages of pip, uv, conda and poetry that find no build to install, and their details
about versions and tags. On the machine: a Python without torch, for which torch has no build.

**Why it matters.** Compiled packages are built for each version of Python. Frameworks take months
to support a new Python and drop old ones; none has builds for 32-bit Python.

**Example.** `ERROR: Could not find a version that satisfies the requirement torch (from versions:
none)`

**Fix.** Create an environment with a Python that the package supports, 3.12 for most; asks first.

**Source.** packaging.python.org/en/latest/specifications/platform-compatibility-tags/;
docs.astral.sh/uv/concepts/python-versions/; github.com/pytorch/pytorch/blob/main/RELEASE.md.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_EXPLICIT = ("wheel-tag-missing", "python-not-supported")
# An unreachable index offers no versions, either.
_SILENT = (
    "public-host-silent",
    "network-unreachable",
    "proxy-refused",
    "name-not-resolved",
    "tls-issuer-unknown",
)


def check(case: Case) -> Finding | None:
    """No build fits this Python's tags, or only too old versions are offered."""
    local = case.value("no-matching-version", "local")
    offered = case.value("no-matching-version", "offered")
    is_none = offered == "none" and local is None
    is_older = offered not in (None, "none") and local is None
    if (
        not case.sees(*_EXPLICIT)
        and not is_none
        and not is_older
        and not case.sees("conda-python-pin")
    ):
        return None
    certainty: Certainty = "decided" if case.sees(*_EXPLICIT) else "likely"
    if case.sees(*_SILENT):
        certainty = "possible"
    elif is_none and case.value("no-matching-version", "framework"):
        certainty = "decided"
    return Finding(
        rule="no-wheel-for-python",
        severity="error",
        certainty=certainty,
        problem="The package has no build for this Python or platform.",
        because="compiled packages are built for each version of Python and each platform",
        evidence=case.evidence(*_EXPLICIT, "no-matching-version", "conda-python-pin"),
        fixes=(
            Fix(
                text="create an environment with a Python that the package supports",
                safety="ask",
                commands=("uv venv --python 3.12", "uv pip install <package>"),
                changes="a new folder .venv",
                undo="rm -r .venv",
            ),
        ),
        confirm=(
            "python -VV",
            'python -c "import platform; print(platform.platform())"',
            "pip index versions <package>",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """torch is not installed, and no torch release has a build for this Python."""
    first = next(iter(machine.environments or ()), None)
    number = version(first.version)[:2] if first else ()
    if first is None or not number or machine.framework("torch"):
        return ()
    # Imported only if there is something to check: the tables are slow to load.
    from flatout.compat.tables import shipped_tables

    pythons = [one.python for one in shipped_tables().builds if one.framework == "torch"]
    oldest, newest = min(one[0] for one in pythons), max(one[1] for one in pythons)
    if oldest <= number <= newest:
        return ()
    known = f"torch has builds for {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return fact(f"Python {first.version}; {known}", "the interpreter")


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="python-not-supported", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "wheel-tag-missing",
            "is not a supported wheel on this platform",
            "matching Python ABI tag",
            "matching Python version tag",
            "matching platform tag",
            "only has wheels with the following",
            "matching Python implementation tag",
            "only has wheels for",
            "a source distribution or wheel for the current platform",
            pattern=r"not a supported wheel on this platform|matching (?:Python (?:ABI|version"
            r"|implementation)|platform) tag|only has wheels (?:with the following"
            r"|for the following)|distribution or wheel for the current platform",
        ),
        signature(
            "python-not-supported",
            "requires a different Python",
            "Requires-Python",
            "does not satisfy Python",
            "is not compatible with some of the required packages",
            "not compatible with this Python",
            "no versions of python",
            "Python requirement",
            "is not supported on Python",
            "requires Python",
            "Python version not supported",
            "Cannot install on Python version",
            pattern=r"requires a different Python:|require a different python version"
            r"|does not satisfy Python|supported Python range .{0,60}not compatible"
            r"|Cannot install on Python version|requires Python"
            r" \W?[<>=!~].{0,80}(?:but|not"
            r"|running)|Python version .{0,20}not supported"
            r"|only versions >=?[\d.,<]{3,12} are supported",
        ),
        signature(
            "no-matching-version",
            "Could not find a version that satisfies the requirement",
            pattern=r"satisfies the requirement (?P<framework>torch|tensorflow|jaxlib"
            r"|paddlepaddle|triton|numba|onnxruntime|vllm"
            r"|bitsandbytes)?[\w.-]{0,60}(?:\[[\w,-]{1,40}\])?(?:[=<>!~]{1,2}[\d.*]{"
            r"1,20}(?P<local>\+\w{2,12})?)?[^()]{0,80}\(from versions: (?P<offered>none"
            r"|\d)",
        ),
        signature(
            "conda-python-pin",
            "python_abi",
            "none of the providers can be installed",
            "UnsatisfiableError",
            "Your python:",
            "requires python",
            pattern=r"requires? python ?[<>=,\d.a* _]{3,40}(?:, but|,? which|\s*but)"
            r"|python(?:_abi)? [\d.*=]{1,12}[^\n]{0,60}(?:conflicts with|does not exist"
            r"|none of the providers)|Your python: python=",
        ),
    ),
    explains=("package-not-in-environment",),
)
