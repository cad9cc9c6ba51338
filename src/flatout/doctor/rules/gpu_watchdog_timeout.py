"""A watchdog terminated GPU work that took too long.

**Checks.** CUDA's launch timeout (702, formerly 6), Xid 8, and Windows' messages about a display
driver that stopped responding (TDR).

**Why it matters.** A GPU that also drives a display limits each kernel to a few seconds: two under
Windows. A longer kernel is terminated together with its CUDA context.

**Example.** `CUDA error: the launch timed out and was terminated`

**Fix.** Use smaller batches or a GPU without a display; under Windows, set a longer `TdrDelay`,
which needs a restart; by hand.

**Source.** https://docs.nvidia.com/cuda/cuda-runtime-api, cudaErrorLaunchTimeout;
https://learn.microsoft.com/windows-hardware/drivers/display/timeout-detection-and-recovery
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("launch-timed-out", "windows-tdr", "dxgi-device-lost", "xid-watchdog")
_KEY = r"HKLM\SYSTEM\CurrentControlSet\Control\GraphicsDrivers"


def check(case: Case) -> Finding | None:
    """CUDA, the kernel or Windows reports a timeout."""
    if not case.sees(*_SIGNS):
        return None
    is_windows = case.machine.host.os == "windows" or case.is_wsl or case.sees("windows-tdr")
    is_explicit = case.sees("launch-timed-out", "windows-tdr")
    longer = Fix(
        text="or let Windows wait 60 s",
        commands=(f"reg add {_KEY} /v TdrDelay /t REG_DWORD /d 60", "shutdown /r /t 0"),
        where="powershell",
        changes="the display freezes longer when a driver hangs; restarts Windows",
        undo=f"reg delete {_KEY} /v TdrDelay",
    )
    stop = Fix(
        text="or train without a graphical session",
        commands=("sudo systemctl isolate multi-user.target",),
        where="host",
        changes="ends the graphical session",
        undo="sudo systemctl isolate graphical.target",
    )
    return Finding(
        rule="gpu-watchdog-timeout",
        severity="error",
        certainty="decided" if is_explicit else "likely",
        problem="The display watchdog terminated GPU work that took too long.",
        because="a GPU that drives a display may compute for only a few seconds at a time",
        evidence=case.evidence(*_SIGNS, "watchdog-enabled"),
        fixes=(
            Fix(text="compute in smaller steps, or on a GPU that drives no display"),
            longer if is_windows else stop,
        ),
        confirm=("nvidia-smi --query-gpu=index,name,display_active --format=csv",),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "launch-timed-out",
            "launch timed out and was terminated",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "cudaErrorLaunchTimeout",
            "launch timed out",
        ),
        signature(
            "windows-tdr",
            "nvlddmkm",
            "VIDEO_TDR_FAILURE",
            "VIDEO_TDR_TIMEOUT_DETECTED",
            "VIDEO_TDR_ERROR",
            "LiveKernelEvent",
            "TDR",
            pattern=r"nvlddmkm.{0,60}stopped responding|VIDEO_TDR_|LiveKernelEvent.{0,40}"
            r"\b(?:141|117)\b|(?:reset )?TDR (?:occurred|detected|timeout|triggered)"
            r"|nvlddmkm.{0,60}Event ID 153|Event ID 4101",
        ),
        signature(
            "dxgi-device-lost",
            "DXGI_ERROR_DEVICE_HUNG",
            "DXGI_ERROR_DEVICE_REMOVED",
            "887A0005",
            "GPU device instance has been suspended",
        ),
        xid("xid-watchdog", 8),
        signature(
            "watchdog-enabled",
            "Watchdog",
            "Run time limit on kernels",
            pattern=r"Watchdog: Enabled|Run time limit on kernels:\s+Yes",
        ),
    ),
)
