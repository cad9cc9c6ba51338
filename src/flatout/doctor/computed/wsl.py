"""WSL: facts about Windows and the distro, verdicts that depend on them, and edits of settings."""

from __future__ import annotations

import re

from flatout.doctor.fact_check import Facts, fact, version
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.driver import CudaLibrary
from flatout.schema.finding import WSLCONFIG, Evidence, Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry
from flatout.schema.units import bytes_text

_GIB = 1024**3
# Memory reserved for Windows itself.
_WINDOWS_BYTES = 8 * _GIB
# Windows 10 21H2, the first build that shares its GPU with WSL.
_OLDEST_BUILD = 19044
# Insider builds between Windows 10 and 11, except Server 2022.
_PREVIEWS = frozenset(range(20150, 22000)) - {20348}
# Kernels before the first have no GPU bridge; before the second, one that is too old for new
# Windows drivers (NVIDIA, CUDA on WSL user guide, 5).
_FIRST_KERNEL_WITH_GPU = (4, 19, 121)
_FIRST_RECOMMENDED_KERNEL = (5, 10, 16, 3)


def clock_differs(machine: Machine) -> Facts:
    """WSL's clock differs from Windows' by 30 seconds or more."""
    skew_s = machine.network.clock_skew_s if machine.network else None
    # Reading both clocks takes some seconds.
    if skew_s is None or abs(skew_s) < 30 or not machine.host.wsl:
        return ()
    return fact(f"WSL's clock differs from Windows' by {abs(skew_s):.0f} s", "PowerShell")


def distro_toolkit_is_installed(machine: Machine) -> Facts:
    """The package nvidia-cuda-toolkit is installed."""
    found = machine.packages.distro_toolkit if machine.packages else None
    return fact(f"nvidia-cuda-toolkit {found}", "dpkg") if found and machine.host.wsl else ()


def gpu_is_in_tcc_mode(machine: Machine) -> Facts:
    """A card runs in TCC mode."""
    found = [gpu for gpu in machine.gpus if gpu.driver_model == "TCC"]
    return fact(f"GPU {found[0].index} runs in TCC mode", "NVML") if found else ()


def tcc_mode_verdict(case: Case) -> RuleVerdict | None:
    """TCC is named together with WSL, or WSL lists devices but cannot open them."""
    is_tcc = case.sees("gpu-in-tcc") or any(gpu.driver_model == "TCC" for gpu in case.machine.gpus)
    # Windows runs data center cards in TCC mode by default.
    is_usual = case.sees("datacenter-card") and case.sees(
        "nvml-blocked", "smi-cannot-communicate", "wsl-no-adapters"
    )
    is_closed = case.is_wsl and case.sees("smi-no-handle", "smi-no-devices")
    if is_tcc and (case.is_wsl or case.sees("nvml-blocked")):
        return RuleVerdict(certainty="decided")
    if case.is_wsl and is_usual or is_closed and case.sees("datacenter-card", "smi-no-handle"):
        return RuleVerdict(certainty="likely")
    # Without such a card, a disabled device or a card of another maker fits as well.
    return RuleVerdict(certainty="possible") if is_closed else None


def bridge_is_missing(machine: Machine) -> Facts:
    """NVIDIA's driver is in Windows, but WSL has no /dev/dxg."""
    if not _has_windows_driver(machine) or machine.wsl is None or machine.wsl.has_dxg is not False:
        return ()
    return fact("there is no /dev/dxg", "/dev")


def driver_store_is_missing(machine: Machine) -> Facts:
    """NVIDIA's driver is in Windows, but its driver store is not mounted in WSL."""
    wsl = machine.wsl
    if not _has_windows_driver(machine) or wsl is None or wsl.has_driver_store is not False:
        return ()
    return fact("no NVIDIA driver", "/usr/lib/wsl/drivers")


def own_kernel_is_set(machine: Machine) -> Facts:
    """A custom kernel is set in .wslconfig."""
    return fact("[wsl2] kernel is set", ".wslconfig") if _wslconfig(machine, "kernel") else ()


def _has_windows_driver(machine: Machine) -> bool:
    has_driver = machine.windows is not None and machine.windows.driver is not None
    return machine.host.wsl == 2 and machine.host.container is None and has_driver


def windows_drive_is_nearly_full(machine: Machine) -> Facts:
    """Less than 5 GiB are free on Windows' system drive."""
    # WSL's disk is on it unless it was moved.
    free = machine.windows.free_bytes if machine.windows else None
    if machine.host.wsl != 2 or free is None or free >= 5 * _GIB:
        return ()
    return fact(f"Windows' drive has {bytes_text(free)} free", "CIM")


