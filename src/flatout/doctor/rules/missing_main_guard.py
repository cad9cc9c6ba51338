"""The script starts itself again in each process: `if __name__ == "__main__":` is missing.

**Checks.** multiprocessing's complaint, and workers that die at their start on Windows and macOS.

**Why it matters.** Where processes are not forked (Windows, macOS, and Linux from Python 3.14),
each imports the script. What stands at its top level then runs again.

**Example.** `An attempt has been made to start a new process before the current process has
finished its bootstrapping phase.`

**Fix.** Put what starts the training under `if __name__ == "__main__":`; by hand.

**Source.** docs.python.org/3/library/multiprocessing.html (the spawn and forkserver start
methods).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """multiprocessing says so; or its workers die at once on Windows."""
    is_told = case.sees("spawn-without-guard")
    is_broken = case.sees("spawn-pipe-broken") and case.machine.host.os == "windows"
    if not is_told and not is_broken:
        return None
    return Finding(
        rule="missing-main-guard",
        severity="error",
        certainty="decided" if is_told else "likely",
        problem='The script starts itself again in each process: `if __name__ == "__main__":` '
        "is missing.",
        because="spawned processes import the script, and run again what stands at its top level",
        evidence=case.evidence("spawn-without-guard", "spawn-pipe-broken"),
        fixes=(
            Fix(
                text="put what starts the work into a function, called under `if __name__ =="
                ' "__main__":`',
            ),
            Fix(
                text="in a notebook, or until then: `num_workers=0`",
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
