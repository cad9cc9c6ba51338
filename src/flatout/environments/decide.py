"""From a wish to the last wheel: the build, the Python, the place to get it, and what it needs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from flatout.environments.build_places import BuildPlaces
from flatout.environments.ground import Ground
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.nouns.made_environment import Pin
from flatout.setup.checking import checked
from flatout.setup.fit import DEFAULT_PYTHON, Target, Wish
from flatout.setup.rows import Build, Pair
from flatout.setup.solve import Answer, solve
from flatout.setup.versions import numbers, pair, pair_text
from flatout.setup.wheels import is_for_cpu, parse_pylock, parse_report, supported_tags
from flatout.system import folders, installers, pythons, wheel_store
from flatout.system.installers import Deciding, Program
from flatout.system.system import Unread

# Tried in this order where the usual one is not here.
_PYTHONS: tuple[Pair, ...] = (DEFAULT_PYTHON, (3, 13), (3, 11), (3, 14), (3, 10))


# No other place and no other Python would change these.
_FINAL = ("certificate-not-trusted", "disk-full")

# flatout itself goes into an environment for torch.
_OWN_OLDEST: Pair = (3, 11)


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be in the environment beside the framework, as lines of requirements."""

    lines: tuple[str, ...] = ()
    is_nightly: bool = False
    is_offline: bool = False


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """python: an interpreter; None: the program gets one. index: None where it is pip's own."""

    answer: Answer
    version: str
    index: str | None
    python: str | None
    python_version: str
    program: Program
    pins: tuple[Pin, ...]
    notes: tuple[str, ...]


class _Way(msgspec.Struct, frozen=True):
    """One place to get a build from. index: None for pip's own places. answer: that build."""

    index: str | None
    requirement: str
    answer: Answer


def decide(ground: Ground, target: Target, wish: Wish, extra: Extra) -> Decided:
    """What is to be installed.

    Raises:
        UsageError: python-version-not-found, no-such-packages, no-wheel.
        RunFailed: nothing-fits, index-not-reachable, certificate-not-trusted.
    """
    places = BuildPlaces(ground, is_offline=extra.is_offline)
    search = _Search(ground, target, wish, extra, places)
    answers = list(choices(ground, target, wish, places, is_offline=extra.is_offline))
    for is_named in (True, False):
        for answer, python in answers:
            for way in search.named(answer) if is_named else search.unnamed(answer):
                decided = search.decided(way, python)
                if decided is not None:
                    return decided
    raise search.failure(answers[0][0])


def choices(
    ground: Ground, target: Target, wish: Wish, places: BuildPlaces, *, is_offline: bool
) -> Iterator[tuple[Answer, str | None]]:
    """The build for each Python that will do, with an interpreter that is here, the best first.

    It is the best that its index has. Where no such Python is here, the one that uv or conda is to
    get.

    Raises:
        UsageError: python-version-not-found.
        RunFailed: nothing-fits.
    """
    tables = ground.tables
    usual = checked(target, wish, tables, places.look)
    if usual.choice is None:
        raise nothing_fits(wish.framework, usual)
    first = pair(usual.choice.python)
    is_found = False
    others = [one for one in _PYTHONS if one >= _OWN_OLDEST or wish.framework != "torch"]
    for version in dict.fromkeys([first] if wish.python else [first, *others]):
        other = replace(wish, python=version)
        answer = usual if version == first else checked(target, other, tables, places.look)
        python = pythons.find_python(pair_text(version)) if answer.choice else None
        if python is not None:
            is_found = True
            yield answer, python
    if is_found:
        return
    if ground.program.name == "pip" or (is_offline and ground.program.name != "conda"):
        because = "pip cannot get one" if ground.program.name == "pip" else "--offline was given"
        raise no_python(usual.choice.python, because)
    yield usual, None


