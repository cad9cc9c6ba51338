"""Whether packages that are next to each other are of versions that they require."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flatout.schema.environment_facts import Unmet
from flatout.schema.versions import is_specifier, meets

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def unmet(versions: Mapping[str, str], requires: Mapping[str, Sequence[str]]) -> tuple[Unmet, ...]:
    """Requirements on installed packages that their versions do not meet.

    What is not understood (markers on the version of Python, extras, versions made for a day) is
    taken to be met: a wrong complaint costs more than none.

    Args:
        versions: of what is installed, by the names of their distributions.
        requires: lines of metadata, `torch==2.9.1; platform_system == "Linux"`, by distribution.
    """
    installed = {_plain(name): version for name, version in versions.items()}
    unmet_requirements = []
    for package, lines in requires.items():
        for line in lines:
            requirement, _, marker = line.partition(";")
            if "extra" in marker or "python_version" in marker:
                continue
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            version = installed.get(_plain(name[0])) if name else None
            if name and version and not is_met(requirement[name.end() :], version):
                needs = re.sub(r"[\s()]", "", requirement)
                unmet_requirements.append(Unmet(package=_plain(package), needs=needs, has=version))
    return tuple(unmet_requirements)


def is_met(clauses: str, version: str) -> bool:
    """Whether a version is one of `<2.2.0,>=1.26`; a local part (`+cu130`) does not count.

    Source: https://packaging.python.org/en/latest/specifications/version-specifiers.
    """
    release = _RELEASE.fullmatch(version.partition("+")[0])
    specifier = re.sub(r"\[[^]]*\]|[()\s]", "", clauses)
    # A pre-release or a nightly has an order of its own.
    return release is None or not is_specifier(specifier) or meets(version, specifier)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
