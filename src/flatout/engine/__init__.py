"""Training behind the process border: the one place, with the built-ins, that imports torch.

For notebooks and scripts:

    trained = flatout.engine.train(flatout.engine.Experiment(...))
    probabilities = flatout.engine.load("digits-0001").predict(images)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flatout.engine.experiment import Experiment

if TYPE_CHECKING:
    from flatout.engine import schedules
    from flatout.engine.confusion_matrix import Confusion, confusion
    from flatout.engine.custom_step import Updates
    from flatout.engine.datasets import dataset
    from flatout.engine.first_step import dry_run
    from flatout.engine.groups import decayed_groups
    from flatout.engine.inference import Predictor, load
    from flatout.engine.sampling import sampled_tokens
    from flatout.engine.training import Trained, train
    from flatout.engine.tuning import TunedHere, tune

__all__ = [
    "Confusion", "Experiment", "Predictor", "Trained", "TunedHere", "Updates", "confusion",
    "dataset", "decayed_groups", "dry_run", "load", "sampled_tokens", "schedules", "train", "tune",
]  # fmt: skip

# Where what takes torch to import is to be found.
_PLACES = {
    "Confusion": "confusion_matrix", "Predictor": "inference", "Trained": "training",
    "TunedHere": "tuning", "Updates": "custom_step", "confusion": "confusion_matrix",
    "dataset": "datasets", "decayed_groups": "groups", "dry_run": "first_step",
    "load": "inference",
    "sampled_tokens": "sampling", "train": "training", "tune": "tuning",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # torch takes a second to import: who only describes an experiment need not wait for it.
    if name in _PLACES:
        return getattr(importlib.import_module(f"flatout.engine.{_PLACES[name]}"), name)
    if name == "schedules":
        return importlib.import_module("flatout.engine.schedules")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
