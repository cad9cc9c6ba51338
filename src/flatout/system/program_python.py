"""The interpreter that runs a program, by its command line, and what is installed there."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.schema.framework import Framework
from flatout.system.host_system import LocalSystem, Unread
from flatout.system.probes import frameworks as framework_probe

_PYTHON = re.compile(r"(python|pypy)w?[0-9.]*t?(\.exe)?", re.IGNORECASE)
# The rest of a script's first line is shorter on every system.
_FIRST_BYTES = 512
# What a training depends on, besides the frameworks that `probes/frameworks.py` knows.
_PACKAGES = (
    "torchvision", "torchaudio", "triton", "numpy", "lightning", "pytorch-lightning", "accelerate",
    "transformers", "datasets", "tokenizers", "peft", "trl", "diffusers", "timm", "keras",
    "deepspeed", "bitsandbytes", "flash-attn", "xformers", "safetensors", "fastai", "pandas",
    "scikit-learn", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)  # fmt: skip


class _Report(msgspec.Struct):
    python: str
    packages: dict[str, dict[str, object]]


class InterpreterPackages(msgspec.Struct, frozen=True):
    """What an interpreter has. versions: by the name of a package; `python` among them."""

    versions: dict[str, str]
    frameworks: tuple[Framework, ...]


def python_of(program: Sequence[str]) -> str | Unread:
    """The interpreter that runs a program: itself, or the one that its first line names."""
    path = shutil.which(program[0])
    if path is None:
        return Unread(f"{program[0]} is not on the PATH")
    if _PYTHON.fullmatch(Path(path).name):
        return os.path.abspath(path)
    if sys.platform == "win32":
        # pip makes an .exe of a script, next to the interpreter or one folder below it.
        for folder in (Path(path).parent, Path(path).parent.parent):
            if (folder / "python.exe").is_file():
                return str(folder / "python.exe")
        return Unread(f"{path} does not say which interpreter runs it")
    try:
        with open(path, "rb") as file:
            first = file.read(_FIRST_BYTES).split(b"\n")[0].decode(errors="replace")
    except OSError as error:
        return Unread(f"{path}: {error.strerror or error}")
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        words = [shutil.which(words[0]) or ""] if words else []
    if words and _PYTHON.fullmatch(Path(words[0]).name):
        return words[0]
    return Unread(f"{path} is neither Python nor a script of it")


def installed_in(python: str) -> InterpreterPackages | Unread:
    """The versions of what matters there, by its metadata: nothing is imported."""
    text = LocalSystem().packages(python, (*framework_probe.ASKED, *_PACKAGES))
    if isinstance(text, Unread):
        return text
    try:
        report = msgspec.json.decode(text.strip().splitlines()[-1:][0], type=_Report)
    except (msgspec.DecodeError, IndexError):
        return Unread(f"the interpreter printed {text.strip()[:80]!r}")
    versions = {name: str(facts["version"]) for name, facts in report.packages.items()}
    frameworks, _ = framework_probe.parse_report(text)
    return InterpreterPackages({"python": report.python, **versions}, frameworks)
