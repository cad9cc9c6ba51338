"""Resolves a request to exact wheels: the build, the Python, the index, and the dependencies."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from flatout.compat.fit import DEFAULT_PYTHON, BuildRequest, Target
from flatout.compat.index_check import checked
from flatout.compat.rows import Build
from flatout.compat.solve import CompatAnswer, solve
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.environment import Pin
from flatout.schema.versions import Pair, numbers, pair, pair_text
from flatout.setup.env.context import SetupContext
from flatout.setup.env.index_choice import IndexChoices
from flatout.setup.env.wheels import is_for_cpu, parse_pylock, parse_report, supported_tags
from flatout.setup.packages import installers, wheel_store
from flatout.setup.packages.installers import Program, ResolveRequest
from flatout.system import paths, pythons
from flatout.system.host_system import Unread

# Tried in this order where the default is not installed.
_PYTHONS: tuple[Pair, ...] = (DEFAULT_PYTHON, (3, 13), (3, 11), (3, 14), (3, 10))


# No other index and no other Python would change these failures.
_FINAL = ("certificate-not-trusted", "disk-full")

# flatout itself goes into an environment for torch.
_OWN_OLDEST: Pair = (3, 11)


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """Requirement lines of the environment in addition to the framework."""

    lines: tuple[str, ...] = ()
    is_nightly: bool = False
    is_offline: bool = False


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """python: an interpreter; None: the program downloads one. index: None for pip's own."""

    answer: CompatAnswer
    version: str
    index: str | None
    python: str | None
    python_version: str
    program: Program
    pins: tuple[Pin, ...]
    notes: tuple[str, ...]


class _Candidate(msgspec.Struct, frozen=True):
    """One source of a build. index: None for pip's own indexes. answer: that build."""

    index: str | None
    requirement: str
    answer: CompatAnswer


def resolve(
    context: SetupContext, target: Target, request: BuildRequest, extra: Extra
) -> Resolution:
    """Resolves what will be installed.

    Raises:
        UsageError: python-version-not-found, no-such-packages, no-wheel.
        RunFailed: nothing-fits, index-not-reachable, certificate-not-trusted.
    """
    indexes = IndexChoices(context, is_offline=extra.is_offline)
    search = _Search(context, target, request, extra, indexes)
    answers = list(choices(context, target, request, indexes, is_offline=extra.is_offline))
    for is_named in (True, False):
        for answer, python in answers:
            for candidate in search.named(answer) if is_named else search.unnamed(answer):
                resolution = search.resolution(candidate, python)
                if resolution is not None:
                    return resolution
    raise search.failure(answers[0][0])


def choices(
    context: SetupContext,
    target: Target,
    request: BuildRequest,
    indexes: IndexChoices,
    *,
    is_offline: bool,
) -> Iterator[tuple[CompatAnswer, str | None]]:
    """The build for each Python that will do, with an interpreter that is here, the best first.

    It is the best that its index has. Without such a Python, the one that uv or conda will
    download.

    Raises:
        UsageError: python-version-not-found.
        RunFailed: nothing-fits.
    """
    tables = context.tables
    usual = checked(target, request, tables, indexes.look_up)
    if usual.choice is None:
        raise nothing_fits(request.framework, usual)
    first = pair(usual.choice.python)
    is_found = False
    others = [
        version for version in _PYTHONS if version >= _OWN_OLDEST or request.framework != "torch"
    ]
    for version in dict.fromkeys([first] if request.python else [first, *others]):
        other = replace(request, python=version, is_python_found=request.python is None)
        answer = usual if version == first else checked(target, other, tables, indexes.look_up)
        python = pythons.find_python(pair_text(version)) if answer.choice else None
        if python is not None:
            is_found = True
            yield answer, python
    if is_found:
        return
    if context.program.name == "pip" or (is_offline and context.program.name != "conda"):
        because = (
            "pip cannot download it" if context.program.name == "pip" else "--offline was given"
        )
        raise no_python(usual.choice.python, because)
    yield usual, None


