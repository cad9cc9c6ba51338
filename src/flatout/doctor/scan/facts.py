"""Facts in a text: what programs print about the machine they run on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flatout.doctor.signature import Sign, signature
from flatout.schema.driver import KernelModule
from flatout.schema.framework import Framework
from flatout.schema.machine import Gpu, Host, Machine
from flatout.schema.wsl import Windows, Wsl

Signs = Mapping[str, tuple[Sign, ...]]

# From NVIDIA's product names; "Graphics" is a driver's name for a card newer than itself.
_CARD = (
    r"(?:NVIDIA )?(?:GeForce (?:RTX|GTX|GT|MX) ?\d+\w*(?: (?:Ti|SUPER|Laptop|Max-Q))*"
    r"|(?:RTX|GTX) ?\d{3,4}(?: ?(?:Ti|SUPER|Ada|Laptop))*|RTX A?\d{4}|RTX PRO \d{4}"
    r"|Quadro [\w ]{2,12}|TITAN \w{1,5}|Tesla [A-Z]\d+\w*"
    r"|[AHLVPTB]\d{1,3}S?-?(?:SXM\d?|PCIe|PCIE)[-\w ]{0,12}|GB200|GH200)"
)

FACTS = (
    # The table's head: "Driver Version" until 580, "KMD Version" and "CUDA UMD Version" since.
    signature(
        "nvidia-smi-head",
        "NVIDIA-SMI",
        pattern=r"NVIDIA-SMI\s+(?P<smi>\d[\d.]+)\s+(?:Driver|KMD) Version:\s*(?P<driver>\d[\d.]+)"
        r"(?:\s+CUDA (?:UMD )?Version:\s*(?P<cuda>\d+\.\d+))?",
    ),
    signature(
        "nvidia-smi-query",
        "Driver Version",
        pattern=r"^\s*Driver Version\s*:\s*(?P<driver>\d{3}[\d.]+)",
    ),
    signature("nvidia-smi-cuda", "CUDA Version", pattern=r"CUDA Version\s*:\s*(?P<cuda>\d+\.\d+)"),
    signature(
        "collect-env-driver",
        "Nvidia driver version",
        pattern=r"Nvidia driver version:\s*(?P<driver>\d{3}[\d.]+)",
    ),
    signature("said-driver", "driver", pattern=r"\bdriver:? v?(?P<driver>\d{3}(?:\.\d+)*)\b"),
    signature(
        "kernel-module-version",
        "NVRM version",
        "loading NVIDIA UNIX",
        pattern=r"(?P<open>Open )?Kernel Module (?:for \S+ )?\s*(?P<module>\d{3}[\d.]+)",
    ),
    signature(
        "gpu-name", "nvidia", "geforce", "rtx", "gtx", "tesla", "quadro", "titan", "a100", "h100",
        pattern=rf"(?P<name>{_CARD})",
    ),
    signature(
        "compute-capability",
        "compute capability",
        "cuda capability",
        pattern=r"(?:compute|cuda) capability:? (?:sm_(?P<code>\d{2,3})|(?P<capability>\d+\.\d+))",
    ),
    signature("wsl1-kernel", "Microsoft", pattern=r"\b4\.4\.0-\d{5}-Microsoft\b"),
    signature(
        "wsl-kernel",
        "microsoft-standard",
        pattern=r"(?P<kernel>\d[\w.]{0,40}-microsoft-standard[\w-]*)"
    ),
    signature("wsl-package", "WSL version", pattern=r"WSL version:\s*(?P<package>\d[\d.]+)"),
    signature("wsl-named", "wsl", "wsl2", "wslg", "wslconfig", pattern=r"\b(?:wsl2?|wslg)\b|/wsl/"),
    signature("dxg-named", "dxg", "dxgk", "dxcore", "dxgkrnl", pattern=r"/dev/dxg|dxgk|dxcore"),
    signature("windows-drive-mounted", "/mnt/", pattern=r"/mnt/[c-z](?:/|\s|:|'|$)"),
    signature(
        "windows-build",
        "Windows [Version",
        "Windows version",
        pattern=r"Windows (?:\[Version|version:) ?(?P<build>10\.0\.\d{5}(?:\.\d+)?)",
    ),
    signature(
        "windows-path",
        "c:\\", "d:\\", "e:\\", "WinError", "win_amd64", "Windows 10", "Windows 11",
        "Microsoft Windows", "win32",
        pattern=r"\b[A-Z]:\\|WinError|win_amd64|Windows 1[01]|Microsoft Windows|\bwin32\b",
    ),
    signature("windows-gpu-mode", "WDDM", "TCC", pattern=r"\b(?P<mode>WDDM|TCC)\b"),
    signature(
        "linux-named",
        "ubuntu", "debian", "fedora", "linux", "apt", "dmesg", "systemd", "modprobe", "/usr/lib",
        pattern=r"ubuntu|debian|fedora|linux|\bapt\b|dmesg|systemd|modprobe|/usr/lib",
    ),
    signature(
        "container-named",
        "docker", "podman", "kubernetes", "kubectl", "nvidia-container-cli", "OCI runtime",
        "containerd", "(container)", "nvcr.io", "/app",
        pattern=r"docker(?!-ce)|podman|kube|nvidia-container-cli|OCI runtime|containerd"
        r"|\(container\)|nvcr\.io",
    ),
    signature(
        "torch-version",
        "torch",
        pattern=r"\b(?:py)?torch(?: version)?(?:==|[: ]+v?)(?P<version>\d+\.\d+\.\d+\w*)"
        r"(?:\.\w+)?(?:\+(?P<build>[a-z]+\d*))?",
    ),
    signature(
        "tensorflow-version",
        "tensorflow",
        "tensor flow",
        "tf.__version__",
        pattern=r"(?:\btensor ?flow(?:[-_]\w{3,5})?(?: version)?\W{1,24}(?:version:? )?v?"
        r"|\btf\.__version__[^\n]{0,120}\n\W?)(?P<version>[12]\.\d{1,2}(?:\.\d+)?)\b",
        lines=2,
    ),
)  # fmt: skip

_DRIVERS = ("nvidia-smi-head", "nvidia-smi-query", "collect-env-driver", "said-driver")


def machine_from(signs: Signs) -> Machine:
    """The machine a text was printed on, as far as the text shows."""
    wsl = _wsl(signs)
    driver = _first(signs, "driver", *_DRIVERS)
    module = _first(signs, "module", "kernel-module-version")
    build = _first(signs, "build", "windows-build")
    has_windows = bool(signs["windows-path"] or build or signs["windows-gpu-mode"])
    return Machine(
        host=Host(
            os=_os(signs, wsl, has_windows=has_windows),
            release=_first(signs, "kernel", "wsl-kernel"),
            wsl=wsl,
            container="docker" if signs["container-named"] else None,
        ),
        gpus=_gpus(signs),
        driver=driver or module,
        cuda=_first(signs, "cuda", "nvidia-smi-head", "nvidia-smi-cuda"),
        frameworks=_frameworks(signs),
        windows=Windows(build=build) if has_windows else None,
        wsl=Wsl(package=_first(signs, "package", "wsl-package")) if wsl == 2 else None,
        module=KernelModule(loaded=module) if module else None,
    )


def _first(signs: Signs, name: str, *ids: str) -> str | None:
    values = (sign.values[name] for id in ids for sign in signs[id] if name in sign.values)
    return next(values, None)


def _wsl(signs: Signs) -> int | None:
    if signs["wsl1-kernel"]:
        return 1
    marks = ("wsl-kernel", "wsl-package", "wsl-named", "dxg-named", "windows-drive-mounted")
    return 2 if any(signs[id] for id in marks) else None


def _os(signs: Signs, wsl: int | None, *, has_windows: bool) -> str | None:
    if wsl:
        return "linux"
    if has_windows:
        return "windows"
    return "linux" if signs["linux-named"] else None


def _gpus(signs: Signs) -> tuple[Gpu, ...]:
    """A card for every name, with capabilities in the order they were printed."""
    names = list(dict.fromkeys(sign.values["name"].strip() for sign in signs["gpu-name"]))
    printed: Sequence[str] = [
        sign.values.get("capability") or re.sub(r"(\d)$", r".\1", sign.values["code"])
        for sign in signs["compute-capability"]
    ]
    capabilities = list(dict.fromkeys(printed))
    count = max(len(names), len(capabilities))
    return tuple(
        Gpu(
            index=index,
            name=names[index] if index < len(names) else None,
            compute_capability=capabilities[index] if index < len(capabilities) else None,
        )
        for index in range(count)
    )


def _frameworks(signs: Signs) -> tuple[Framework, ...]:
    return tuple(
        Framework(
            name=name,
            version=sign.values["version"],
            build=sign.values.get("build"),
        )
        for name in ("torch", "tensorflow")
        for sign in signs[f"{name}-version"][:1]
    )
