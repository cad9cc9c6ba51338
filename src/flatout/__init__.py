"""flatout: all the deep-learning speed of the machine you already have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.engine.experiment import Experiment
    from flatout.engine.predict.predictor import load
    from flatout.engine.training.api import train

__version__ = "0.1.0"
__all__ = ["Experiment", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    # An experiment file says `import flatout` and `-> flatout.Experiment`; the command line, which
    # must not load the engine, never asks for these names.
    if name == "Experiment":
        from flatout.engine.experiment import Experiment

        return Experiment
    if name in ("load", "train"):
        # Imported by name: an import statement would make everything that imports flatout depend on
        # torch.
        import importlib

        return getattr(importlib.import_module("flatout.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # What Tab offers in a notebook: nothing that only this file needs.
    return list(__all__)
