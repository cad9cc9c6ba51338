"""The transformers library, which only the large language models need."""

from __future__ import annotations

import importlib
from types import ModuleType

from flatout.errors import UsageError
from flatout.system.source_path import install_command


def transformers_library(at_least: int = 0) -> ModuleType:
    """The library, imported.

    Args:
        at_least: the first number of its version.

    Raises:
        UsageError: transformers-not-installed, transformers-too-old.
    """
    try:
        library = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        # transformers exists but one of its own imports is missing: let its own error show.
        if error.name != "transformers":
            raise
        raise UsageError(
            "transformers-not-installed",
            "this experiment needs the package transformers, which is not installed.",
            because=str(error),
            fix=install_command("transformers"),
        ) from error
    version: str = library.__version__
    if int(version.partition(".")[0]) < at_least:
        command = install_command(f"'transformers>={at_least}'")
        raise UsageError(
            "transformers-too-old",
            f"this needs transformers {at_least} or newer, but {version} is installed.",
            because="older versions pass fewer arguments to a custom attention",
            fix=f"{command}; or train with padded batches",
        )
    return library