def kernel_has_no_bridge(machine: Machine) -> Facts:
    """WSL's kernel is older than 4.19.121, the first with a GPU bridge."""
    return _kernel_between(machine, (0,), _FIRST_KERNEL_WITH_GPU)


def kernel_is_older_than_recommended(machine: Machine) -> Facts:
    """WSL's kernel is older than 5.10.16.3, the first that NVIDIA recommends."""
    return _kernel_between(machine, _FIRST_KERNEL_WITH_GPU, _FIRST_RECOMMENDED_KERNEL)


def _kernel_between(machine: Machine, first: tuple[int, ...], end: tuple[int, ...]) -> Facts:
    release = machine.host.release
    if machine.host.wsl != 2 or not release or "microsoft" not in release.lower():
        return ()
    return fact(f"kernel {release}", "/proc") if first <= version(release) < end else ()


def libcuda_is_unknown_to_loader(machine: Machine) -> Facts:
    """WSL has libcuda, but the loader knows none of its names."""
    if not _are_libraries_known(machine) or _loadable_libcuda(machine):
        return ()
    return (
        *fact("libcuda exists", "/usr/lib/wsl/lib"),
        *fact("no libcuda", "ldconfig, LD_LIBRARY_PATH"),
    )


def libcuda_is_only_numbered(machine: Machine) -> Facts:
    """The loader knows libcuda.so.1, but not libcuda.so, as in every default WSL."""
    found = _loadable_libcuda(machine) if _are_libraries_known(machine) else ()
    if not found or any(one.is_plain is not False for one in found):
        return ()
    return fact("libcuda.so.1, but no libcuda.so", found[0].found_by or "ldconfig")


def libcuda_is_only_numbered_for_paddle(machine: Machine) -> Facts:
    """The loader does not know libcuda.so, which the installed PaddlePaddle opens."""
    paddle = machine.framework("paddlepaddle")
    facts = libcuda_is_only_numbered(machine) if paddle and paddle.version else ()
    return (*facts, *fact("PaddlePaddle opens libcuda.so", "metadata")) if facts else ()


def _are_libraries_known(machine: Machine) -> bool:
    held = machine.wsl.libraries if machine.wsl else None
    if machine.host.wsl != 2 or not held or not any(one.startswith("libcuda.so") for one in held):
        return False
    return machine.libraries is not None and "libraries" not in machine.unread


def _loadable_libcuda(machine: Machine) -> tuple[CudaLibrary, ...]:
    return tuple(one for one in machine.libraries or () if one.name == "libcuda")


def linux_libcuda_is_found_first(machine: Machine) -> Facts:
    """The loader finds another libcuda before WSL's."""
    first = next(iter(_loadable_libcuda(machine)), None)
    if machine.host.wsl != 2 or machine.host.container or first is None or first.is_stub:
        return ()
    # A toolkit's compatibility package has its own rule.
    if "/wsl/" in first.path or "/compat" in first.path:
        return ()
    return fact(f"the loader finds {first.path} first", first.found_by or "ldconfig")


def linux_driver_is_installed(machine: Machine) -> Facts:
    """Packages of a Linux driver are installed."""
    packages = machine.wsl.linux_driver_packages if machine.wsl else None
    if machine.host.wsl != 2 or machine.host.container or not packages:
        return ()
    return fact(f"installed: {', '.join(packages[:3])}", "dpkg")


def linux_driver_verdict(case: Case) -> RuleVerdict | None:
    """Signs of a Linux driver in WSL 2, or with messages that only WSL prints."""
    is_seen = case.sees("driver-package-installed", "driver-package-listed", "linux-libcuda-found")
    is_failing = case.sees(
        "nvml-blocked", "smi-cannot-communicate", "nvml-mismatch", "nvml-driver-not-loaded"
    )
    is_wsl = case.machine.host.wsl == 2 or case.sees("nvml-blocked")
    if not is_wsl or not is_seen and (case.is_container or not is_failing):
        return None
    if is_seen or case.machine.wsl and case.machine.wsl.linux_driver_packages:
        return RuleVerdict(certainty="decided" if is_failing else "likely")
    return RuleVerdict(certainty="possible" if case.sees("nvml-blocked") else "likely")


def memory_setting_is_not_applied(machine: Machine) -> Facts:
    """WSL has another amount of memory than .wslconfig sets."""
    asked, total = _asked_bytes(machine), machine.memory.total_bytes
    # The kernel keeps some of it for itself.
    if asked is None or total is None or 0.8 * asked < total < 1.05 * asked:
        return ()
    return (
        *fact(f"memory={bytes_text(asked)}", ".wslconfig"),
        *fact(f"WSL has {bytes_text(total)}", "/proc/meminfo"),
    )


