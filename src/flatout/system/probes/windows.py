"""Windows, as the host of a WSL or itself: build, driver, memory, page files, forwarded ports.

Its programs speak the user's language in one of several code pages. So only numbers, registry
values and fields of CIM are read, never words.
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from flatout.schema.wsl import Windows
from flatout.system.host_system import Completed, System, Unread
from flatout.system.probes.settings_files import parse_settings, without_damage
from flatout.system.timeout_threads import run_together

# From WSL, Windows' programs start slowly and hang if its interop is broken: an examination, else
# done within 2 s, is not held up. `--deep` waits for a cold Windows.
PROGRAM_TIMEOUT_S = 1.2
# PowerShell alone needs half a second to start, and CIM as much again; cold, much more.
POWERSHELL_TIMEOUT_S = 1.6
PATIENT_TIMEOUT_S = 30.0

_SCHEDULING_KEY = r"HKLM\SYSTEM\CurrentControlSet\Control\GraphicsDrivers"
_PORTPROXY_KEY = r"HKLM\SYSTEM\CurrentControlSet\Services\PortProxy\v4tov4\tcp"
# Sizes of Win32_OperatingSystem are in KiB. The device's name identifies NVIDIA by its PCI vendor.
SCRIPT = (
    "$o=Get-CimInstance Win32_OperatingSystem;"
    "$g=@(Get-CimInstance Win32_VideoController|?{$_.PNPDeviceID -like 'PCI\\VEN_10DE*'});"
    "$d=Get-CimInstance Win32_LogicalDisk -Filter \"DeviceID='$env:SystemDrive'\";"
    "$t=[DateTimeOffset]::UtcNow.ToUnixTimeMilliseconds();"
    "ConvertTo-Json -Compress @{memory=$o.TotalVisibleMemorySize;commit=$o.TotalVirtualMemorySize;"
    "free=$d.FreeSpace;driver=[string]$g[0].DriverVersion;time=$t}"
)


class Cim(msgspec.Struct, frozen=True, kw_only=True):
    """PowerShell's report. memory, commit: KiB; free: bytes; time: milliseconds since 1970."""

    memory: int | None = None
    commit: int | None = None
    free: int | None = None
    driver: str | None = None
    time: int | None = None


class WindowsFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Windows, why what is None is None, and how far this side's clock is behind Windows'."""

    windows: Windows
    unread: dict[str, str]
    clock_skew_s: float | None


def probe_windows(
    system: System, folder: str, own_addresses: frozenset[str], *, is_patient: bool = False
) -> WindowsFacts:
    """Windows, and why what is None is None.

    Args:
        system: the machine.
        folder: Windows' System32, as this side spells it.
        own_addresses: the IPv4 addresses of this side: a port forwarded to one is not stale.
        is_patient: PowerShell may take its time.
    """
    limit_s = PATIENT_TIMEOUT_S if is_patient else PROGRAM_TIMEOUT_S
    shell_limit_s = PATIENT_TIMEOUT_S if is_patient else POWERSHELL_TIMEOUT_S
    slash = "\\" if system.platform == "win32" else "/"

    def run(program: str, *arguments: str, timeout_s: float = limit_s) -> Completed:
        return system.run([f"{folder}{slash}{program}", *arguments], timeout_s)

    queried_at: list[str] = []

    def query_cim() -> Completed:
        shell = f"WindowsPowerShell{slash}v1.0{slash}powershell.exe"
        done = run(
            shell, "-NoProfile", "-NonInteractive", "-Command", SCRIPT, timeout_s=shell_limit_s
        )
        queried_at.append(system.now())
        return done

    results = run_together(
        {
            # /u: in UTF-16, whatever the code page, so that a profile's name is read right.
            "cmd": lambda: run("cmd.exe", "/u", "/c", "ver & echo %USERPROFILE%"),
            "scheduling": lambda: run("reg.exe", "query", _SCHEDULING_KEY, "/v", "HwSchMode"),
            "ports": lambda: run("reg.exe", "query", _PORTPROXY_KEY),
            "cim": query_cim,
        },
        shell_limit_s + 0.2,
    )
    done = {
        name: Completed(reason=result.reason) if isinstance(result, Unread) else result
        for name, result in results.items()
    }
    root = re.sub(r"[a-z]/windows/system32$", "", folder, flags=re.IGNORECASE)
    windows, unread = _windows(system, done, own_addresses, root)
    skew_s = _skew_s(parse_cim(done["cim"].stdout), queried_at)
    return WindowsFacts(windows=windows, unread=unread, clock_skew_s=skew_s)


def _skew_s(cim: Cim, queried_at: list[str]) -> float | None:
    """Windows' clock less this one; the half second that PowerShell takes to end is in it."""
    if cim.time is None or not queried_at:
        return None
    here = datetime.fromisoformat(queried_at[0]).timestamp()
    return round(cim.time / 1000 - here, 1)


