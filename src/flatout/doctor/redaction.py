"""Redaction of machines by an allow-list, so that a forgotten field is not shared.

Numbers and booleans pass. A text passes only if the table below lists its field, and only as far
as the table's pattern matches: no user, host, folder, project, container, address, serial number
or identifier. Of a program's messages, only standard phrases pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from flatout.schema.machine import Machine

HIDDEN = "(not shown)"

Show = Callable[[str], str]


def redacted(machine: Machine) -> Machine:
    """The machine without anything that identifies its owner."""
    shown = _shown(msgspec.to_builtins(machine), "")
    return msgspec.convert(shown, Machine)


def _shown(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return _ALLOWED[path](value) if path in _ALLOWED else HIDDEN
    if isinstance(value, list | tuple):
        shown = [_shown(item, path) for item in value]
        # Hidden names of a list are dropped, so that they cannot be counted either.
        return [item for item in shown if item != HIDDEN]
    if isinstance(value, dict):
        if path in _MAPPINGS:
            return _MAPPINGS[path](value)
        return {key: _shown(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    return value


def _whole(*patterns: str) -> Show:
    """The text if one of the patterns matches all of it."""
    pattern = re.compile("|".join(patterns))
    return lambda text: text if pattern.fullmatch(text) else HIDDEN


def _begun(pattern: str) -> Show:
    """The beginning of the text that the pattern matches."""
    compiled = re.compile(pattern)

    def show(text: str) -> str:
        match = compiled.match(text)
        return match[0] if match else HIDDEN

    return show


def _kernel(text: str) -> str:
    """A kernel's release with an x for every custom part."""
    parts = re.split(r"([-+_])", text)
    return "".join(part if part in "-+_" or _KERNEL_PART.fullmatch(part) else "x" for part in parts)


def _phrases(text: str) -> str:
    """The known phrases of a text, with the program that printed it."""
    program = re.match(r"NVML|nvidia-smi|docker|podman|torch|tensorflow|paddlepaddle|jax", text)
    phrases = "; ".join(dict.fromkeys(_PHRASE.findall(text))) or HIDDEN
    return f"{program[0]}: {phrases}" if program else phrases


def shared_path(text: str) -> str | None:
    """A path that is the same on every machine, or the file of a library in a hidden folder."""
    shown = _path(text)
    return None if shown == HIDDEN else shown


def _path(text: str) -> str:
    """A path that is the same on every machine; else only the file's name, if that is."""
    if _SHARED_PATH.fullmatch(text):
        return text
    name = re.split(r"[/\\]", text)[-1]
    return f"{HIDDEN}/{name}" if _LIBRARY_FILE.fullmatch(name) else HIDDEN


def _settings(settings: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value if _SETTING_VALUE.fullmatch(value) else HIDDEN
        for key, value in settings.items()
        if _SETTING_KEY.fullmatch(key)
    }


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value if _VARIABLE_VALUE.fullmatch(value) else HIDDEN
        for name, value in variables.items()
        if _VARIABLE.fullmatch(name)
    }


def _reasons(reasons: Mapping[str, str]) -> dict[str, str]:
    known = Machine.__struct_fields__
    return {key: _phrases(why) for key, why in reasons.items() if key.partition(".")[0] in known}


