"""The transformers library, which only the large language models need."""

from __future__ import annotations

import importlib
from types import ModuleType

from flatout.errors import UsageError


def transformers_library() -> ModuleType:
    """The library, imported.

    Raises:
        UsageError: transformers-not-installed.
    """
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        # Something it needs may be lacking: then it is there, but broken, and says so itself.
        if error.name != "transformers":
            raise
        raise UsageError(
            "transformers-not-installed",
            "this experiment's model comes from the package transformers, which is not there.",
            because=str(error),
            fix="pip install 'flatout[language]'",
        ) from error
