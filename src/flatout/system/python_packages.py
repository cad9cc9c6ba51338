"""Reads which packages an interpreter has, by their metadata, without importing one of them.

flatout's own interpreter is read in this process. Another one runs this file's text (`source`) with
`-c`: so nothing here may need flatout, a package, or a Python newer than 3.8.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Small files that record what a framework was built for, below the folder it is installed in.
_BUILD_FILES = {
    "torch": "torch/version.py",
    "tensorflow": "tensorflow/python/platform/build_info.py",
    "paddlepaddle": "paddle/version/__init__.py",
    "paddlepaddle-gpu": "paddle/version/__init__.py",
}


def report(names: Sequence[str]) -> str:
    """JSON: the interpreter's version, for each package found its version and build facts, `made`.

    requires: the CUDA and NVIDIA packages and those of `names` that it needs; build_text: the file
    that names its build; place: "user-site" or "pythonpath" where it comes from there.
    """
    import json
    from importlib import metadata

    packages = {}
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        needed = [line for line in distribution.requires or () if _is_of_interest(line, names)]
        packages[name] = {
            "version": distribution.version,
            "requires": needed,
            "build_text": _build_text(distribution, name),
            "place": _origin(distribution),
        }
    version = ".".join(map(str, sys.version_info[:3]))
    return json.dumps({"python": version, "packages": packages, "made": _made()})


def _is_of_interest(line: str, names: Sequence[str]) -> bool:
    import re

    name = re.match(r"[A-Za-z0-9._-]+", line)
    return line.startswith(("nvidia", "cuda")) or (name is not None and name.group() in names)


def _origin(distribution: object) -> str:
    """The origin of a package, if it is not the environment's own."""
    import os
    import site

    folder = os.path.realpath(str(distribution.locate_file("")))  # type: ignore[attr-defined]
    if folder == os.path.realpath(site.getusersitepackages()):
        return "user-site"
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return "pythonpath" if folder in [os.path.realpath(path) for path in listed if path] else ""


def _conda_versions(folder: str) -> dict[str, str]:
    """conda's packages that pip installs too: name for pip -> version."""
    import os
    import re

    names = {"pytorch": "torch", "tensorflow": "tensorflow", "numpy": "numpy", "jaxlib": "jaxlib"}
    versions = {}
    for file in os.listdir(folder) if os.path.isdir(folder) else ():
        match = re.match(r"(pytorch|tensorflow|numpy|jaxlib)-(\d[\w.]*)-[^-]*\.json$", file)
        if match:
            versions[names[match.group(1)]] = match.group(2)
    return versions


def _made() -> dict[str, object]:
    """The tool that made the environment: conda, uv or venv, or the system."""
    import os
    import site
    import sysconfig

    folders = sysconfig.get_paths()
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            is_uv = any(line.startswith("uv ") for line in file)
    except OSError:
        is_uv = False
    user_site = site.getusersitepackages()
    return {
        "is_virtual": sys.prefix != sys.base_prefix,
        "is_conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
        "conda_versions": _conda_versions(os.path.join(sys.prefix, "conda-meta")),
        "is_uv": is_uv,
        "has_user_site": bool(site.ENABLE_USER_SITE) and os.path.isdir(user_site),
        "is_externally_managed": sys.prefix == sys.base_prefix
        and os.path.exists(os.path.join(folders["stdlib"], "EXTERNALLY-MANAGED")),
        "site": folders["purelib"],
    }


def _build_text(distribution: object, name: str) -> str:
    if name not in _BUILD_FILES:
        return ""
    path = str(distribution.locate_file(_BUILD_FILES[name]))  # type: ignore[attr-defined]
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(20_000)
    except OSError:
        return ""


def source() -> str:
    """The text of this file."""
    with open(__file__, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    # `-c` puts the working folder first: a json.py there must not be taken for the real one.
    sys.path[:1] = [folder for folder in sys.path[:1] if folder]
    print(report(sys.argv[1:]))
