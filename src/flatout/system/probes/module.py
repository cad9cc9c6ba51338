"""NVIDIA's driver in the kernel of a native Linux, and what keeps it from loading."""

from __future__ import annotations

import re

import msgspec

from flatout.schema.driver import KernelModule
from flatout.system.host_system import System, Unread
from flatout.system.probes.packages import NVIDIA_DRIVER, parse_dpkg_status

TIMEOUT_S = 1.0

_PCI = "/sys/bus/pci/devices"
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
    "/run/opengl-driver/lib", "/usr/local/nvidia/lib64",
)  # fmt: skip
_MODPROBE_FOLDERS = ("/etc/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d")
_NO_GPU = "no NVIDIA device on the PCI bus"


class _Device(msgspec.Struct, frozen=True):
    """A device of NVIDIA's. kind: the PCI class without leading zeros; driver: the one bound to it.

    id: the second half of its PCI id, like "2684".
    """

    kind: str
    driver: str | None
    id: str

    @property
    def is_gpu(self) -> bool:
        """A display device; NVIDIA's sound devices and switches are not."""
        return self.kind.startswith("3")


class _Built(msgspec.Struct, frozen=True, kw_only=True):
    """The module on disk for this kernel; is_there is None where it cannot be determined."""

    version: str | None = None
    flavour: str | None = None
    is_there: bool | None = None
    why_not: str = ""


def probe_module(system: System) -> tuple[KernelModule, dict[str, str]]:
    """The module, and why what is None is None."""
    loaded, flavour = _loaded(system)
    built = _installed(system)
    devices = _devices(system)
    owner = next((device.driver for device in devices if device.is_gpu and device.driver), None)
    modules = system.read("/proc/modules")
    packages = system.read("/var/lib/dpkg/status")
    fabric, why_no_fabric = _fabric_manager(system, devices)
    xids, why_no_xids = _xids(system)
    module = KernelModule(
        loaded=loaded,
        installed=built.version,
        user_space=_user_space(system),
        flavour=flavour or built.flavour,
        owner=owner,
        packages=None if isinstance(packages, Unread) else _driver_packages(packages),
        is_secure_boot_on=_is_secure_boot_on(system),
        is_nouveau_loaded=None if isinstance(modules, Unread) else _has_nouveau(modules),
        is_dkms_installed=any(map(system.exists, ("/usr/sbin/dkms", "/usr/bin/dkms"))),
        fabric_manager=fabric,
        pci_devices=tuple(device.id for device in devices if device.is_gpu),
        is_built=built.is_there,
        is_blacklisted=is_blacklisted(system),
        xids=xids,
    )
    reasons = {
        "loaded": "no NVIDIA module is loaded",
        "installed": built.why_not,
        "is_built": built.why_not,
        "user_space": "libnvidia-ml was not found in the usual folders",
        "flavour": "no NVIDIA module found",
        "owner": "no module holds it" if devices else _NO_GPU,
        "packages": "flatout cannot read this distribution's package list",
        "is_secure_boot_on": f"{_SECURE_BOOT.rpartition('/')[2][:10]}: cannot be read",
        "is_nouveau_loaded": modules.reason if isinstance(modules, Unread) else "",
        "fabric_manager": why_no_fabric,
        "is_persistence_on": "no GPU reported it",
        "xids": why_no_xids,
    }
    return module, {
        f"module.{field}": reason
        for field, reason in reasons.items()
        if getattr(module, field) is None
    }


def parse_version_file(text: str) -> tuple[str | None, str | None]:
    """Version and flavor in /proc/driver/nvidia/version."""
    match = re.search(r"(Open )?Kernel Module(?: for \S+)?\s+(\d{2,3}\.[\d.]+)", text)
    if match is None:
        return None, None
    return match[2], "open" if match[1] else "proprietary"


def parse_modinfo(text: str) -> tuple[str | None, str | None]:
    """Version and flavor in what `modinfo nvidia` prints; the open module is under a free license.

    Source: https://github.com/NVIDIA/open-gpu-kernel-modules (MODULE_LICENSE "Dual MIT/GPL").
    """
    version = re.search(r"^version:\s*(\d{2,3}\.[\d.]+)$", text, re.MULTILINE)
    licence = re.search(r"^license:\s*(.+)$", text, re.MULTILINE)
    if version is None:
        return None, None
    return version[1], "open" if licence and "MIT" in licence[1] else "proprietary"


def _loaded(system: System) -> tuple[str | None, str | None]:
    text = system.read("/proc/driver/nvidia/version")
    if isinstance(text, str):
        return parse_version_file(text)
    version = system.read("/sys/module/nvidia/version")
    return (version.strip() or None if isinstance(version, str) else None), None