def memory_setting_is_low(machine: Machine) -> Facts:
    """.wslconfig sets less than half of WSL's default, and less than 8 GB."""
    asked = _asked_bytes(machine)
    whole = machine.windows.memory_bytes if machine.windows else None
    if asked is None or whole is None or asked >= min(8 * 10**9, whole / 4):
        return ()
    return (
        *fact(f"memory={bytes_text(asked)}", ".wslconfig"),
        *fact(f"Windows has {bytes_text(whole)}", "CIM"),
    )


def memory_edits(machine: Machine) -> tuple[Edit, ...]:
    """All memory except what Windows needs, if that is more than WSL's default."""
    total_bytes = machine.windows.memory_bytes if machine.windows else None
    if total_bytes is None or total_bytes <= 2 * _WINDOWS_BYTES:
        return ()
    memory = f"{(total_bytes - _WINDOWS_BYTES) // _GIB}GB"
    entry = Entry(place=("wsl2", "memory"), value=memory)
    return (Edit(file=WSLCONFIG, form="ini", entries=(entry,), encoding="utf-8"),)


def _asked_bytes(machine: Machine) -> int | None:
    return _bytes(_wslconfig(machine, "memory")) if machine.host.wsl == 2 else None


def _bytes(text: str) -> int | None:
    """ "12GB" as WSL reads it: in powers of 1024."""
    found = re.fullmatch(r"(\d{1,12}) ?([KMGT]?)B?", text.strip(), re.IGNORECASE)
    return int(found[1]) << 10 * " KMGT".index(found[2].upper() or " ") if found else None


def _wslconfig(machine: Machine, key: str, section: str = "wsl2") -> str:
    """A value in .wslconfig; empty if it is not set or not known."""
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    return config.get(f"{section}.{key}", "")


def folder_is_on_read_only_drive(machine: Machine) -> Facts:
    """The project or data folder is on a read-only Windows drive."""
    return tuple(
        one
        for disk in machine.disks or ()
        if disk.is_windows_drive and disk.is_read_only and disk.role in ("project", "data")
        for one in fact(f"{disk.role} is on a read-only Windows drive", "/proc/self/mountinfo")
    )


def metadata_edits(machine: Machine) -> tuple[Edit, ...]:
    """The drives' current options plus `metadata`."""
    settings = (machine.wsl.wsl_conf or {}) if machine.wsl else {}
    named = [one for one in settings.get("automount.options", "").split(",") if one]
    options = ",".join(dict.fromkeys(["metadata", *named]))
    entry = Entry(place=("automount", "options"), value=f'"{options}"')
    return (Edit(file="/etc/wsl.conf", form="ini", entries=(entry,)),)


def init_out_of_memory_verdict(case: Case) -> RuleVerdict | None:
    """Counting devices fails with "out of memory"; several cards under WSL explain it."""
    if not case.sees("cuda-init-out-of-memory"):
        return None
    has_several = case.sees("several-gpus-reported") or len(case.machine.gpus) > 1
    return RuleVerdict(certainty="decided" if case.is_wsl and has_several else "likely")


def driver_program_crashed(machine: Machine) -> Facts:
    """NVML or nvidia-smi crashed."""
    reason = machine.unread.get("gpus", "")
    if machine.host.wsl != 2 or "crashed (exit code" not in reason:
        return ()
    return fact(reason, "here")


def forwards_are_stale(machine: Machine) -> Facts:
    """Ports are forwarded by Windows to addresses other than this distro's."""
    return tuple(Evidence(text=f"forward {one}", where="registry") for one in _stale(machine))


def forwards_verdict(case: Case) -> RuleVerdict | None:
    """There are forwards, on this machine or in the text."""
    is_seen = case.sees("portproxy-table") or bool(_stale(case.machine))
    return RuleVerdict(certainty="likely") if is_seen else None


def forwards_removed(case: Case) -> Fix:
    """Remove the forwards that lead nowhere."""
    commands = tuple(_removal(one) for one in _stale(case.machine))
    return Fix(
        text="remove the forwards that lead nowhere",
        safety="ask",
        commands=commands or ("netsh interface portproxy show all", _removal("<address>/<port>")),
        where="powershell",
        changes="removes these Windows forwards; all others stay",
        undo="netsh interface portproxy add v4tov4, with the values from the table",
    )


def _stale(machine: Machine) -> tuple[str, ...]:
    return (machine.windows.stale_forwards or ()) if machine.windows else ()


def _removal(forward: str) -> str:
    """ "0.0.0.0/8000 172.20.1.3/8000" -> the command that removes it."""
    address, port = forward.split()[0].split("/")
    listening = f"listenaddress={address} listenport={port}"
    return f"netsh interface portproxy delete v4tov4 {listening}"


