"""This build of Windows has no GPU for WSL, or a broken one.

**Checks.** The build of Windows (WSL needs 19044, that is 10 21H2, or Windows 11), and programs
that find no DXCore. On the machine: Windows' build.

**Why it matters.** Windows gives WSL its GPU through `/dev/dxg`. Older builds do not have it, and
the newest driver does not change that.

**Example.** `dxcore initialization failed, continuing assuming a non-WSL environment`

**Fix.** Update Windows, then `wsl --update`; by hand.

**Source.** MicrosoftDocs/WSL: tutorials/gpu-compute.md; NVIDIA/nvidia-docker#1542;
microsoft/WSL#6773 (a preview).
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Certainty, Finding, Fix
from flatout.nouns.machine import Machine

OLDEST_BUILD = 19044
# Insider builds between Windows 10 and 11, but for Server 2022.
_PREVIEWS = frozenset(range(20150, 22000)) - {20348}


def check(case: Case) -> Finding | None:
    """A build that is too old, or a library that only a newer Windows brings."""
    build = case.machine.windows.build if case.machine.windows else None
    number = int(build.split(".")[2]) if build else None
    is_old = number is not None and number < OLDEST_BUILD
    failures = (
        "dxcore-missing", "nvml-blocked", "driver-request-failed", "dxg-missing", "cuda-no-device",
        "smi-cannot-communicate", "cuda-driver-insufficient",
    )  # fmt: skip
    is_preview = number in _PREVIEWS and case.is_wsl and case.sees(*failures)
    is_told = case.sees("dxcore-missing", "driver-request-failed")
    if not is_told and not is_preview and not (is_old and case.is_wsl):
        return None
    certainty: Certainty
    if case.sees("dxcore-missing") or (is_old and case.sees(*failures)):
        certainty = "decided"
    else:
        certainty = "likely"
    return Finding(
        rule="wsl-windows-build-unsuitable",
        severity="error",
        certainty=certainty,
        problem="This build of Windows does not give WSL a GPU.",
        because=f"build {number}; WSL's GPU needs {OLDEST_BUILD}" if is_old
        else f"build {number} was a preview, in which it came and went" if is_preview
        else "DXCore, through which Windows shares the GPU, does not start",
        evidence=case.evidence(*failures, "windows-build"),
        fixes=(
            Fix(
                text="update Windows to 10 21H2 or 11, then WSL and the NVIDIA driver of Windows",
                commands=("winver", "wsl --update", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
            ),
        ),
        confirm=("cmd.exe /c ver", "ls -l /dev/dxg /usr/lib/wsl/lib"),
    )  # fmt: skip


def _in_facts(machine: Machine) -> Facts:
    """Under WSL, a build before the first that shares its GPU."""
    build = machine.windows.build if machine.windows else None
    if not machine.host.wsl or build is None or int(build.split(".")[2]) >= OLDEST_BUILD:
        return ()
    return fact(f"Windows {build}", "cmd.exe")


RULE = Rule(
    check=check,
    prior=75,
    readings=(Reading(sign="windows-build", read=_in_facts),),
    signatures=(
        signature(
            "dxcore-missing",
            "dxcore initialization failed",
            "libdxcore.so",
            pattern=r"dxcore initialization failed|libdxcore\.so: cannot open",
        ),
        signature("driver-request-failed", "driver error: failed to process request"),
        signature(
            "dxg-missing", "/dev/dxg", pattern=r"/dev/dxg'?: No such file|/dev/dxg.{0,20}not found"
        ),
    ),
    explains=(
        "wsl-gpu-stack-incomplete",
        "docker-nvidia-toolkit-missing",
        "driver-too-old-for-cuda-runtime",
        "cuda-visible-devices-wrong",
    ),
)
