"""Packages of the distribution, as its package manager's own list has them."""

from __future__ import annotations

import re

# The driver for a Linux of its own: inside WSL each of these is one too many. Not libnvidia-
# container (the toolkit), nor the CUDA toolkit.
NVIDIA_DRIVER = re.compile(
    r"(?:nvidia-(?:driver|dkms|kernel|utils|compute-utils|headless|open|modprobe|persistenced|\d{3})"
    r"|libnvidia-(?:compute|cfg|common|decode|encode|extra|fbc1|gl|gpucomp|ml|egl|\d{3})"
    r"|cuda-drivers|libcuda1|xserver-xorg-video-nvidia|linux-modules-nvidia"
    r"|linux-(?:objects|signatures)-nvidia)"
)


def parse_dpkg_status(text: str) -> list[str]:
    """Names of installed packages in /var/lib/dpkg/status, in its order; removed ones are not."""
    rows = re.finditer(r"^Package: (\S{1,200})\nStatus: \S+ \S+ (\S+)$", text, re.MULTILINE)
    return [row[1] for row in rows if row[2] == "installed"]