def no_python(version: str, because: str) -> UsageError:
    """Bad news: the Python that is needed is not here, and nobody gets it."""
    return UsageError(
        "python-version-not-found",
        f"there is no Python {version} here.",
        because=because,
        fix="install it, or let uv get it: pip install uv; or choose another --python",
    )


def nothing_fits(framework: str, answer: Answer) -> RunFailed:
    """Bad news: no build can be promised for this machine."""
    return RunFailed(
        "nothing-fits",
        f"no build of {framework} is known to run here.",
        because="; ".join(answer.why),
        fix="what would: " + ("; ".join(answer.nearest) or "nothing that is known"),
    )


def not_here(what: str, because: str) -> RunFailed:
    """Bad news of wheels that are only to be had over a network."""
    return RunFailed(
        "wheels-not-here",
        f"{what} are not here, and --offline was given.",
        because=because,
        fix="leave --offline out; or on a machine with a network: flatout setup --bundle DIR, "
        "and here: --offline --from DIR",
    )


def decide_on_wheels(
    ground: Ground, deciding: Deciding, notes: list[str]
) -> tuple[Program, tuple[Pin, ...]]:
    """Lets the preferred program decide; where it finds no packages, the other one.

    Raises:
        What the preferred program has said, where both fail.
    """
    first: FlatoutError | None = None
    for program in ground.programs:
        if program.name == "pip" and deciding.python is None and first is not None:
            continue
        try:
            pins = _wheels(program, deciding)
        except FlatoutError as error:
            if first is not None or error.rule not in ("no-such-packages", "no-wheel"):
                raise first or error from None
            first = error
            continue
        if first is not None:
            notes.append(f"{program.name} decides: {ground.program.name} found nothing that fits")
        return program, pins
    assert first is not None
    raise first


def _wheels(program: Program, deciding: Deciding) -> tuple[Pin, ...]:
    top = folders.cache_folder()
    top.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=top, prefix="deciding-") as folder:
        here = Path(folder)
        text = program.decide(msgspec.structs.replace(deciding, folder=here))
        if text.lstrip().startswith("{"):
            return parse_report(text)
        tags = supported_tags(pair(deciding.python_version))
        return parse_pylock(text, here.as_uri(), tags)


