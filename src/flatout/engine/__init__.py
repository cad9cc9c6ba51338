"""The training engine: the only package, with the built-in experiments, that imports torch.

For notebooks and scripts:

    trained = flatout.engine.train(flatout.engine.Experiment(...))
    probabilities = flatout.engine.load("digits-0001").predict(images)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flatout.engine.experiment import Experiment, Updates
from flatout.engine.hooks import Hook, HookContext

if TYPE_CHECKING:
    from flatout.engine.data.builtin_datasets import dataset
    from flatout.engine.optim import lr_schedules as schedules
    from flatout.engine.optim.param_groups import decayed_groups
    from flatout.engine.predict.predictor import Predictor, load
    from flatout.engine.predict.text_sampling import sampled_tokens, streamed_tokens
    from flatout.engine.tensors.confusion_matrix import Confusion, confusion
    from flatout.engine.training.api import Trained, train
    from flatout.engine.training.dry_run import dry_run
    from flatout.engine.training.lr_range import lr_range
    from flatout.engine.tuner.api import TunedHere, tune

__all__ = [
    "Confusion", "Experiment", "Hook", "HookContext", "Predictor", "Trained", "TunedHere",
    "Updates", "confusion", "dataset", "decayed_groups", "dry_run", "load", "lr_range",
    "sampled_tokens", "schedules", "streamed_tokens", "train", "tune",
]  # fmt: skip

# Modules of the public names whose import needs torch.
_MODULES = {
    "Confusion": "tensors.confusion_matrix",
    "Predictor": "predict.predictor",
    "Trained": "training.api",
    "TunedHere": "tuner.api",
    "confusion": "tensors.confusion_matrix",
    "dataset": "data.builtin_datasets",
    "decayed_groups": "optim.param_groups",
    "dry_run": "training.dry_run",
    "load": "predict.predictor",
    "lr_range": "training.lr_range",
    "sampled_tokens": "predict.text_sampling",
    "streamed_tokens": "predict.text_sampling",
    "train": "training.api",
    "tune": "tuner.api",
}


def __getattr__(name: str) -> Any:
    # Importing torch takes a second: code that only defines an experiment need not wait for it.
    if name in _MODULES:
        return getattr(importlib.import_module(f"flatout.engine.{_MODULES[name]}"), name)
    if name == "schedules":
        return importlib.import_module("flatout.engine.optim.lr_schedules")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