def no_python(version: str, because: str) -> UsageError:
    """The error for a Python that is not installed and that no program downloads."""
    return UsageError(
        "python-version-not-found",
        f"Python {version} is not installed.",
        because=because,
        fix="install it, let uv get it (pip install uv), or choose another --python",
    )


def nothing_fits(framework: str, answer: CompatAnswer) -> RunFailed:
    """The error for a machine that no build fits."""
    return RunFailed(
        "nothing-fits",
        f"no build of {framework} is known to run on this machine.",
        because="; ".join(answer.why),
        fix="what would work: " + ("; ".join(answer.nearest) or "nothing known"),
    )


def not_here(what: str, because: str) -> RunFailed:
    """The error for wheels that must be downloaded while --offline was given."""
    return RunFailed(
        "wheels-not-here",
        f"--offline was given, but {what} must be downloaded.",
        because=because,
        fix="leave --offline out; or run `flatout setup --bundle DIR` on a machine with a network, "
        "and here: flatout setup --offline --from DIR",
    )


def resolve_wheels(
    context: SetupContext, request: ResolveRequest, notes: list[str]
) -> tuple[Program, tuple[Pin, ...]]:
    """Lets the preferred program resolve; if it finds no solution, the other one.

    Raises:
        The error of the preferred program, if both fail.
    """
    first: FlatoutError | None = None
    for program in context.programs:
        if program.name == "pip" and request.python is None and first is not None:
            continue
        try:
            pins = _wheels(program, request)
        except FlatoutError as error:
            if first is not None or error.rule not in ("no-such-packages", "no-wheel"):
                raise first or error from None
            first = error
            continue
        if first is not None:
            notes.append(f"resolved with {program.name}: {context.program.name} found no solution")
        return program, pins
    assert first is not None
    raise first


def _wheels(program: Program, request: ResolveRequest) -> tuple[Pin, ...]:
    top = paths.cache_folder()
    top.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=top, prefix="deciding-") as folder:
        here = Path(folder)
        text = program.resolve(msgspec.structs.replace(request, folder=here))
        if text.lstrip().startswith("{"):
            return parse_report(text)
        tags = supported_tags(pair(request.python_version))
        return parse_pylock(text, here.as_uri(), tags)


