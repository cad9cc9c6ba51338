"""Parts of WSL's GPU support are missing.

**Checks.** `/dev/dxg`, `/usr/lib/wsl/lib` and the driver store `/usr/lib/wsl/drivers`; a custom
kernel without dxgkrnl; a Hyper-V guest with copied driver files. On the machine: NVIDIA's driver in
Windows, but in WSL no bridge, no driver store, or a custom kernel.

**Why it matters.** The kernel's bridge (dxgkrnl) and Windows' driver files are both required. With
one missing, the libraries load but find no GPU.

**Example.** `Failed to initialize NVML: GPU access blocked by the operating system`, from
`/usr/lib/wsl/lib/nvidia-smi`

**Fix.** Use WSL's own kernel: remove `kernel=` from `.wslconfig` and run `wsl --update`; by hand.
In a Hyper-V guest, copy the driver store of this driver version again.

**Source.** NVIDIA/nvidia-container-toolkit: nvcdi/driver-wsl.go; microsoft/WSL#5546.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_DECISIVE = ("own-wsl-kernel", "dxg-module-missing", "dxg-missing", "driver-store-missing")


def check(case: Case) -> Finding | None:
    """A part is missing, or NVML is blocked for no visible reason."""
    is_blocked = case.sees("nvml-blocked", "wsl-no-adapters")
    if not case.sees(*_DECISIVE) and not is_blocked:
        return None
    certainty: Certainty
    if case.sees(*_DECISIVE):
        certainty = "decided" if is_blocked or case.sees("dxg-module-missing") else "likely"
    else:
        # Called by its full path, nvidia-smi is WSL's own, not a Linux driver's.
        certainty = "likely" if case.sees("wsl-smi-by-path") else "possible"
    return Finding(
        rule="wsl-gpu-stack-incomplete",
        severity="error",
        certainty=certainty,
        problem="Parts of WSL's GPU support are missing.",
        because=(
            "the kernel bridge (dxgkrnl), /usr/lib/wsl/lib and the driver store must all exist"
        ),
        evidence=case.evidence(*_DECISIVE, "wsl-smi-by-path", "nvml-blocked", "wsl-no-adapters"),
        fixes=(
            Fix(
                text="use WSL's own kernel (no `kernel=` in .wslconfig) and update it",
                commands=("wsl --update", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
            ),
        ),
        confirm=("uname -r", "ls -l /dev/dxg /usr/lib/wsl/lib /usr/lib/wsl/drivers"),
    )


def _without_bridge(machine: Machine) -> Facts:
    """Windows has NVIDIA's driver, but there is no /dev/dxg."""
    if not _has_windows_driver(machine) or machine.wsl is None or machine.wsl.has_dxg is not False:
        return ()
    return fact("there is no /dev/dxg", "/dev")


def _without_store(machine: Machine) -> Facts:
    """Windows has NVIDIA's driver, but its driver store is not mounted."""
    wsl = machine.wsl
    if not _has_windows_driver(machine) or wsl is None or wsl.has_driver_store is not False:
        return ()
    return fact("no NVIDIA driver", "/usr/lib/wsl/drivers")


def _own_kernel(machine: Machine) -> Facts:
    """.wslconfig names a kernel."""
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    return fact("[wsl2] kernel is set", ".wslconfig") if config.get("wsl2.kernel") else ()


def _has_windows_driver(machine: Machine) -> bool:
    has_driver = machine.windows is not None and machine.windows.driver is not None
    return machine.host.wsl == 2 and machine.host.container is None and has_driver


RULE = Rule(
    check=check,
    prior=40,
    fact_checks=(
        FactCheck(sign="dxg-missing", read=_without_bridge),
        FactCheck(sign="driver-store-missing", read=_without_store),
        FactCheck(sign="own-wsl-kernel", read=_own_kernel, severity="note"),
    ),
    signatures=(
        signature(
            "own-wsl-kernel", "kernel", pattern=r"^\s*kernel\s*=\s*\S*[\\/]\S+|CONFIG_DXGKRNL"
        ),
        signature(
            "dxg-module-missing",
            "dxgkrnl",
            pattern=r"Module dxgkrnl not found|dxgkrnl.{0,40}(?:not found|missing|failed to)",
        ),
        signature(
            "driver-store-missing",
            "/usr/lib/wsl",
            "lxss",
            pattern=r"(?:/usr/lib/wsl/(?:drivers|lib)\S{0,80}|lxss\S{0,80})'?: No such file",
        ),
        signature("wsl-smi-by-path", "/usr/lib/wsl/lib/nvidia-smi"),
    ),
)