def driver_differs_from_windows(machine: Machine) -> Facts:
    """The driver in Windows has another version than the one WSL still uses."""
    windows = machine.windows.driver if machine.windows else None
    if machine.host.wsl != 2 or not windows or not machine.driver or windows == machine.driver:
        return ()
    return (
        *fact(f"driver {windows} in Windows", "CIM"),
        *fact(f"driver {machine.driver} in WSL", "NVML"),
    )


def restart_verdict(case: Case) -> RuleVerdict | None:
    """A running WSL 2 that lost its driver."""
    is_likely = case.sees(
        "wsl-silent", "wsl-driver-differs", "cuda-driver-combination", "nvml-mismatch"
    )
    is_lost = case.sees("nvml-unknown-error", "cuda-unknown-error", "smi-cannot-communicate")
    if case.machine.host.wsl != 2 or not is_likely and not is_lost:
        return None
    if case.sees("windows-driver-updated", "machine-slept"):
        return RuleVerdict(certainty="decided")
    return RuleVerdict(certainty="likely" if is_likely else "possible")


def sparse_disk_is_set(machine: Machine) -> Facts:
    """`sparseVhd=true` is set in .wslconfig."""
    setting = _wslconfig(machine, "sparsevhd", section="experimental")
    if machine.host.wsl != 2 or setting.lower() != "true":
        return ()
    return fact("[experimental] sparseVhd=true", ".wslconfig")


def kernel_is_of_wsl_1(machine: Machine) -> Facts:
    """The kernel is WSL 1's."""
    return fact(f"kernel {machine.host.release}", "/proc") if machine.host.wsl == 1 else ()


def wsl_1_verdict(case: Case) -> RuleVerdict | None:
    """The kernel's name or the list of distros shows WSL 1."""
    is_wsl_1 = case.machine.host.wsl == 1 or case.sees("wsl-list-version-1", "wsl1-refused")
    return RuleVerdict(certainty="decided") if is_wsl_1 else None


def windows_build_is_too_old(machine: Machine) -> Facts:
    """The Windows build is older than 19044, the first that shares its GPU with WSL."""
    number = _build_number(machine)
    if not machine.host.wsl or machine.windows is None or number is None:
        return ()
    return fact(f"Windows {machine.windows.build}", "cmd.exe") if number < _OLDEST_BUILD else ()


def windows_build_verdict(case: Case) -> RuleVerdict | None:
    """A build that is too old, or a missing library that only newer Windows has."""
    number = (
        _build_number(case.machine) or int(case.value("windows-build-said", "build") or 0) or None
    )
    is_old = number is not None and number < _OLDEST_BUILD
    # Linux on a machine with such a Windows is WSL.
    is_wsl = case.is_wsl or case.sees("windows-build-said") and case.sees("linux-named")
    is_failing = case.sees(
        "dxcore-missing", "nvml-blocked", "driver-request-failed", "dxg-missing", "cuda-no-device",
        "smi-cannot-communicate", "cuda-driver-insufficient", "libcuda-not-opened",
        "devices-unavailable",
    )  # fmt: skip
    is_preview = number in _PREVIEWS and is_wsl and is_failing
    is_explicit = case.sees("dxcore-missing", "driver-request-failed", "packaged-wsl-refused")
    if not is_explicit and not is_preview and not (is_old and is_wsl):
        return None
    because = None
    if is_old:
        because = f"this is build {number}; GPU support in WSL needs {_OLDEST_BUILD}"
    elif is_preview:
        because = f"build {number} was a preview with unreliable GPU support"
    is_sure = case.sees("dxcore-missing", "packaged-wsl-refused") or (
        is_old and is_failing and case.is_wsl
    )
    if is_old and not is_explicit and not is_failing and not case.is_here:
        # A text that names its Windows, but no failure of the GPU.
        return RuleVerdict(certainty="possible", because=because, severity="note")
    return RuleVerdict(certainty="decided" if is_sure else "likely", because=because)


def _build_number(machine: Machine) -> int | None:
    """ "10.0.19045.3803" -> 19045."""
    build = machine.windows.build if machine.windows else None
    return int(build.split(".")[2]) if build else None


def distribution_uses_musl(machine: Machine) -> Facts:
    """The distribution's C library is musl."""
    host = machine.host
    if host.wsl is None or host.glibc or not (host.distribution or "").startswith("Alpine"):
        return ()
    return fact(f"{host.distribution}, which has musl", "/etc/os-release")


def drive_has_no_metadata(machine: Machine) -> Facts:
    """The project, data or home folder is on a Windows drive mounted without `metadata`."""
    return tuple(
        part
        for disk in machine.disks or ()
        if disk.is_windows_drive
        and disk.has_metadata is False
        and disk.role in ("project", "data", "home")
        for part in fact(
            f"{disk.role} on a Windows drive, mounted without metadata", "/proc/self/mountinfo"
        )
    )