class _Search:
    """The indexes that may have a build, tried one after another."""

    def __init__(
        self,
        context: SetupContext,
        target: Target,
        request: BuildRequest,
        extra: Extra,
        indexes: IndexChoices,
    ) -> None:
        self._indexes = indexes
        self._context = context
        self._target = target
        self._request = request
        self._extra = extra
        self._notes: list[str] = []
        self._failures: list[FlatoutError] = []

    def named(self, answer: CompatAnswer) -> Iterator[_Candidate]:
        """Indexes with this very build, or an older one for the same hardware, by its label."""
        build = _build(answer)
        own = self._indexes.own_index(build)
        if own is None:
            yield _Candidate(None, build.requirement, answer)
            return
        is_offline = self._extra.is_offline
        files = () if is_offline else self._indexes.files(build.project, own)
        if isinstance(files, Unread):
            self._notes.append(f"cannot reach {own}: {files.reason}")
        elif files or is_offline:
            yield _Candidate(own, build.requirement, answer)
        for version in self._labelled(build, _python(answer)):
            number = version.partition("+")[0]
            request = replace(self._request, versions=f"=={number}", python=pair(_python(answer)))
            same = solve(self._target, request, self._context.tables)
            if same.build is not None and same.build.cuda == build.cuda:
                if number != build.version:
                    self._notes.append(f"pip's own indexes have {build.project} {version}")
                yield _Candidate(None, f"{build.project}=={version}", same)

    def unnamed(self, answer: CompatAnswer) -> Iterator[_Candidate]:
        """pip's own indexes, where a version does not say what it was built for."""
        build = _build(answer)
        if self._indexes.own_index(build) is not None:
            yield _Candidate(None, re.sub(r"\+[\w.]+$", "", build.requirement), answer)

    def resolution(self, candidate: _Candidate, python: str | None) -> Resolution | None:
        """The solution from one source; None if there is none, which is noted."""
        version = _python(candidate.answer)
        if any(error.rule in _FINAL for error in self._failures):
            return None
        request = ResolveRequest(
            lines=(candidate.requirement, *candidate.answer.constraints, "pip", *self._extra.lines),
            python_version=version, python=python, indexes=self._context.indexes,
            index=candidate.index, is_nightly=self._extra.is_nightly,
            is_offline=self._extra.is_offline, folder=Path(),
        )  # fmt: skip
        try:
            program, pins = resolve_wheels(self._context, request, self._notes)
        except FlatoutError as error:
            self._failures.append(error)
            return None
        build = _build(candidate.answer)
        misfit = _misfit(build, pins)
        if misfit is not None:
            self._notes.append(f"{candidate.requirement} from pip's own index {misfit}")
            return None
        return Resolution(
            answer=candidate.answer,
            version=next((pin.version for pin in pins if pin.name == build.project), build.version),
            index=candidate.index, python=python, python_version=version, program=program,
            pins=wheel_store.measured(pins, self._context.opener), notes=self.notes,
        )  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        """The failures so far, each once."""
        return tuple(dict.fromkeys(self._notes))

    def failure(self, answer: CompatAnswer) -> FlatoutError:
        """The error if no source has a solution."""
        if self._failures and not self._notes:
            first = self._failures[0]
            # Offline it is unknown whether they could be satisfied with a network.
            is_lacking = self._extra.is_offline and first.rule == "no-such-packages"
            return not_here("the wheels", str(first.because)) if is_lacking else first
        untrusted = next((error for error in self._failures if error.rule in _FINAL), None)
        if untrusted or any("CERTIFICATE_VERIFY_FAILED" in note for note in self._notes):
            return untrusted or installers.untrusted("; ".join(self.notes))
        last = [error.because or error.problem for error in self._failures[-1:]]
        return RunFailed(
            "index-not-reachable",
            f"{_build(answer).label} is not available.",
            because="; ".join([*self.notes, *last]),
            fix="check the network (HTTPS_PROXY, if you need one), or name a mirror: "
            "--mirror torch=URL, --mirror packages=URL",
        )

    def _labelled(self, build: Build, python: str) -> list[str]:
        """Versions in pip's own indexes with the build's label (`+cpu`), newest first."""
        tags = set(supported_tags(pair(python)))
        versions = set()
        for index in self._indexes.usual():
            names = self._indexes.files(build.project, index)
            for name in () if isinstance(names, Unread) else names:
                parts = name.removesuffix(".whl").split("-")
                if len(parts) == 5 and parts[1].endswith(f"+{build.cuda}"):
                    kinds = [
                        f"{parts[2]}-{parts[3]}-{platform}" for platform in parts[4].split(".")
                    ]
                    versions |= {parts[1]} if tags.intersection(kinds) else set()
        return sorted(
            versions, key=lambda version: numbers(version.partition("+")[0]), reverse=True
        )


def _misfit(build: Build, pins: tuple[Pin, ...]) -> str | None:
    """The reason why the resolved packages are not the chosen build; None if they are."""
    if build.cuda == "cpu":
        return None if is_for_cpu(pins) else "brings gigabytes of CUDA packages"
    framework = next((pin for pin in pins if pin.name == build.project), None)
    label = framework.version.partition("+")[2] if framework else ""
    if label:
        return None if label == build.cuda else f"is for {label}, not for {build.cuda}"
    runtimes = [pin.version for pin in pins
                if pin.name.startswith(("nvidia-cuda-runtime", "cuda-toolkit"))]  # fmt: skip
    required = build.toolkit or str(build.cuda_major)
    if build.framework == "paddle" or any(
        version.startswith(f"{required}.") for version in runtimes
    ):
        return None
    return f"is for CUDA {', '.join(runtimes) or 'of an unknown version'}, not {required}"


def _build(answer: CompatAnswer) -> Build:
    assert answer.build is not None
    return answer.build


def _python(answer: CompatAnswer) -> str:
    return answer.choice.python if answer.choice else pair_text(DEFAULT_PYTHON)
