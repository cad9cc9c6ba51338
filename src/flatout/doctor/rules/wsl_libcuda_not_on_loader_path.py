"""WSL's libcuda is not on the loader's path, or only as `libcuda.so.1`.

**Checks.** Programs that fail to open `libcuda.so`, and an `ldconfig -p` that lists only
`libcuda.so.1`. On the machine: which of WSL's libcuda names the loader knows. If it knows only
`libcuda.so.1`, as in every default WSL, this is a note, or a warning if PaddlePaddle is installed,
which opens `libcuda.so`.

**Why it matters.** Under WSL, the driver is in `/usr/lib/wsl/lib`, as three copies: `libcuda.so`,
`libcuda.so.1` and `libcuda.so.1.1`. `ldconfig` caches a copy under its soname, `libcuda.so.1`; it
caches a name without a number only for links. So programs that open `libcuda.so`, such as
PaddlePaddle, older bitsandbytes, cuDNN 8 and older Triton, cannot find it, and do not use the GPU
or abort. Running `sudo ldconfig` again does not help.

**Example.** `Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open
shared object file`

**Fix.** Create a link `/usr/local/lib/libcuda.so` to WSL's `libcuda.so.1`, which `ldconfig` does
cache: it works for every user, service and notebook, and survives driver updates; asks first, and
`flatout undo` removes it. Or add `/usr/lib/wsl/lib` to the loader's path of this shell; safe. Files
in `/usr/lib/wsl/lib` itself belong to Windows and cannot be changed from inside WSL.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/; microsoft/WSL#5663, #8587, #11229;
bitsandbytes-foundation/bitsandbytes#17.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.driver import CudaLibrary
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_LINKED = Fix(
    text="link libcuda.so to WSL's libcuda.so.1, for every user and service",
    safety="ask",
    commands=(
        "sudo ln -s /usr/lib/wsl/lib/libcuda.so.1 /usr/local/lib/libcuda.so",
        "sudo ldconfig",
    ),
    where="wsl",
    changes="creates the link /usr/local/lib/libcuda.so, and updates the loader's cache",
    undo="sudo rm /usr/local/lib/libcuda.so",
)
_SHELL = Fix(
    text="or add WSL's driver to the loader's path of this shell",
    safety="safe",
    commands=("export LD_LIBRARY_PATH=/usr/lib/wsl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",),
    where="wsl",
    changes="only this shell",
    undo="close the shell",
)


def check(case: Case) -> Finding | None:
    """libcuda is requested by name and not found, or the loader knows only some of its names."""
    is_missing = case.sees("libcuda-not-opened")
    is_half_known = case.sees("ldconfig-wsl-libcuda", "libcuda-numbered-alone")
    is_half_known = is_half_known and not case.sees("ldconfig-libcuda")
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
        problem="The loader cannot find libcuda.so.",
        because=(
            "WSL's libcuda is a copy under each of its names, and the loader's cache lists "
            "copies only as libcuda.so.1"
        ),
        evidence=case.evidence(
            "libcuda-not-opened", "ldconfig-wsl-libcuda", "libcuda-numbered-alone", "paddle-here"
        ),
        fixes=(_LINKED, _SHELL),
        confirm=(
            "ldconfig -p | grep libcuda",
            """python3 -c 'import ctypes; ctypes.CDLL("libcuda.so")'""",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """WSL provides libcuda, but the loader knows none."""
    if not _is_known(machine) or _found(machine):
        return ()
    return (
        *fact("libcuda exists", "/usr/lib/wsl/lib"),
        *fact("no libcuda", "ldconfig, LD_LIBRARY_PATH"),
    )


def _numbered_alone(machine: Machine) -> Facts:
    """The loader knows libcuda.so.1, but not libcuda.so."""
    found = _found(machine) if _is_known(machine) else ()
    if not found or any(one.is_plain is not False for one in found):
        return ()
    return fact("libcuda.so.1, but no libcuda.so", found[0].found_by or "ldconfig")


def _numbered_alone_with_paddle(machine: Machine) -> Facts:
    """The same, if PaddlePaddle, which opens libcuda.so, is installed."""
    paddle = machine.framework("paddlepaddle")
    facts = _numbered_alone(machine) if paddle and paddle.version else ()
    return (*facts, *fact("PaddlePaddle opens libcuda.so", "metadata")) if facts else ()


def _is_known(machine: Machine) -> bool:
    held = machine.wsl.libraries if machine.wsl else None
    if machine.host.wsl != 2 or not held or not any(one.startswith("libcuda.so") for one in held):
        return False
    return machine.libraries is not None and "libraries" not in machine.unread


def _found(machine: Machine) -> tuple[CudaLibrary, ...]:
    return tuple(one for one in machine.libraries or () if one.name == "libcuda")


RULE = Rule(
    check=check,
    fact_checks=(
        FactCheck(sign="ldconfig-wsl-libcuda", read=_in_facts),
        # The first one that matches sets the finding's severity.
        FactCheck(sign="paddle-here", read=_numbered_alone_with_paddle, severity="warning"),
        FactCheck(
            sign="libcuda-numbered-alone",
            read=_numbered_alone,
            severity="note",
            certainty="likely",
        ),  # fmt: skip
    ),
    signatures=(
        signature(
            "ldconfig-wsl-libcuda",
            "/usr/lib/wsl/lib",
            pattern=r"libcuda\.so\.1 \(\S*\) => /usr/lib/wsl/lib",
        ),
        signature("ldconfig-libcuda", "libcuda.so", pattern=r"libcuda\.so \(\S*\) =>"),
    ),
)
