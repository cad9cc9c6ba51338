"""The transformers library, which only the large language models need."""

from __future__ import annotations

import importlib
from types import ModuleType

from flatout.engine.data_files import install_command
from flatout.errors import UsageError


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
        # Something it needs may be lacking: then it is there, but broken, and says so itself.
        if error.name != "transformers":
            raise
        raise UsageError(
            "transformers-not-installed",
            "this experiment's model comes from the package transformers, which is not there.",
            because=str(error),
            fix=install_command("transformers"),
        ) from error
    version: str = library.__version__
    if int(version.partition(".")[0]) < at_least:
        command = install_command(f"'transformers>={at_least}'")
        raise UsageError(
            "transformers-too-old",
            f"this needs transformers {at_least}, and {version} is installed.",
            because="an attention of another's making is given less by older ones",
            fix=f"{command}; or train padded batches",
        )
    return library