class _Search:
    """The places where a build may be had, tried one after another."""

    def __init__(
        self, ground: Ground, target: Target, wish: Wish, extra: Extra, places: BuildPlaces
    ) -> None:
        self._places = places
        self._ground = ground
        self._target = target
        self._wish = wish
        self._extra = extra
        self._notes: list[str] = []
        self._failures: list[FlatoutError] = []

    def named(self, answer: Answer) -> Iterator[_Way]:
        """Places that have this very build, or an older one for the same hardware, by its label."""
        build = _build(answer)
        own = self._places.own_index(build)
        if own is None:
            yield _Way(None, build.requirement, answer)
            return
        is_offline = self._extra.is_offline
        told = () if is_offline else self._places.files(build.project, own)
        if isinstance(told, Unread):
            self._notes.append(f"{own} cannot be reached: {told.reason}")
        elif told or is_offline:
            yield _Way(own, build.requirement, answer)
        for version in self._labelled(build, _python(answer)):
            number = version.partition("+")[0]
            wish = replace(self._wish, versions=f"=={number}", python=pair(_python(answer)))
            same = solve(self._target, wish, self._ground.tables)
            if same.build is not None and same.build.cuda == build.cuda:
                if number != build.version:
                    self._notes.append(f"pip's own places have {build.project} {version}")
                yield _Way(None, f"{build.project}=={version}", same)

    def unnamed(self, answer: Answer) -> Iterator[_Way]:
        """pip's own places, where a version's name does not tell what it was built for."""
        build = _build(answer)
        if self._places.own_index(build) is not None:
            yield _Way(None, re.sub(r"\+[\w.]+$", "", build.requirement), answer)

    def decided(self, way: _Way, python: str | None) -> Decided | None:
        """What comes of a way; None where it leads nowhere, which is noted."""
        version = _python(way.answer)
        if any(one.rule in _FINAL for one in self._failures):
            return None
        deciding = Deciding(
            lines=(way.requirement, *way.answer.constraints, "pip", *self._extra.lines),
            python_version=version, python=python, indexes=self._ground.indexes,
            index=way.index, is_nightly=self._extra.is_nightly,
            is_offline=self._extra.is_offline, folder=Path(),
        )  # fmt: skip
        try:
            program, pins = decide_on_wheels(self._ground, deciding, self._notes)
        except FlatoutError as error:
            self._failures.append(error)
            return None
        build = _build(way.answer)
        misfit = _misfit(build, pins)
        if misfit is not None:
            self._notes.append(f"{way.requirement} from pip's own index {misfit}")
            return None
        return Decided(
            answer=way.answer,
            version=next((pin.version for pin in pins if pin.name == build.project), build.version),
            index=way.index, python=python, python_version=version, program=program,
            pins=wheel_store.measured(pins, self._ground.opener), notes=self.notes,
        )  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        """What stood in the way, each once."""
        return tuple(dict.fromkeys(self._notes))

    def failure(self, answer: Answer) -> FlatoutError:
        """Bad news: no way has led anywhere."""
        if self._failures and not self._notes:
            first = self._failures[0]
            # Without a network nobody can tell whether they could be met with one.
            is_lacking = self._extra.is_offline and first.rule == "no-such-packages"
            return not_here("the wheels", str(first.because)) if is_lacking else first
        untrusted = next((one for one in self._failures if one.rule in _FINAL), None)
        if untrusted or any("CERTIFICATE_VERIFY_FAILED" in note for note in self._notes):
            return untrusted or installers.untrusted("; ".join(self.notes))
        told = [one.because or one.problem for one in self._failures[-1:]]
        return RunFailed(
            "index-not-reachable",
            f"{_build(answer).label} is not available.",
            because="; ".join([*self.notes, *told]),
            fix="check the network (HTTPS_PROXY, if you need one), or name a mirror: "
            "--mirror torch=URL, --mirror packages=URL",
        )

    def _labelled(self, build: Build, python: str) -> list[str]:
        """Versions, newest first, that pip's own places have with the build's label (`+cpu`)."""
        tags = set(supported_tags(pair(python)))
        found = set()
        for place in self._places.usual():
            names = self._places.files(build.project, place)
            for name in () if isinstance(names, Unread) else names:
                parts = name.removesuffix(".whl").split("-")
                if len(parts) == 5 and parts[1].endswith(f"+{build.cuda}"):
                    kinds = [f"{parts[2]}-{parts[3]}-{one}" for one in parts[4].split(".")]
                    found |= {parts[1]} if tags.intersection(kinds) else set()
        return sorted(found, key=lambda one: numbers(one.partition("+")[0]), reverse=True)


def _misfit(build: Build, pins: tuple[Pin, ...]) -> str | None:
    """Why what was decided on is not the build that was chosen; None where it is."""
    if build.cuda == "cpu":
        return None if is_for_cpu(pins) else "brings gigabytes of CUDA packages"
    framework = next((pin for pin in pins if pin.name == build.project), None)
    label = framework.version.partition("+")[2] if framework else ""
    if label:
        return None if label == build.cuda else f"is for {label}, not for {build.cuda}"
    runtimes = [pin.version for pin in pins
                if pin.name.startswith(("nvidia-cuda-runtime", "cuda-toolkit"))]  # fmt: skip
    wanted = build.toolkit or str(build.cuda_major)
    if build.framework == "paddle" or any(one.startswith(f"{wanted}.") for one in runtimes):
        return None
    return f"is for CUDA {', '.join(runtimes) or 'of no version that it tells'}, not {wanted}"


def _build(answer: Answer) -> Build:
    assert answer.build is not None
    return answer.build


def _python(answer: Answer) -> str:
    return answer.choice.python if answer.choice else pair_text(DEFAULT_PYTHON)
