"""Which tool chooses a build that runs: flatout, uv's `--torch-backend=auto`, or env-doctor.

    python -m venv PEERS && PEERS/bin/pip install uv env-doctor
    python campaigns/setup_choices.py --peers PEERS [--out FOLDER]

Uses the cases of tests/cases/setup. The other two know only torch, and are run for machines with a
known driver. uv: a dry run with UV_CUDA_DRIVER_VERSION and --python-platform; its answer is the
index that it uses. env-doctor: with a fake nvidia-smi that reports the driver and the card; its
answer is the command that it prints. Both depend only on the driver and the system, so each is run
once per pair of them.

right: the CUDA build is one of those that the case names; the CPU's or none if nothing fits.
runs: by the tables, a build of that CUDA has code for the card and may run with the driver.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatout.compat.build_requests import build_requests_from
from flatout.compat.fit import best_build
from flatout.compat.tables import shipped_tables
from flatout.compat.target import described_target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import machine_text, measurement, read_machine, write_result
from support.setup_cases import Case, cases

RESULTS = Path(__file__).with_name("results")
LIMIT_S = 60.0
_LABEL = re.compile(r"download\.pytorch\.org/whl/(cu\d+|cpu)")
_SMI = """#!/bin/sh
case "$*" in
  "") echo "| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: 13.0 |" ;;
  *) echo "0, {card}, 8192 MiB, {capability}" ;;
esac
"""
Ask = Callable[[Case], str | None]


@dataclass(frozen=True)
class Score:
    """How many of the answers were right, and how many run."""

    name: str
    right: int
    runs: int
    asked: int

    def __str__(self) -> str:
        return (
            f"{self.name:<34}{self.right:>5} right{self.runs:>6} run   of {self.asked}"
            f"  ({100 * self.right / self.asked:.0f} %, {100 * self.runs / self.asked:.0f} %)"
        )


def main() -> None:
    """Runs all of them and prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    every = list(cases())
    torch = [case for case in every if _is_for_others(case)]
    asked = {(case.request.driver, case.request.os): case for case in torch}
    with tempfile.TemporaryDirectory() as folder:
        programs, here = options.peers.resolve() / "bin", Path(folder)
        by_uv = {key: ask_uv(programs, case, here) for key, case in asked.items()}
        by_doctor = {key: ask_env_doctor(programs, case, here) for key, case in asked.items()}
    scores = [
        score("flatout setup, all frameworks", every, ask_flatout),
        score("flatout setup, torch", torch, ask_flatout),
        score("uv --torch-backend=auto", torch, lambda case: by_uv[_pair(case)]),
        score("env-doctor install torch", torch, lambda case: by_doctor[_pair(case)]),
    ]
    machine = read_machine()
    print(machine_text(machine))
    print("\n".join(map(str, scores)))
    details: dict[str, Any] = {
        "versions": {name: version(programs, name) for name in ("uv", "env-doctor")},
        "answers": [
            {"case": case.line, "uv": by_uv[_pair(case)], "env-doctor": by_doctor[_pair(case)]}
            for case in torch
        ],
    }
    measured = [
        measurement(f"{one.name}: {what}", "cases", (float(number),), {"of": one.asked})
        for one in scores
        for what, number in (("right", one.right), ("runs", one.runs))
    ]
    print("written", write_result("setup-choices", machine, measured, details, options.out))


def score(name: str, asked: Sequence[Case], ask: Ask) -> Score:
    """Judges the answers to cases."""
    answers = [(case, ask(case)) for case in asked]
    return Score(
        name,
        right=sum(_is_right(case, label) for case, label in answers),
        runs=sum(_runs(case, label) for case, label in answers),
        asked=len(answers),
    )


def ask_flatout(case: Case) -> str | None:
    """The CUDA that flatout chooses."""
    choice = case.answer().choice
    return choice.cuda if choice else None


def ask_uv(programs: Path, case: Case, folder: Path) -> str | None:
    """The CUDA of the index that uv uses."""
    platform = "pc-windows-msvc" if case.request.os == "windows" else "unknown-linux-gnu"
    argv = [
        str(programs / "uv"), "pip", "install", "--no-config", "--dry-run", "--torch-backend=auto",
        "--python-platform", f"x86_64-{platform}", "--python-version", "3.12",
        "--target", str(folder / "target"), "torch",
    ]  # fmt: skip
    environment = {
        **os.environ, "UV_CUDA_DRIVER_VERSION": case.request.driver or "",
        "UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "3", "UV_CACHE_DIR": str(folder / "cache"),
    }  # fmt: skip
    return _label(_output(argv, environment))


def ask_env_doctor(programs: Path, case: Case, folder: Path) -> str | None:
    """The CUDA of the index in env-doctor's command."""
    tables = shipped_tables()
    gpu = described_target(case.request, tables).gpus[0]
    smi = folder / "nvidia-smi"
    capability = ".".join(map(str, gpu.capability))
    smi.write_text(_SMI.format(driver=case.request.driver, card=gpu.name, capability=capability))
    smi.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    argv = [str(programs / "env-doctor"), "install", "torch"]
    said = _output(argv, {**os.environ, "PATH": path})
    if _label(said) is None and "pip install torch" in said:
        # What pip takes without an index is CUDA's newest, and on Windows the CPU's.
        return "cpu" if case.request.os == "windows" else "cu132"
    return _label(said)


def version(programs: Path, name: str) -> str:
    """The version of one of the two."""
    code = f"from importlib import metadata; print(metadata.version({name!r}))"
    return _output([str(programs / "python"), "-c", code], dict(os.environ)).strip()


def _is_for_others(case: Case) -> bool:
    asked = case.request
    is_plain = asked.frameworks == ("torch",) and not (asked.python or asked.cuda)
    is_described = asked.driver is not None and len(asked.cards) == 1
    # uv takes one platform, and the cards of ARM machines need another one.
    is_usual = is_described and described_target(asked, shipped_tables()).machine == "x86_64"
    return is_plain and not asked.is_nightly and is_usual


def _pair(case: Case) -> tuple[str | None, str | None]:
    return case.request.driver, case.request.os


def _is_right(case: Case, label: str | None) -> bool:
    return label in case.cudas if case.cudas else label in (None, "cpu")


def _runs(case: Case, label: str | None) -> bool:
    if label in (None, "cpu"):
        return _is_right(case, label)
    tables = shipped_tables()
    target = described_target(case.request, tables)
    wish = replace(build_requests_from(case.request)[0], cuda=label, python=None)
    return any(best_build(target, wish, (gpu,), tables) for gpu in target.gpus)


def _label(said: str) -> str | None:
    found = _LABEL.search(said)
    return found[1] if found else None


def _output(argv: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    main()