_NUMBERS = r"\d+(?:\.\d+)*"
_VERSION = r"\d+(?:\.\d+)*(?:\.?(?:a|b|rc|dev|post)\d*){0,3}(?:\+(?:cpu|(?:cu|rocm|xpu)[\d.]*)\b)?"
_KERNEL_PART = re.compile(
    r"\d[\d.]*|microsoft|Microsoft|standard|WSL2|generic|amd64|arm64|aws|azure|gcp|oracle|rt"
    r"|lowlatency|arch\d*|fc\d+|el\d+|pve|cachyos|zen|lts|hwe|nvidia|tegra"
)
_DISTRIBUTION = (
    r"(?:Ubuntu|Debian|Debian GNU/Linux|Fedora|Fedora Linux|Arch Linux|openSUSE Leap|Rocky Linux"
    r"|openSUSE Tumbleweed|Red Hat Enterprise Linux|AlmaLinux|CentOS Stream|CentOS Linux|NixOS"
    r"|Amazon Linux|Linux Mint|Pop!_OS|Kali GNU/Linux Rolling|Alpine Linux|Oracle Linux Server"
    r"|Windows|Manjaro Linux)(?:[ -]v?[\d.]+)?(?: LTS| \d\dH\d| \([A-Za-z ]{3,20}\))?"
)
# Vendors' product names.
_PROCESSOR = (
    r"(?:AMD|Intel|Apple|Ampere|Neoverse|ARM|Qualcomm|Snapdragon|NVIDIA|Genuine Intel|\d\dth Gen)"
    r"[\w ()@.+/-]{0,60}"
)
_CARD = r"(?:NVIDIA|GeForce|Quadro|Tesla|GRID|TITAN)[\w ().+/-]{0,60}"
_PACKAGE = r"(?:lib)?(?:nvidia|cuda)[\w.+-]{0,60}|linux-(?:modules|objects)-nvidia-[\w.-]{1,40}"
# The probes look up only these.
_KNOWN_PACKAGE = (
    "torch|torchvision|torchaudio|tensorflow|tensorflow-cpu|tensorflow-intel|paddlepaddle"
    "|paddlepaddle-gpu|jax|jaxlib|triton|triton-windows|pytorch-triton|numpy|ray|bitsandbytes"
    "|flash-attn|flash_attn|dask|jax-cuda1[23]-plugin"
)
_FOLDER = (
    r"/dev/(?:shm|dxg)|/proc/\w{1,12}|/etc/wsl\.conf|/usr(?:/local)?|/usr/local/cuda(?:-[\d.]+)?|/opt/cuda|(?:/usr)?/lib(?:64)?"
    r"|(?:/usr)?/lib/(?:x86_64|aarch64)-linux-gnu|/usr/lib/wsl/lib"
    r"|/usr/local/cuda(?:-[\d.]+)?/(?:lib64|compat|targets/[\w-]{3,30}/lib)(?:/stubs)?"
    r"|C:\\Windows\\System32"
)
# Each by its whole name: a user's name could be glued to a part of one.
_OF_CUDA = (
    r"cuda(?:rt|debugger)?|cudnn(?:_(?:adv|cnn|ops|graph|engines_precompiled|engines_runtime_compiled"
    r"|heuristic)(?:_infer|_train)?)?|cublas(?:Lt)?|cufft|cufile|curand|cusolver(?:Mg)?|cusparse(?:Lt)?"
    r"|cupti|nvrtc(?:-builtins)?|nvJitLink|nvToolsExt|nvcuvid|nvshmem_host|nccl"
)
LIBRARY = (
    rf"lib(?:{_OF_CUDA}|nvidia-(?:ml|ptxjitcompiler|nvvm|gpucomp|opencl|cfg|encode|allocator|glcore|tls"
    r"|api))\.so[\d.]{0,20}"
)
_FILE = rf"{LIBRARY}|(?:{_OF_CUDA})(?:64)?(?:_\d{{1,4}}){{0,3}}\.dll|(?:nvcuda|nvml|nvapi64)\.dll"
_SHARED_PATH = re.compile(rf"(?:{_FOLDER})(?:[/\\](?:{_FILE}))?")
_LIBRARY_FILE = re.compile(_FILE)
# Settings of WSL whose value is a number, a size or one of WSL's own words.
_SETTING_KEY = re.compile(
    r"(?:wsl2|experimental|automount|network|interop|gpu|general|time)\.(?:memory|processors|swap"
    r"|kernel|kernelcommandline|localhostforwarding|networkingmode|guiapplications|gpusupport"
    r"|nestedvirtualization|vmidletimeout|dnstunneling|autoproxy|firewall"
    r"|sparsevhd|automemoryreclaim|hostaddressloopback|pagereporting|enabled|mountfstab|root"
    r"|options|generateresolvconf|generatehosts|appendwindowspath|usewindowstimezone|swapfile)"
    r"|boot\.systemd"
)
_SETTING_VALUE = re.compile(
    r"true|false|\d{1,9} ?[KMGT]?B?|nat|mirrored|none|bridged|virtioproxy|gradual|dropcache"
    r"|disabled|/mnt/?|(?:(?:metadata|[udf]mask=\d+|[ug]id=\d+|case=off|case=dir),?){1,6}",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"(?:CUDA|NVIDIA|PYTORCH|NCCL|KMP|OMP|TF|XLA|PYTHON|JAX)_?[A-Z_]{1,40}")
