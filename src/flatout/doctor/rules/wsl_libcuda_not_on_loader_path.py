"""WSL's libcuda is not on the loader's path.

**Checks.** Programs that fail to open `libcuda.so`, and `ldconfig -p` that knows `libcuda.so.1`
alone. On the machine: WSL's libcuda in its folder, and none that the loader knows.

**Why it matters.** Under WSL the driver lies in `/usr/lib/wsl/lib`. What opens `libcuda.so`
without a number, as cuDNN 8 and Triton do, finds nothing, and the GPU stays unused or the program
aborts.

**Example.** `Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open
shared object file`

**Fix.** Put `/usr/lib/wsl/lib` on the loader's path of this shell; safe.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/; microsoft/WSL#5663, #8587.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Certainty, Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Block

_FIX = Fix(
    text="put WSL's driver on the loader's path",
    safety="safe",
    commands=("export LD_LIBRARY_PATH=/usr/lib/wsl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",),
    where="wsl",
    changes="this shell alone",
    undo="close the shell",
)
_KEPT = Fix(
    text="or for every new shell",
    safety="ask",
    edits=(Block(file="~/.bashrc", name="WSL's libcuda", lines=_FIX.commands),),
    where="wsl",
    changes="adds a block of lines to ~/.bashrc",
    undo="take the block out",
)


def check(case: Case) -> Finding | None:
    """libcuda is asked for by name and not found, or known to the loader by half."""
    is_missing = case.sees("libcuda-not-opened")
    is_half_known = case.sees("ldconfig-wsl-libcuda") and not case.sees("ldconfig-libcuda")
    if not is_missing and not is_half_known:
        return None
    is_plain = is_missing and not case.value("libcuda-not-opened", "versioned")
    certainty: Certainty
    if is_missing and not case.is_wsl and not is_plain:
        certainty = "possible"
    else:
        certainty = "decided" if case.is_wsl and is_missing else "likely"
    return Finding(
        rule="wsl-libcuda-not-on-loader-path",
        severity="error" if is_missing else "warning",
        certainty=certainty,
        problem="The loader does not find libcuda.so.",
        because="under WSL it lies in /usr/lib/wsl/lib, which is not on the loader's path",
        evidence=case.evidence("libcuda-not-opened", "ldconfig-wsl-libcuda"),
        fixes=(_FIX, _KEPT),
        confirm=("ldconfig -p | grep libcuda", "ls /usr/lib/wsl/lib"),
    )


def _in_facts(machine: Machine) -> Facts:
    """WSL brings libcuda, and the loader knows none."""
    held = machine.wsl.libraries if machine.wsl else None
    if machine.host.wsl != 2 or not held or not any(one.startswith("libcuda.so") for one in held):
        return ()
    if machine.libraries is None or "libraries" in machine.unread:
        return ()
    if any(one.name == "libcuda" for one in machine.libraries):
        return ()
    return (
        *fact("libcuda is there", "/usr/lib/wsl/lib"),
        *fact("no libcuda", "ldconfig, LD_LIBRARY_PATH"),
    )


RULE = Rule(
    check=check,
    readings=(Reading(sign="ldconfig-wsl-libcuda", read=_in_facts),),
    signatures=(
        signature(
            "ldconfig-wsl-libcuda",
            "/usr/lib/wsl/lib",
            pattern=r"libcuda\.so\.1 \(\S*\) => /usr/lib/wsl/lib",
        ),
        signature("ldconfig-libcuda", "libcuda.so", pattern=r"libcuda\.so \(\S*\) =>"),
    ),
)
