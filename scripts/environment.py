"""Creates `.venv` with flatout and a torch that this machine can run. Standard library only.

A new environment is valid only if it has its stamp; without it, the leftovers of an earlier attempt
are recreated. With it, only what has changed since is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bare_venv
from checkout import LOG, ROOT, VENV, lock, pip_install, venv_python
from disk import show_and_check
from nvidia import Gpus, os_name, read_gpus
from progress import Problem, say
from torch_install import chosen_torch, install_torch, prove_torch, visible_gpus

from flatout.compat.torch_builds import TorchChoice

_STAMP = VENV / "flatout.json"
# (download, disk) of flatout with its dependencies; of the `dev` extra's tools. Measured with
# Python 3.11 on Linux, 2026-11-21 and 2026-11-28 (the tools), and rounded up.
_OWN_BYTES = (30_000_000, 130_000_000)
_DEV_BYTES = (300_000_000, 1_320_000_000)
# The same of the other tools that some tests compare with.
_PEER_BYTES = (60_000_000, 200_000_000)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The desired content of the environment.

    peers: extras that need torch; tests that need a missing one are skipped.
    is_cuda_build_allowed: allows a CUDA build without a GPU, if there is no other.
    """

    extras: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    is_cpu_only: bool = False
    is_cuda_build_allowed: bool = False


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The interpreter, and the variables that restrict torch to usable GPUs."""

    python: Path
    variables: dict[str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every script that creates the environment."""
    parser.add_argument("--cpu", action="store_true", help="install the CPU build of torch")
    parser.add_argument(
        "--allow-cuda-build",
        action="store_true",
        help="if there is no CPU build of torch, install one with 2 to 3 GB of CUDA packages",
    )


def make_environment(
    options: argparse.Namespace, extras: tuple[str, ...] = (), peers: tuple[str, ...] = ()
) -> Environment:
    """Creates or completes the environment, or finds it ready; see Wanted for the extras.

    Raises:
        Problem: it cannot be created; says what to do.
    """
    wanted = Wanted(
        extras=extras,
        peers=peers,
        is_cpu_only=options.cpu,
        is_cuda_build_allowed=options.allow_cuda_build,
    )
    gpus = Gpus(why_none="--cpu was given") if wanted.is_cpu_only else read_gpus()
    choice = chosen_torch(gpus)
    with lock():
        stamp = _read_stamp() if venv_python().exists() else None
        flatout = {"own": _own_hash(), "extras": extras, "peers": peers}
        todo = work_left(stamp, flatout, choice)
        if todo:
            _show_plan(gpus, choice, todo)
            _check_disk(choice, todo, extras)
            _make(todo, wanted, choice, stamp or {})
    variables = visible_gpus(choice, len(gpus.capabilities), os.environ)
    if variables:
        say("GPU", f"only number {variables['CUDA_VISIBLE_DEVICES']}: {choice.why}")
    return Environment(python=venv_python(), variables=variables)


def work_left(
    stamp: Mapping[str, Any] | None, flatout: Mapping[str, Any], choice: TorchChoice
) -> tuple[str, ...]:
    """Which of `venv`, `flatout`, `torch` and `peers` still need work.

    Args:
        stamp: what an earlier run installed; None if nothing valid.
        flatout: `own` (hash of what decides its installation), `extras` and `peers` wanted.
        choice: the desired torch.
    """
    if stamp is None:
        return ("venv", "flatout", "torch", *(["peers"] if flatout["peers"] else []))
    todo = []
    if stamp["own"] != flatout["own"] or not set(flatout["extras"]) <= set(stamp["extras"]):
        todo.append("flatout")
    # A CUDA build also runs without a GPU, so a GPU that is temporarily missing changes nothing.
    is_kept = choice.cuda is None and stamp["cuda"] is not None
    if stamp["torch"] != choice.requirement and not is_kept:
        todo.append("torch")
    if not set(flatout["peers"]) <= set(stamp["extras"]):
        todo.append("peers")
    return tuple(todo)


def _show_plan(gpus: Gpus, choice: TorchChoice, todo: Sequence[str]) -> None:
    system = f"{platform.system()}{' (WSL)' if os_name() == 'wsl' else ''} {platform.machine()}"
    found = f"{', '.join(gpus.names)} · driver {gpus.driver}" if gpus.names else "no GPU in use"
    say("machine", f"{system} · Python {platform.python_version()} · {found}")
    if "torch" in todo:
        say("torch", f"{choice.requirement}, because {choice.why}")
        if choice.advice:
            say("", choice.advice)