def _windows(
    system: System, done: dict[str, Completed], own_addresses: frozenset[str], root: str
) -> tuple[Windows, dict[str, str]]:
    build, windows_profile = parse_cmd(done["cmd"].stdout)
    is_here = system.platform == "win32"
    profile = (
        windows_profile if is_here or windows_profile is None else drive_path(windows_profile, root)
    )
    cim = parse_cim(done["cim"].stdout)
    scheduling = parse_registry_number(done["scheduling"].stdout)
    settings, encoding, why_no_settings = read_wslconfig(system, profile)
    windows = Windows(
        build=build,
        driver=parse_driver(cim.driver or ""),
        memory_bytes=cim.memory and cim.memory * 1024,
        commit_limit_bytes=cim.commit and cim.commit * 1024,
        free_bytes=cim.free,
        is_gpu_scheduling_on=None if scheduling is None else scheduling == 2,
        stale_forwards=_stale_forwards(done["ports"], own_addresses),
        profile=profile,
        wslconfig=settings,
        wslconfig_encoding=encoding,
    )
    reasons = {
        "build": _why(done["cmd"], "cmd.exe"),
        "driver": _why(done["cim"], "PowerShell"),
        "memory_bytes": _why(done["cim"], "PowerShell"),
        "commit_limit_bytes": _why(done["cim"], "PowerShell"),
        "free_bytes": _why(done["cim"], "PowerShell"),
        "is_gpu_scheduling_on": _why(done["scheduling"], "reg.exe", "Windows decides by itself"),
        "stale_forwards": _why(done["ports"], "reg.exe"),
        "profile": _why(done["cmd"], "cmd.exe"),
        "wslconfig": why_no_settings,
        "wslconfig_encoding": why_no_settings,
    }
    return windows, {
        f"windows.{field}": reason
        for field, reason in reasons.items()
        if getattr(windows, field) is None
    }


def _why(done: Completed, program: str, without: str = "its answer does not contain it") -> str:
    return f"{program}: {done.reason}" if done.reason else without


def parse_cmd(text: str) -> tuple[str | None, str | None]:
    """Windows' build and the profile's folder from `ver & echo %USERPROFILE%`."""
    build = re.search(r"\b10\.0\.\d{5}(?:\.\d+)?", text)
    profile = re.search(r"^([A-Za-z]:\\[^\r\n]{1,200}?) *\r?$", text, re.MULTILINE)
    return build and build[0], profile and profile[1]


def parse_cim(text: str) -> Cim:
    """Parses PowerShell's report in JSON; nothing if it is something else."""
    start = text.find("{")
    try:
        return msgspec.json.decode(text[max(start, 0) :].strip(), type=Cim, strict=False)
    except msgspec.DecodeError:
        return Cim()


def parse_driver(text: str) -> str | None:
    """32.0.15.8142, as Windows counts, is NVIDIA's 581.42: the last five digits."""
    digits = "".join(text.split(".")[-2:])
    match = re.fullmatch(r"\d*?(\d{3})(\d{2})", digits)
    return f"{match[1]}.{match[2]}" if match else None


def parse_registry_number(text: str) -> int | None:
    """The REG_DWORD in what `reg query` prints."""
    match = re.search(r"\bREG_DWORD\s+0x([0-9a-fA-F]{1,8})\b", text)
    return int(match[1], 16) if match else None


def parse_portproxies(text: str) -> list[str]:
    """The forwards in what `reg query` prints: where each listens, and where it leads."""
    rows = re.findall(
        r"^\s+(\S{1,60}/\d{1,5})\s+REG_SZ\s+([0-9A-Za-z.:-]{1,60}/\d{1,5})\s*$", text, re.MULTILINE
    )
    return [" ".join(row) for row in rows]


def _stale_forwards(done: Completed, own_addresses: frozenset[str]) -> tuple[str, ...] | None:
    """The forwards that lead into the net of a WSL, and not to this one.

    reg.exe ends with 1 where there is no such key: no one has ever forwarded anything.
    """
    if done.exit_code not in (0, 1):
        return None
    # WSL's NAT has its addresses in 172.16.0.0/12.
    inside = re.compile(r"\S+ (172\.(?:1[6-9]|2\d|3[01])\.\d+\.\d+)/\d+")
    matches = ((forward, inside.fullmatch(forward)) for forward in parse_portproxies(done.stdout))
    return tuple(forward for forward, match in matches if match and match[1] not in own_addresses)


def read_wslconfig(
    system: System, profile: str | None
) -> tuple[dict[str, str] | None, str | None, str]:
    """.wslconfig's settings and encoding; else why there are none."""
    if profile is None:
        return None, None, "cmd.exe did not report the profile folder"
    slash = "\\" if system.platform == "win32" else "/"
    path = f"{profile}{slash}.wslconfig"
    text = system.read(path)
    if isinstance(text, Unread):
        return None, None, f".wslconfig: {text.reason.rpartition(': ')[2]}"
    plain, encoding = without_damage(text)
    return parse_settings(plain), encoding, ""


def drive_path(path: str, root: str) -> str:
    r"""C:\Users\ada -> /mnt/c/Users/ada."""
    drive, _, rest = path.partition(":")
    return f"{root}{drive.lower()}{rest.replace(chr(92), '/')}"
