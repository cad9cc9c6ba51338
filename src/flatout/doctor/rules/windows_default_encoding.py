"""A UTF-8 file was read with Windows' code page.

**Checks.** Decoding errors of codecs other than UTF-8.

**Why it matters.** Before Python 3.15, `open()` without `encoding=` uses the code page of Windows'
language.

**Example.** `UnicodeDecodeError: 'cp1252' codec can't decode byte 0x9d`

**Fix.** Set `PYTHONUTF8=1`, or pass `encoding="utf-8"`; safe.

**Source.** peps.python.org/pep-0540; peps.python.org/pep-0686.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Decoding errors of codecs other than UTF-8."""
    if not case.sees("code-page-failed"):
        return None
    return Finding(
        rule="windows-default-encoding",
        severity="error",
        problem="A UTF-8 file was read with Windows' code page.",
        because="`open()` without `encoding=` uses the code page of Windows' language",
        evidence=case.evidence("code-page-failed"),
        fixes=(
            Fix(
                text="read and write UTF-8 everywhere",
                safety="safe",
                commands=("$env:PYTHONUTF8 = 1",),
                where="powershell",
                changes="environment variables of this shell",
                undo="Remove-Item Env:PYTHONUTF8",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "code-page-failed",
            "'charmap' codec",
            "'cp1252' codec",
            "'gbk' codec",
            "'cp932' codec",
            "'cp949' codec",
            "'cp936' codec",
            "'cp950' codec",
            "'big5' codec",
            "codec can't decode",
            "codec can't encode",
            pattern=r"Unicode(?:De|En)codeError: '(?:charmap|cp\d{3,4}|gbk|big5|shift_jis|euc_kr"
            r"|mbcs)' codec",
        ),
    ),
)
