"""Parses requests: frameworks with their versions, Python, CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from flatout.compat.fit import BuildRequest
from flatout.compat.request import SetupRequest
from flatout.compat.tables import FRAMEWORKS
from flatout.errors import UsageError, nearest
from flatout.schema.versions import Pair, cuda_label, driver_text, is_specifier, pair

T = TypeVar("T")

_OTHER_NAMES = {
    "pytorch": "torch", "tf": "tensorflow", "paddlepaddle": "paddle", "paddlepaddle-gpu": "paddle",
    "tensorflow-gpu": "tensorflow", "tensorflow-cpu": "tensorflow",
}  # fmt: skip


def build_requests_from(request: SetupRequest) -> tuple[BuildRequest, ...]:
    """One request for each framework; torch if none was named.

    Raises:
        UsageError: unknown-framework, not-a-version, machine-not-described.
    """
    _check(request)
    python = _python(request.python) if request.python else None
    wants_cpu = request.is_cpu or (request.cuda or "").lower() == "cpu"
    cuda = None
    if request.cuda and not wants_cpu:
        cuda = _read("--cuda", request.cuda, "like 12.6 or cu126", cuda_label)
    by_name: dict[str, BuildRequest] = {}
    for typed in request.frameworks or ("torch",):
        name, versions = _framework(typed)
        by_name[name] = BuildRequest(
            framework=name,
            versions=versions,
            python=python,
            cuda=cuda,
            is_cpu=wants_cpu,
            is_nightly=request.is_nightly,
        )
    return tuple(by_name.values())


def without_effect(request: SetupRequest) -> tuple[str, ...]:
    """Warnings about settings without effect."""
    warnings = []
    has_gpu = any(name.strip().lower() not in ("cpu", "none") for name in request.cards)
    if request.cards and not has_gpu and request.driver:
        warnings.append("--driver has no effect with --for cpu")
    if request.is_cpu and request.cuda and request.cuda.lower() != "cpu":
        warnings.append("--cuda has no effect with --cpu")
    if request.is_cpu and has_gpu:
        warnings.append("with --cpu, --for only determines the operating system")
    if request.is_nightly and any(_framework(framework)[1] for framework in request.frameworks):
        warnings.append("a version has no effect with --nightly")
    return tuple(warnings)


def _check(request: SetupRequest) -> None:
    if request.cards:
        if request.driver:
            _read("--driver", request.driver, "like 580.95.05 or 581.42", driver_text)
        return
    for option, value in (("--driver", request.driver), ("--os", request.os)):
        if value is not None:
            raise UsageError(
                "machine-not-described",
                f"`{option} {value}` needs --for: it describes another machine, whose GPU is not "
                "given.",
                fix='add the GPU: --for "GeForce RTX 3060", or --for cpu; leave both out for this '
                "machine",
            )


def _framework(typed: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*([A-Za-z][\w-]*)(?:\[[\w,-]*\])?\s*(.*)", typed)
    name = match[1].lower() if match else typed
    name = _OTHER_NAMES.get(name, name)
    if match is None or name not in FRAMEWORKS:
        raise UsageError(
            "unknown-framework",
            f"flatout does not support `{typed}`.",
            fix=nearest(name, FRAMEWORKS),
        )
    versions = match[2].replace(" ", "")
    if not is_specifier(versions):
        raise _not_a_version(typed, versions, "like torch==2.9.* or 'torch>=2.8,<2.12'")
    return name, versions


def _python(text: str) -> Pair:
    plain = re.sub(r"^(python|py)\s*", "", text.strip().lower())
    plain = re.sub(r"^(\d\.\d+)\.\d+$", r"\1", plain)
    return _read("--python", plain, "like 3.12", pair)


def _read(option: str, text: str, form: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise _not_a_version(option, text, form) from error


def _not_a_version(option: str, text: str, form: str) -> UsageError:
    return UsageError(
        "not-a-version", f"{option}: `{text}` is not a version.", fix=f"write it {form}"
    )