_VARIABLE_VALUE = re.compile(
    r"-?\d{0,6}(?:,\d{1,3}){0,15}|true|false|all|void|none|PCI_BUS_ID|FASTEST_FIRST|LAZY|EAGER"
    r"|cpu|cuda|gpu|(?:(?:max_split_size_mb|expandable_segments|garbage_collection_threshold|backend)"
    r":(?:[\d.]{1,8}|True|False|native|cudaMallocAsync),?){1,4}",
    re.IGNORECASE,
)
# GPU messages that are the same in every language and version; the rules read these too.
_PHRASE = re.compile(
    r"Driver/library version mismatch|NVML/RM version mismatch"
    r"|The operating system has blocked the request|Driver Not Loaded|GPU is lost"
    r"|Not Supported|Unknown Error"
    r"|Insufficient Permissions|GPU access blocked by the operating system|Function Not Found"
    r"|NVML Shared Library Not Found|No devices were found|Insufficient Resources"
    r"|couldn't communicate with the NVIDIA driver|crashed \(exit code -?\d{1,10}\)"
    r"|no answer within \d[\d.]{0,8} s|Permission denied|No such file or directory"
    r"|Exec format error|CUDA_ERROR_[A-Z_]{1,60} \(\d{1,3}\)|cannot open shared object file"
    r"|no NVIDIA driver is installed|CUDA out of memory|no kernel image is available"
    r"|Torch not compiled with CUDA enabled|Found no NVIDIA driver|out of memory|unlimited",
    re.IGNORECASE,
)

