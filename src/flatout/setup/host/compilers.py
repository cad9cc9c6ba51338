"""The C++ compiler that a CUDA toolkit accepts, and the one that a system has."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.versions import Pair
from flatout.setup.host.host_facts import HostFacts

# The newest g++ that nvcc accepts, from that toolkit on. Source: docs.nvidia.com/cuda,
# installation guide for Linux, host compiler support policy; `crt/host_config.h` refuses others.
_NEWEST_GCC = {
    (11, 0): 9, (11, 1): 10, (11, 5): 11, (12, 0): 12, (12, 4): 13, (12, 8): 14, (13, 0): 15,
}  # fmt: skip
# The g++ that a system has by default, and the oldest one in its repository.
_GCC_OF = {
    ("ubuntu", "20.04"): (9, 7), ("ubuntu", "22.04"): (11, 9), ("ubuntu", "24.04"): (13, 9),
    ("ubuntu", "26.04"): (15, 11), ("debian", "11"): (10, 9), ("debian", "12"): (12, 11),
    ("debian", "13"): (14, 12),
}  # fmt: skip
# Since 17.10 Visual Studio 2022 reports version 19.40, which toolkits before 12.4 take for another
# Visual Studio; its library refuses them as well (STL1002). Toolkits before 11.6 support 2019.
# Source: rapidsai/devcontainers#488, pytorch/vision#8492, ggml-org/llama.cpp#8628.
_FIRST_FOR_VS_2022, _FIRST_FOR_ANY_VS_2022 = (11, 6), (12, 4)


class VisualStudio(msgspec.Struct, frozen=True, kw_only=True):
    """Build tools of Visual Studio. toolset: an older one to add and to select."""

    year: Literal["2019", "2022"]
    toolset: str | None = None
    component: str | None = None


def newest_gcc(cuda: Pair) -> int:
    """The newest major version of g++ that nvcc of this toolkit accepts."""
    return next(gcc for first, gcc in reversed(_NEWEST_GCC.items()) if cuda >= first)


def gcc_for(cuda: Pair, host: HostFacts) -> int | None:
    """The older g++ to install for this toolkit; None where the system's default is accepted."""
    default, oldest = _GCC_OF.get((host.family or "", host.release or ""), (0, 0))
    newest = newest_gcc(cuda)
    return max(newest, oldest) if default > newest else None


def visual_studio_for(cuda: Pair) -> VisualStudio:
    """The build tools that nvcc of this toolkit accepts."""
    if cuda < _FIRST_FOR_VS_2022:
        return VisualStudio(year="2019")
    if cuda < _FIRST_FOR_ANY_VS_2022:
        component = "Microsoft.VisualStudio.Component.VC.14.38.17.8.x86.x64"
        return VisualStudio(year="2022", toolset="14.38", component=component)
    return VisualStudio(year="2022")
