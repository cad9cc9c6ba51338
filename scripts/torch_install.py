"""Chooses, installs and tests the torch that this machine can run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import checkout
from disk import show_and_check
from nvidia import Gpus, os_name
from progress import Problem, say

from flatout.compat.torch_builds import (
    TORCH_VERSION,
    TorchChoice,
    TorchPlatform,
    choose_build,
    cpu_build,
    disk_bytes,
    plain_build,
)

_PROOF = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
assert (torch.ones(8, device=device) * 2).sum().item() == 16
name = torch.cuda.get_device_name(0) if device == "cuda" else "the CPU"
print(device, f"torch {torch.__version__} computes on {name}")
"""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Whether the installed torch computes, and where (`cpu`, `cuda`); said: in words."""

    device: str | None
    said: str


def this_place() -> TorchPlatform:
    """Operating system, processor and Python, as in the names of torch's builds."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return TorchPlatform(os=os_name(), machine=machine, python=sys.version_info[:2])


def chosen_torch(gpus: Gpus) -> TorchChoice:
    """The build for these GPUs, on this operating system and Python."""
    if gpus.driver is None:
        return cpu_build(this_place(), gpus.why_none or "no NVIDIA GPU was found")
    return choose_build(this_place(), gpus.driver, gpus.capabilities)


def visible_gpus(
    choice: TorchChoice, num_gpus: int, variables: Mapping[str, str]
) -> dict[str, str]:
    """The variables that hide GPUs the build cannot use; none if the user already set them."""
    if len(choice.usable) in (0, num_gpus) or "CUDA_VISIBLE_DEVICES" in variables:
        return {}
    # By default CUDA numbers the fastest GPU first; nvidia-smi numbers by bus.
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, choice.usable)),
    }


def torch_ways(choice: TorchChoice, place: TorchPlatform) -> list[tuple[str, list[str]]]:
    """Ways to get the build without asking the user, best first: (source, pip's arguments)."""
    ways = [("pip's index", [choice.requirement])]
    if choice.index_url is not None:
        ways.append(
            ("PyTorch's own index", [choice.requirement, f"--extra-index-url={choice.index_url}"])
        )
    # PyPI has one CUDA build per version; that of the newest version may be for another CUDA.
    plain = f"torch=={TORCH_VERSION}"
    held = plain_build(place)
    if plain != choice.requirement and (held.cuda if held else None) == choice.cuda:
        ways.append(("Python's package index (built for the same CUDA)", [plain]))
    return ways


def install_torch(choice: TorchChoice, *, is_cuda_build_allowed: bool) -> None:
    """Installs the build from the first source that has it.

    Raises:
        Problem: it is not available, or only in gigabytes that the user did not agree to.
    """
    said = []
    for where, arguments in torch_ways(choice, this_place()):
        done = checkout.pip_install(f"{arguments[0]} from {where}", arguments)
        if done.exit_code == 0:
            return
        said.append(f"{where}: {done.last_error()}")
        say("install", f"{arguments[0]} is not available from {where}")
    because = "; ".join(said)
    plain = _plain(choice)
    large = plain_build(this_place())
    if choice.cuda is not None or large is None:
        raise Problem(
            f"{choice.requirement} could not be installed.",
            because=because,
            fix="check the network and run this again"
            + ("" if choice.cuda is None else ", or use the CPU build: --cpu"),
        )
    say("torch", f"the only other build, {plain}, comes with gigabytes of CUDA packages")
    download_bytes = large.download_bytes or 0
    show_and_check(download_bytes, disk_bytes(download_bytes))
    if not (is_cuda_build_allowed or _is_confirmed("Install it anyway? [y/N] ")):
        raise Problem(
            "the CPU build of torch could not be installed.",
            because=because,
            fix="check the network and run this again, or use the CUDA build: --allow-cuda-build",
        )
    done = checkout.pip_install(plain, [plain])
    if done.exit_code != 0:
        raise Problem(
            f"{plain} could not be installed.",
            because=done.last_error(),
            fix=f"see {checkout.LOG}, fix the cause, then run this again",
        )


def prove_torch() -> Proof:
    """Computes something with the installed torch, in a separate process."""
    done = checkout.run("proof", "torch computes", [checkout.venv_python(), "-c", _PROOF])
    if done.exit_code != 0:
        return Proof(device=None, said=done.last_error())
    device, _, said = done.output.strip().splitlines()[-1].partition(" ")
    return Proof(device=device, said=said)


def _plain(choice: TorchChoice) -> str:
    return choice.requirement.partition("+")[0]


def _is_confirmed(question: str) -> bool:
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")
