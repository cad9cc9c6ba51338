"""The libstdc++ that is found first is older than a library needs.

**Checks.** Versions of GLIBCXX and CXXABI that the loader does not find.

**Why it matters.** conda and the system each bring a libstdc++. Whichever is loaded first serves
the whole process.

**Example.** `libstdc++.so.6: version 'GLIBCXX_3.4.30' not found`

**Fix.** Let the newer one be found first, in this shell; safe.

**Source.** gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html; pytorch/pytorch#87279.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("libstdcxx-version-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="libstdcxx-too-old",
        severity="error",
        problem="The libstdc++ that is found first is older than a library needs.",
        because="another libstdc++ is found before the newer one",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=("let conda's libstdc++, which is newer than most systems', be found first"),
                safety="safe",
                commands=(
                    (
                        "export "
                        "LD_LIBRARY_PATH=$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
                    ),
                ),
                where="linux",
                changes=(
                    "this shell alone; where conda's is the older one, update it: conda"
                    " install -c conda-forge libstdcxx-ng"
                ),
                undo="close the shell",
            ),
        ),
        confirm=(
            "strings $CONDA_PREFIX/lib/libstdc++.so.6 | grep GLIBCXX_3.4",
            "ldconfig -p | grep libstdc",
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "libstdcxx-version-missing",
            "GLIBCXX",
            "CXXABI",
            pattern=r"(?:GLIBCXX|CXXABI)_[\d.]+\W{0,3} not found",
        ),
    ),
    explains=("extension-abi-mismatch",),
)
