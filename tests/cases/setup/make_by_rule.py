"""Writes by_rule.toml: cases from rules that are stated here once more, apart from the solver.

Run it by hand after a rule has changed: python tests/cases/setup/make_by_rule.py
"""

from __future__ import annotations

from pathlib import Path

# Cards of every generation, with drivers that know them: (Linux), (Windows and WSL).
CARDS = {
    "GeForce GTX 960": 5.2, "GeForce GTX 1070": 6.1, "Tesla P100-PCIE-16GB": 6.0, "TITAN V": 7.0,
    "GeForce RTX 2070": 7.5, "GeForce GTX 1660 Ti": 7.5, "GeForce RTX 3080": 8.6,
    "NVIDIA A100-SXM4-80GB": 8.0, "GeForce RTX 4080": 8.9, "GeForce RTX 5070 Ti": 12.0,
}  # fmt: skip
LINUX = ("470.199.02", "525.147.05", "545.29.06", "570.172.08", "580.105.08", "595.71.05")
WINDOWS = ("472.84", "528.49", "546.33", "572.83", "581.57", "596.21")
FRAMEWORKS = ("torch", "tensorflow", "jax", "paddle")


def main() -> None:
    """Writes the file beside this one."""
    lines = [
        f'  "{card} | {driver} | {os} | {framework} | {answer}",'
        for card, capability in CARDS.items()
        for os in ("linux", "wsl2", "windows")
        for driver in (LINUX if os == "linux" else WINDOWS)
        for framework in FRAMEWORKS
        if (answer := right(card, capability, int(driver[:3]), os, framework)) is not None
    ]
    text = (
        "# Written by make_by_rule.py, which states the rules. Lines as in by_hand.toml.\n\n"
        '[[group]]\nsource = "make_by_rule.py"\ncases = [\n' + "\n".join(lines) + "\n]\n"
    )
    Path(__file__).with_name("by_rule.toml").write_text(text, encoding="utf-8")


def right(card: str, capability: float, branch: int, os: str, framework: str) -> str | None:
    """The answer; None where no such machine is: a driver that came before the card."""
    first = {8.0: 450, 8.6: 455, 8.9: 520, 12.0: 570}.get(capability, 0)
    if branch < first:
        return None
    # WSL is not for Maxwell, and data centre cards in it are another matter.
    if os == "wsl2" and (capability < 6 or card.startswith(("Tesla", "NVIDIA A100"))):
        return None
    if capability < 7.5 and branch >= 590:
        return "none"
    answers = {"torch": torch, "tensorflow": tensorflow, "jax": jax, "paddle": paddle}
    return answers[framework](capability, branch, os)


def torch(capability: float, branch: int, os: str) -> str:
    """Newest first: CUDA 13 (2.15), 12.6 (2.14), 12.8 for Blackwell (2.11), 11.8 (2.7)."""
    if capability >= 7.5 and branch >= 580:
        return "cu130,cu132 >=2.15"
    if branch >= 525:
        return "cu128 >=2.11,<2.12" if capability >= 10 else "cu126 >=2.14,<2.15"
    return "cu118 >=2.7,<2.8"


def tensorflow(capability: float, branch: int, os: str) -> str:
    """Linux alone, CUDA 12.5, from Pascal to Ada; Maxwell up to 2.16; before 525 CUDA 11.8."""
    if os == "windows" or capability >= 10:
        return "none"
    if branch < 525:
        # 2.14 holds PTX alone for Ampere, which a driver of CUDA 11.8 (520) compiles.
        return "none" if capability >= 8 else "cu118 >=2.14,<2.15"
    return "cu123 >=2.16,<2.17" if capability < 6 else "cu125 >=2.21"


def jax(capability: float, branch: int, os: str) -> str:
    """Linux alone; CUDA 13 from Turing and 580, CUDA 12 from 5.2 and 525."""
    if os == "windows" or branch < 525:
        return "none"
    return "cu13 >=0.12" if capability >= 7.5 and branch >= 580 else "cu12 >=0.12"


def paddle(capability: float, branch: int, os: str) -> str:
    """11.8: 6.1 to 8.x, 7.0 on Linux alone; 12.6: 7.5 to 8.9; 12.9 and 13.0: Blackwell too."""
    if capability >= 10:
        return "cu129" if branch < 580 or os == "windows" else "cu129,cu130"
    if capability in (5.2, 6.0) or (capability == 7.0 and os == "windows"):
        return "none"
    if capability < 7.5 or branch < 525:
        return "cu118"
    return "cu118,cu126,cu129" if branch < 580 else "cu118,cu126,cu129,cu130"


if __name__ == "__main__":
    main()