def _check_disk(choice: TorchChoice, todo: Sequence[str], extras: Sequence[str]) -> None:
    parts = [_OWN_BYTES, *([_DEV_BYTES] if extras else [])] if "flatout" in todo else []
    if "torch" in todo:
        parts.append((choice.download_bytes, choice.disk_bytes))
    if "peers" in todo:
        parts.append(_PEER_BYTES)
    show_and_check(sum(part[0] for part in parts), sum(part[1] for part in parts))


def _make(
    todo: Sequence[str], wanted: Wanted, choice: TorchChoice, held: Mapping[str, Any]
) -> None:
    # From here on the environment differs from its stamp.
    _STAMP.unlink(missing_ok=True)
    is_adopted = "venv" in todo and bare_venv.make_or_adopt()
    extras = sorted({*wanted.extras, *held.get("extras", ())})
    try:
        if "flatout" in todo:
            _install_flatout(f"[{','.join(extras)}]" if extras else "")
        if "torch" in todo:
            _provide_torch(choice, wanted, is_one_there=is_adopted)
        # Only after torch: otherwise pip would choose a torch for them.
        if "peers" in todo and _has_installed_peers(wanted.peers):
            extras = sorted({*extras, *wanted.peers})
    except Problem:
        # pip exited cleanly, so the next attempt can continue from here.
        bare_venv.UNFINISHED.unlink(missing_ok=True)
        raise
    is_new = "torch" in todo
    stamp = {
        "own": _own_hash(),
        "extras": extras,
        "torch": choice.requirement if is_new else held["torch"],
        "cuda": choice.cuda if is_new else held["cuda"],
    }
    part = _STAMP.with_suffix(".part")
    part.write_text(json.dumps(stamp, indent=2), encoding="utf-8")
    part.replace(_STAMP)
    bare_venv.UNFINISHED.unlink(missing_ok=True)
    say("ready", f"{VENV.name} (log: {LOG.relative_to(ROOT)})")


def _install_flatout(extras: str) -> None:
    done = pip_install(f"flatout{extras}", ["--editable", f".{extras}"])
    if done.exit_code != 0:
        raise Problem(
            "flatout could not be installed.",
            because=done.last_error(),
            fix=f"check the network (`pip config list` shows the index), see {LOG}, then "
            "run this again",
        )


def _has_installed_peers(peers: Sequence[str]) -> bool:
    title = f"packages that tests compare flatout with: {', '.join(peers)}"
    # flatout itself is already installed: its metadata need not be rebuilt.
    done = pip_install(title, requirements_of(peers))
    if done.exit_code != 0:
        say("warning", f"not available, so tests that need them are skipped: {done.last_error()}")
    return done.exit_code == 0


def _provide_torch(choice: TorchChoice, wanted: Wanted, *, is_one_there: bool) -> None:
    # A working torch in an environment made by someone else is kept.
    device = "cpu" if choice.cuda is None else "cuda"
    proof = prove_torch() if is_one_there else None
    if proof is None or proof.device not in (device, "cuda"):
        install_torch(choice, is_cuda_build_allowed=wanted.is_cuda_build_allowed)
        proof = prove_torch()
    if proof.device is None:
        raise Problem(
            "torch was installed but does not run.",
            because=proof.said,
            fix=f"see {LOG}; or delete {VENV} and run this again",
        )
    say("", proof.said)
    if device == "cuda" and proof.device == "cpu":
        say("warning", f"{choice.requirement} does not see the GPU; training will use the CPU")


def requirements_of(extras: Sequence[str]) -> list[str]:
    """The requirements of those extras in pyproject.toml."""
    optional = _pyproject()["project"]["optional-dependencies"]
    return [line for extra in extras for line in optional[extra]]


def project_requirements() -> list[str]:
    """flatout's own requirements."""
    requirements: list[str] = _pyproject()["project"]["dependencies"]
    return requirements


def _own_hash() -> str:
    """A hash of everything that affects how flatout is installed, including the checkout's path."""
    project = _pyproject()
    decisive = [str(ROOT), project["build-system"], project["project"]]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _pyproject() -> dict[str, Any]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)


def _read_stamp() -> dict[str, Any] | None:
    try:
        stamp = json.loads(_STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return (
        stamp
        if isinstance(stamp, dict) and {"own", "extras", "torch", "cuda"} <= stamp.keys()
        else None
    )
