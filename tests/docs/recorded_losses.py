"""Trains an experiment's file under each of some recipes; prints the loss of every update as JSON.

python recorded_losses.py FILE '[{"micro_batch_size": "16"}, {}]'
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from torch import Tensor

from flatout.engine import train
from flatout.engine.training.metrics_log import MetricsLog
from flatout.schema.recipe import parse_field


class Recorder:
    """Listens to what the engine tells its reporter: a run's folder has only means over steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._add = MetricsLog.add

    def add(self, reporter: MetricsLog, loss: Tensor, num_samples: int) -> None:
        """Keeps a loss and hands it on."""
        self.losses.append(loss.item())
        self._add(reporter, loss, num_samples)


def main(file: str, recipes: list[dict[str, str]]) -> None:
    """Prints a list of losses for each recipe."""
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location("moved", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses = []
    for recipe in recipes:
        recorder = Recorder()
        MetricsLog.add = lambda *call, recorder=recorder: recorder.add(*call)  # type: ignore
        use = {name: parse_field(name, text) for name, text in recipe.items()}
        train(module.experiment(), use=use, is_quiet=True)
        losses.append(recorder.losses)
        MetricsLog.add = recorder._add  # type: ignore
    print(json.dumps(losses))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
