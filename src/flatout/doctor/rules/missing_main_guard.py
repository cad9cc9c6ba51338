"""Each worker process runs the script again: `if __name__ == "__main__":` is missing.

**Checks.** multiprocessing's error, and workers that die at startup on Windows and macOS.

**Why it matters.** If processes are not forked (Windows, macOS, and Linux since Python 3.14), each
one imports the script, and its top-level code runs again.

**Example.** `An attempt has been made to start a new process before the current process has
finished its bootstrapping phase.`

**Fix.** Put the code that starts the training under `if __name__ == "__main__":`; by hand.

**Source.** docs.python.org/3/library/multiprocessing.html (the spawn and forkserver start
methods).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """multiprocessing reports it; or its workers die immediately on Windows."""
    is_explicit = case.sees("spawn-without-guard")
    is_broken = case.sees("spawn-pipe-broken") and case.machine.host.os == "windows"
    if not is_explicit and not is_broken:
        return None
    return Finding(
        rule="missing-main-guard",
        severity="error",
        certainty="decided" if is_explicit else "likely",
        problem=(
            'Each worker process runs the script again: `if __name__ == "__main__":` is missing.'
        ),
        because="spawned processes import the script and run its top-level code again",
        evidence=case.evidence("spawn-without-guard", "spawn-pipe-broken"),
        fixes=(
            Fix(
                text=(
                    "put the code that starts the work into a function, and call it under "
                    '`if __name__ == "__main__":`'
                ),
            ),
            Fix(
                text="in a notebook, or as a workaround, use `num_workers=0`",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "spawn-without-guard",
            "finished its bootstrapping phase",
            "bootstrapping phase",
            "_check_not_importing_main",
            "freeze_support()",
            pattern=r"bootstrapping phase|_check_not_importing_main|^\s*freeze_support\(\)\s*$",
        ),
        signature(
            "spawn-pipe-broken",
            "Broken pipe",
            "Ran out of input",
            "exited unexpectedly",
            "reduction.dump",
            pattern=r"BrokenPipeError: \[(?:Errno|WinError) \d+\]|EOFError: Ran out of input"
            r"|DataLoader worker \(pid\(?s?\)? [\d, ]{1,60}\) exited unexpectedly",
        ),
    ),
    explains=("windows-paging-file-too-small",),
)
