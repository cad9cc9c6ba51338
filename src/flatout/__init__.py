"""flatout: all the deep-learning speed of the machine you already have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flatout.engine.experiment import Experiment
    from flatout.engine.predict.predictor import load
    from flatout.engine.training.api import train
    from flatout.engine.training.lr_range import lr_range

    # Not imported: everything that imports flatout would depend on what carries out a sweep.
    sweep: Any

__version__ = "0.1.0"
# Without the callbacks, which need another package: `from flatout import *` must work without it.
__all__ = ["Experiment", "__version__", "load", "lr_range", "sweep", "train"]
_CALLBACKS = ("LightningProfiler", "TransformersProfiler")


def __getattr__(name: str) -> Any:
    # An experiment file says `import flatout` and `-> flatout.Experiment`; the command line, which
    # must not load the engine, never asks for these names.
    if name == "Experiment":
        from flatout.engine.experiment import Experiment

        return Experiment
    if name in ("load", "lr_range", "train"):
        # Imported by name: an import statement would make everything that imports flatout depend on
        # torch.
        import importlib

        return getattr(importlib.import_module("flatout.engine"), name)
    if name == "sweep":
        import importlib

        return importlib.import_module("flatout.cluster.sweep").sweep
    # Each is a subclass of a class of another package.
    if name in _CALLBACKS:
        import importlib

        callbacks = importlib.import_module("flatout.engine.profile.callbacks")
        made = callbacks.lightning_profiler if name[0] == "L" else callbacks.transformers_profiler
        return made()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext flatout` in a notebook: gives it `%%flatout`."""
    import importlib

    importlib.import_module("flatout.engine.profile.notebook").register(shell)


def print_profile(profile: Any) -> None:
    """Prints the report of a notebook or a callback, as `flatout profile` does."""
    import importlib

    importlib.import_module("flatout.cli.flows.profile_script").show_report(profile)


def __dir__() -> list[str]:
    # What Tab offers in a notebook: nothing that only this file needs.
    return sorted([*__all__, *_CALLBACKS])
