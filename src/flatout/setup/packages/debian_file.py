"""The metadata of a .deb: not its file name, which a browser may have changed."""

from __future__ import annotations

from pathlib import Path

from flatout.errors import UsageError
from flatout.system.command import run

_LIMIT_S = 60.0


def package_in(file: str) -> tuple[str, str]:
    """The whole path of a .deb, and the name of the package in it.

    Raises:
        UsageError: source-not-found, where there is no such file or it is not a Debian package.
    """
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise UsageError(
            "source-not-found",
            f"{path} does not exist.",
            fix="pass a .deb that was downloaded from https://developer.nvidia.com/cuda-downloads",
        )
    done = run(["dpkg-deb", "--field", str(path), "Package"], _LIMIT_S)
    if done.exit_code != 0:
        raise UsageError(
            "source-not-found",
            f"{path} is not a Debian package.",
            because=done.reason or done.stderr.strip() or None,
            fix="download it again from https://developer.nvidia.com/cuda-downloads",
        )
    return str(path), done.stdout.strip()
