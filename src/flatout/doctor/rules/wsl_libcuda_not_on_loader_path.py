"""WSL's libcuda is not on the loader's path, or only as `libcuda.so.1`.

**Checks.** Programs that fail to open `libcuda.so`, and `ldconfig -p` that knows `libcuda.so.1`
alone. On the machine: what of WSL's libcuda the loader knows. Where it knows `libcuda.so.1` alone,
as every WSL does by itself, this is a note, and a warning beside PaddlePaddle, which opens
`libcuda.so`.

**Why it matters.** Under WSL the driver lies in `/usr/lib/wsl/lib`, as three copies: `libcuda.so`,
`libcuda.so.1` and `libcuda.so.1.1`. `ldconfig` enters a copy under the name it holds inside,
`libcuda.so.1`; a name without a number it enters for links alone. So what opens `libcuda.so`, as
PaddlePaddle, older bitsandbytes, cuDNN 8 and older Triton do, finds nothing, and the GPU stays
unused or the program aborts. Running `sudo ldconfig` again does not help.

**Example.** `Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open
shared object file`

**Fix.** A link `/usr/local/lib/libcuda.so` to WSL's `libcuda.so.1`, which `ldconfig` does enter:
for every user, service and notebook, and it stays when the driver is updated; asked first, and
taken back by `flatout undo`. Or `/usr/lib/wsl/lib` on the loader's path of this shell; safe. Files
in `/usr/lib/wsl/lib` itself are Windows' and cannot be changed from inside.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/; microsoft/WSL#5663, #8587, #11229;
bitsandbytes-foundation/bitsandbytes#17.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.driver import CudaLibrary
from flatout.nouns.finding import Certainty, Finding, Fix
from flatout.nouns.machine import Machine

_LINKED = Fix(
    text="link libcuda.so to WSL's libcuda.so.1, for every user and service",
    safety="ask",
    commands=(
        "sudo ln -s /usr/lib/wsl/lib/libcuda.so.1 /usr/local/lib/libcuda.so",
        "sudo ldconfig",
    ),
    where="wsl",
    changes="/usr/local/lib/libcuda.so, a link, and the loader's cache",
    undo="sudo rm /usr/local/lib/libcuda.so",
)
_SHELL = Fix(
    text="or put WSL's driver on the loader's path of this shell",
    safety="safe",
    commands=("export LD_LIBRARY_PATH=/usr/lib/wsl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",),
    where="wsl",
    changes="this shell alone",
    undo="close the shell",
)


def check(case: Case) -> Finding | None:
    """libcuda is asked for by name and not found, or known to the loader by half."""
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
        problem="The loader does not find libcuda.so.",
        because="WSL's libcuda is a copy under each of its names, and the loader's cache holds "
        "copies as libcuda.so.1 alone",
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
    """WSL brings libcuda, and the loader knows none."""
    if not _is_known(machine) or _found(machine):
        return ()
    return (
        *fact("libcuda is there", "/usr/lib/wsl/lib"),
        *fact("no libcuda", "ldconfig, LD_LIBRARY_PATH"),
    )


def _numbered_alone(machine: Machine) -> Facts:
    """The loader knows libcuda.so.1, and no libcuda.so."""
    found = _found(machine) if _is_known(machine) else ()
    if not found or any(one.is_plain is not False for one in found):
        return ()
    return fact("libcuda.so.1, and no libcuda.so", found[0].found_by or "ldconfig")


def _beside_paddle(machine: Machine) -> Facts:
    """The same, where PaddlePaddle, which opens libcuda.so, is installed."""
    paddle = machine.framework("paddlepaddle")
    told = _numbered_alone(machine) if paddle and paddle.version else ()
    return (*told, *fact("PaddlePaddle opens libcuda.so", "metadata")) if told else ()


def _is_known(machine: Machine) -> bool:
    held = machine.wsl.libraries if machine.wsl else None
    if machine.host.wsl != 2 or not held or not any(one.startswith("libcuda.so") for one in held):
        return False
    return machine.libraries is not None and "libraries" not in machine.unread


def _found(machine: Machine) -> tuple[CudaLibrary, ...]:
    return tuple(one for one in machine.libraries or () if one.name == "libcuda")


RULE = Rule(
    check=check,
    readings=(
        Reading(sign="ldconfig-wsl-libcuda", read=_in_facts),
        # The first that speaks weighs the finding.
        Reading(sign="paddle-here", read=_beside_paddle, severity="warning"),
        Reading(
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
