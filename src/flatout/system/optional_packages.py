"""The packages of flatout's extras: whether they are there, and one of them loaded by its name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from flatout.errors import UsageError
from flatout.schema.units import noun_text

# Project names that differ from import names by more than their dashes.
_PROJECTS = {"PIL": "pillow"}


def require_packages(rule: str, what: str, modules: Sequence[str], *, extra: str) -> None:
    """Refuses what cannot work without packages that are not installed; loads none of them.

    Args:
        rule: of the error.
        what: needs them, as the error begins: "`flatout web`".
        modules: their import names.
        extra: the extra of flatout that has them.

    Raises:
        UsageError: `rule`.
    """
    missing = [name for name in modules if not is_installed(name)]
    if not missing:
        return
    *others, last = (_PROJECTS.get(name, name.replace("_", "-")) for name in missing)
    names = f"{', '.join(others)} and {last}" if others else last
    raise UsageError(
        rule,
        f"{what} needs the {noun_text(len(missing), 'package')} {names}.",
        because=f"not installed in the environment of this command: {sys.prefix}",
        fix=f"pip install 'flatout[{extra}]'",
    )


def is_installed(module: str) -> bool:
    """Whether a package is there; it is not loaded."""
    spec = importlib.util.find_spec(module)
    # A folder of that name, such as the one that wandb makes, is a package without an origin.
    return spec is not None and spec.origin is not None


def load_package(rule: str, what: str, module: str, *, extra: str) -> Any:
    """Loads a package that may be missing, or be installed without what it needs itself.

    Args:
        rule, what, extra: as in `require_packages`.
        module: its import name.

    Raises:
        UsageError: `rule`.
    """
    require_packages(rule, what, [module], extra=extra)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = _PROJECTS.get(module, module.replace("_", "-"))
        raise UsageError(
            rule,
            f"{what} needs the package {name}, which is installed but cannot be loaded.",
            because=str(error),
            fix=f"pip install 'flatout[{extra}]'",
        ) from error
