"""An environment as other tools are told of it."""

from __future__ import annotations

import msgspec


class Blueprint(msgspec.Struct, frozen=True, kw_only=True):
    """What to install, and on what.

    name: of the environment. python: like "3.12". cuda: like "cu126", or "cpu".
    index: where the framework's builds are; None for the package index.
    requirements: lines as pip reads them, with hashes if they come from a lock.
    interpreter: the Python of an environment that is there already.
    is_wsl: it is inside WSL. variables: what a process in it is to be given.
    """

    name: str
    framework: str
    python: str
    cuda: str
    index: str | None = None
    requirements: tuple[str, ...] = ()
    interpreter: str | None = None
    is_wsl: bool = False
    variables: dict[str, str] = {}

    @property
    def has_gpu(self) -> bool:
        """Whether its build uses a GPU."""
        return self.cuda != "cpu"
