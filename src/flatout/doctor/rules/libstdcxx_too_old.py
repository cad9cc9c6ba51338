"""The libstdc++ found first is too old for a library.

**Checks.** GLIBCXX and CXXABI versions that the loader cannot find.

**Why it matters.** conda and the system each have a libstdc++. The one loaded first is used by the
whole process.

**Example.** `libstdc++.so.6: version 'GLIBCXX_3.4.30' not found`

**Fix.** Put the newer one first on the loader's path, in this shell; safe.

**Source.** gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html; pytorch/pytorch#87279.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("libstdcxx-version-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="libstdcxx-too-old",
        severity="error",
        problem="The libstdc++ found first is too old for a library.",
        because="an older libstdc++ is found before the newer one",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=("put conda's libstdc++ first; it is newer than most systems' own"),
                safety="safe",
                commands=(
                    (
                        "export "
                        "LD_LIBRARY_PATH=$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
                    ),
                ),
                where="linux",
                changes=(
                    "only this shell; if conda's is the older one, update it: conda "
                    "install -c conda-forge libstdcxx-ng"
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
