"""Training behind the process border: the one place, with the built-ins, that imports torch.

For notebooks and scripts:

    trained = flatout.engine.train(flatout.engine.Experiment(...))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout.engine.experiment import Experiment

if TYPE_CHECKING:
    from flatout.engine.datasets import dataset
    from flatout.engine.training import Trained, train

__all__ = ["Experiment", "Trained", "dataset", "train"]


def __getattr__(name: str) -> Any:
    # torch takes a second to import: who only describes an experiment need not wait for it.
    if name in ("train", "Trained"):
        from flatout.engine import training

        return getattr(training, name)
    if name == "dataset":
        from flatout.engine.datasets import dataset

        return dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