# Field path, without list indices -> how much of its text is shown.
_ALLOWED: dict[str, Show] = {
    # In benchmark results it is a version; elsewhere a path, which is not shown.
    "python": _whole(_NUMBERS),
    "read_at": _whole(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    "host.os": _whole("linux|windows|macos"),
    "host.release": _kernel,
    "host.distribution": _whole(_DISTRIBUTION),
    "host.container": _whole("docker|podman|kubernetes|lxc|wsl|oci"),
    "host.python": _begun(_VERSION),
    "host.glibc": _whole(_NUMBERS),
    "cpu.name": _whole(_PROCESSOR),
    "cpu.features": _whole(r"(?:avx|amx_|asimd|sve)\w{0,8}|fma|f16c|bf16|i8mm|sse4_2"),
    "gpus.name": _whole(_CARD),
    "gpus.compute_capability": _whole(r"\d{1,2}\.\d"),
    "gpus.pci_bus_id": _whole(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d"),
    "gpus.driver_model": _whole("WDDM|TCC|MCDM"),
    "gpus.throttle_reasons": _whole(
        "idle|application-clocks|power-cap|hardware-slowdown|sync-boost|thermal-slowdown"
        "|hardware-thermal-slowdown|power-brake|display-clocks"
    ),
    "driver": _whole(_NUMBERS),
    "cuda": _whole(_NUMBERS),
    **{
        f"{prefix}frameworks.{field}": show
        for prefix in ("", "environments.")
        for field, show in {
            "name": _whole(_KNOWN_PACKAGE),
            "version": _begun(_VERSION),
            "build": _whole("cpu", r"(?:cu|rocm|xpu)[\d.]{0,8}"),
        }.items()
    },
    "windows.build": _whole(_NUMBERS),
    "windows.driver": _whole(_NUMBERS),
    # Only addresses of this machine or of WSL's own network.
    "windows.stale_forwards": _whole(
        r"(?:\*|0\.0\.0\.0|127\.0\.0\.1)/\d{1,5} 172\.\d{1,3}\.\d{1,3}\.\d{1,3}/\d{1,5}"
    ),
    "windows.wslconfig_encoding": _whole("utf-8|utf-8-sig|utf-16|other"),
    "wsl.package": _whole(_NUMBERS),
    "wsl.distro": _whole(_DISTRIBUTION),
    "wsl.libraries": _whole(r"lib(?:cuda|nv|d3d12|dxcore|nvidia)[\w.+-]{0,40}|nvidia-smi"),
    "wsl.linux_driver_packages": _whole(_PACKAGE),
    **{f"module.{field}": _whole(_NUMBERS) for field in ("loaded", "installed", "user_space")},
    "wsl.windows_programs": _whole("python3?|pip3?|conda|uv|nvcc|nvidia-smi|docker"),
    "module.pci_devices": _whole(r"[0-9A-F]{4}"),
    "module.flavour": _whole("open|proprietary"),
    "module.owner": _whole("nvidia|nouveau|nova_core|nova-core|nvidiafb|vfio-pci"),
    "module.packages": _whole(_PACKAGE),
    "module.fabric_manager": _whole("active|inactive|failed|not-found|activating|deactivating"),
    "libraries.name": _whole(rf"lib(?:{_OF_CUDA}|nvidia-ml)"),
    "libraries.path": _path,
    "libraries.version": _whole(_NUMBERS),
    "libraries.found_by": _whole("LD_LIBRARY_PATH|ldconfig|wheel|PATH"),
    "toolkits.path": _path,
    "toolkits.version": _whole(_NUMBERS),
    "disks.role": _whole("project|data|tmp|home|shm"),
    "disks.kind": _whole(
        "ext[234]|xfs|btrfs|zfs|tmpfs|overlay|9p|virtiofs|drvfs|nfs4?|cifs|fuse|fuseblk|f2fs|ramfs"
        "|lustre|beegfs|ceph|gpfs|exfat|vfat|ntfs3?|fuse.sshfs|fuse.grpcfuse|fakeowner"
    ),
    "environments.version": _begun(_VERSION),
    "environments.kind": _whole("venv|conda|uv|system"),
    "environments.problem": _phrases,
    "environments.mixed": _whole(_KNOWN_PACKAGE),
    "environments.outside": _whole(_KNOWN_PACKAGE),
    "environments.unmet.package": _whole(_KNOWN_PACKAGE),
    "environments.unmet.needs": _whole(rf"(?:{_KNOWN_PACKAGE})[<>=!~][\d.*,<>=!~]{{1,60}}"),
    "environments.unmet.has": _begun(_VERSION),
    "engines.name": _whole("docker|docker-desktop|podman"),
    "engines.version": _begun(_VERSION),
    "engines.runtimes": _whole(
        r"nvidia|nvidia-cdi|nvidia-legacy|runc|crun|io\.containerd\.runc\.v2"
    ),
    "engines.toolkit": _whole(_NUMBERS),
    "engines.cdi_devices": _whole(r"nvidia\.com/gpu=(?:all|\d{1,2}(?::\d{1,2})?)"),
    "engines.cdi_driver": _whole(_NUMBERS),
    "engines.compose": _begun(_VERSION),
    "cuda_start.path": _path,
    "cuda_start.error": _phrases,
    "cuda_start.cuda": _whole(_NUMBERS),
    "packages.distro_toolkit": _whole(_NUMBERS),
}
_MAPPINGS: dict[str, Callable[[Mapping[str, str]], dict[str, str]]] = {
    "windows.wslconfig": _settings,
    "wsl.wsl_conf": _settings,
    "variables": _variables,
    "unread": _reasons,
}
