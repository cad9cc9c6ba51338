"""flatout: all the deep-learning speed of the machine you already have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.engine.experiment import Experiment

__version__ = "0.1.0"
__all__ = ["Experiment", "__version__"]


def __getattr__(name: str) -> Any:
    # An experiment file says `import flatout` and `-> flatout.Experiment`; the command line, which
    # must not load the engine, never asks for this name.
    if name == "Experiment":
        from flatout.engine.experiment import Experiment

        return Experiment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
