"""A built-in trained for a number of steps, without validation: what never_slower.py trains.

flatout train benchmarks/never_slower_experiment.py -s name=charlm -s steps=500
"""

from __future__ import annotations

import dataclasses

import flatout
from flatout.engine.session.load_experiment import load_experiment
from flatout.schema.experiment_spec import ExperimentSpec


def experiment(name: str = "mnist", size: str = "", steps: int = 100) -> flatout.Experiment:
    """The built-in of that name, with its size where it has several."""
    parameters = {"size": size} if size else {}
    whole = load_experiment(ExperimentSpec(name=name, parameters=parameters))
    return dataclasses.replace(
        whole, epochs=None, steps=steps, validation_data=None, metrics=None, early_stop=None
    )
