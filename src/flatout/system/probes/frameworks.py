"""The frameworks in an interpreter's environment, by their metadata: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from flatout.schema.framework import Framework
from flatout.system.host_system import System, Unread

# Distributions that contain a framework, by the name people know it by.
_HOLDERS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
    "paddlepaddle": ("paddlepaddle-gpu", "paddlepaddle"),
    "jax": ("jax",),
}
_JAX_PLUGINS = {"jax-cuda13-plugin": "cu13", "jax-cuda12-plugin": "cu12"}
ASKED = (*(name for names in _HOLDERS.values() for name in names), *_JAX_PLUGINS)

_BUILD = r"cpu|(cu|rocm|xpu)[\d.]*"


class _Package(msgspec.Struct):
    version: str
    requires: list[str] = []
    build_text: str = ""


class _Report(msgspec.Struct):
    packages: dict[str, _Package]


def probe_frameworks(system: System, python: str) -> tuple[tuple[Framework, ...], dict[str, str]]:
    """The frameworks of an interpreter: flatout's own in this process, another by a child."""
    text = system.packages(python, ASKED)
    if isinstance(text, Unread):
        return (), {"frameworks": text.reason}
    return parse_report(text)


def parse_report(
    text: str, extra_distributions: Mapping[str, tuple[str, ...]] = {}
) -> tuple[tuple[Framework, ...], dict[str, str]]:
    """Frameworks from what `system/python_packages.py` reports, and why a build is None.

    Args:
        text: what it printed; its last line counts.
        extra_distributions: further packages, by the name people know, with the distributions
            that contain them. Their build is in their version or unknown, and needs no reason.
    """
    try:
        # A .pth file of the environment may have printed something before.
        packages = msgspec.json.decode(text.strip().splitlines()[-1:][0], type=_Report).packages
    except (msgspec.DecodeError, IndexError):
        return (), {"frameworks": f"the interpreter printed {text.strip()[:80]!r}"}
    frameworks, unread = [], {}
    for name, holders in _HOLDERS.items():
        holder = next((holder for holder in holders if holder in packages), None)
        if holder is None:
            continue
        build = _build(name, holder, packages)
        if build is None:
            unread[f"frameworks.{name}.build"] = "its metadata does not say what it was built for"
        frameworks.append(Framework(name=name, version=packages[holder].version, build=build))
    for name, holders in extra_distributions.items():
        version = next((packages[holder].version for holder in holders if holder in packages), None)
        if version is not None:
            local = version.partition("+")[2]
            build = local if re.fullmatch(_BUILD, local) else None
            frameworks.append(Framework(name=name, version=version, build=build))
    return tuple(frameworks), unread


def _build(name: str, holder: str, packages: dict[str, _Package]) -> str | None:
    package = packages[holder]
    if name == "jax":
        # JAX's wheels are one for all; what it can use depends on the plugin next to it.
        return next((build for name, build in _JAX_PLUGINS.items() if name in packages), "cpu")
    if holder in ("tensorflow-cpu", "tensorflow-intel"):
        return "cpu"
    local = package.version.partition("+")[2]
    if name == "torch" and re.fullmatch(_BUILD, local):
        return local
    return parse_build_text(package.build_text) or parse_requirements(package.requires)


def parse_build_text(text: str) -> str | None:
    """cu130, rocm6.4 or cpu from the file in which torch, paddle or tensorflow names its build."""
    match = re.search(r"^\s*cuda\b[^=\n]*= *'([\d.]+)'", text, re.MULTILINE) or re.search(
        r"cuda_version'?\s*[=,:]\s*'([\d.]+)'", text
    )
    if match:
        return _cuda_build(match[1])
    rocm = re.search(r"^\s*hip\b[^=\n]*= *'(\d+\.\d+)", text, re.MULTILINE)
    if rocm:
        return f"rocm{rocm[1]}"
    is_cpu = re.search(
        r"^\s*cuda\b[^=\n]*= *None|is_cuda_build'?\s*[,:]\s*False|^cuda_version *= *'False'",
        text,
        re.MULTILINE,
    )
    return "cpu" if is_cpu else None


def parse_requirements(lines: list[str]) -> str | None:
    """cu128 from a requirement on NVIDIA's packages, as builds from PyPI have them."""
    for line in lines:
        match = re.match(r"(?:nvidia-cuda-runtime|cuda-toolkit)(?:-cu\d+)?\S*?==(\d+\.\d+)", line)
        if match and "extra ==" not in line:
            return _cuda_build(match[1])
    return None


def _cuda_build(version: str) -> str:
    major, _, rest = version.partition(".")
    return f"cu{major}{rest.partition('.')[0] or 0}"