def _installed(system: System) -> _Built:
    program = next(
        (path for path in ("/usr/sbin/modinfo", "/sbin/modinfo", "/usr/bin/modinfo")
         if system.exists(path)), None,
    )  # fmt: skip
    if program is None:
        return _Built(why_not="modinfo not found")
    done = system.run([program, "nvidia"], TIMEOUT_S)
    version, flavour = parse_modinfo(done.stdout)
    is_there = None if done.reason else version is not None
    why = f"modinfo: {done.reason or 'no module called nvidia for this kernel'}"
    return _Built(version=version, flavour=flavour, is_there=is_there, why_not=why)


def is_blacklisted(system: System) -> bool:
    """Whether a file of modprobe's keeps the module nvidia from being loaded."""
    for folder in _MODPROBE_FOLDERS:
        for name in system.list_folder(folder):
            text = system.read(f"{folder}/{name}") if name.endswith(".conf") else ""
            if isinstance(text, str) and parse_modprobe(text):
                return True
    return False


def parse_modprobe(text: str) -> bool:
    """Whether lines of modprobe.d switch the module nvidia off.

    Source: modprobe.d(5).
    """
    off = (
        r"(?:blacklist\s+nvidia|alias\s+nvidia\s+off"
        r"|install\s+nvidia\s+(?:/usr)?/bin/(?:false|true))"
    )
    return re.search(rf"^\s*{off}\s*$", text, re.MULTILINE) is not None


def _user_space(system: System) -> str | None:
    for folder in _LIBRARY_FOLDERS:
        for name in system.list_folder(folder):
            match = re.fullmatch(r"libnvidia-ml\.so\.(\d{2,3}\.[\d.]+)", name)
            if match:
                return match[1]
    return None


def _devices(system: System) -> list[_Device]:
    devices = []
    for name in system.list_folder(_PCI):
        text = system.read(f"{_PCI}/{name}/uevent")
        device = None if isinstance(text, Unread) else parse_uevent(text)
        if device:
            devices.append(device)
    return devices


def parse_uevent(text: str) -> _Device | None:
    """A PCI device of NVIDIA's from its `uevent` file; None for others'."""
    fields = dict(line.partition("=")[::2] for line in text.splitlines())
    if not fields.get("PCI_ID", "").upper().startswith("10DE:"):
        return None
    id = fields["PCI_ID"].partition(":")[2].upper()
    return _Device(fields.get("PCI_CLASS", ""), fields.get("DRIVER"), id)


def _driver_packages(status: str) -> tuple[str, ...]:
    return tuple(name for name in parse_dpkg_status(status) if NVIDIA_DRIVER.match(name))


def _is_secure_boot_on(system: System) -> bool | None:
    text = system.read(_SECURE_BOOT)
    if isinstance(text, str) and text:
        # Four bytes of attributes, then the value.
        return text[-1] == "\x01"
    # Without EFI there is no Secure Boot.
    return None if system.exists("/sys/firmware/efi") else False


def _has_nouveau(modules: str) -> bool:
    return re.search(r"^(?:nouveau|nova_core|nova_drm) ", modules, re.MULTILINE) is not None


def _fabric_manager(system: System, devices: list[_Device]) -> tuple[str | None, str]:
    # Bridges of NVIDIA's are NVSwitches.
    if not any(device.kind.startswith("68") for device in devices):
        return None, "not needed: there is no NVSwitch"
    argv = ["systemctl", "show", "-p", "LoadState,ActiveState", "nvidia-fabricmanager"]
    done = system.run(argv, TIMEOUT_S)
    return parse_unit(done.stdout), f"systemctl: {done.reason or 'it does not answer'}"


def parse_unit(text: str) -> str | None:
    """systemd's word for a service from `systemctl show -p LoadState,ActiveState`."""
    fields = dict(line.partition("=")[::2] for line in text.splitlines())
    if fields.get("LoadState") == "not-found":
        return "not-found"
    return fields.get("ActiveState") or None


def _xids(system: System) -> tuple[tuple[int, ...] | None, str]:
    done = system.run(["dmesg"], TIMEOUT_S)
    if done.exit_code == 0:
        return parse_xids(done.stdout), ""
    return None, f"dmesg: {done.reason or 'only root can read it'}"


def parse_xids(text: str) -> tuple[int, ...]:
    """Numbers of the Xid lines in the kernel's log, each once, in the order in which they came."""
    numbers = re.findall(r"NVRM: Xid \([^)\n]{1,60}\): (\d{1,3})\b", text)
    return tuple(dict.fromkeys(int(number) for number in numbers))
