"""The models of serving.py for programs that do not have flatout: same layers, same weights."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import serving_text

DIGITS = [str(digit) for digit in range(10)]


def mnist_model(width: int = 16) -> nn.Module:
    """The layers of flatout's built-in `mnist`."""
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=5, stride=2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, kernel_size=3, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width * 3 * 3, 10),
    )


class ServedWeights:
    """A model with its weights: JSON values in, rows out.

    Args:
        kind: `mnist` or `text`.
        weights: a file of torch.save.
        num_threads: of torch, for one call.
    """

    def __init__(self, kind: str, weights: str, num_threads: int = 1) -> None:
        torch.set_num_threads(num_threads)
        self._is_text = kind == "text"
        self._labels = serving_text.LABELS if self._is_text else DIGITS
        self._model = serving_text.TextClassifier() if self._is_text else mnist_model()
        self._model.load_state_dict(torch.load(weights, weights_only=True))
        self._model.eval()

    def decode(self, value: Any) -> Tensor:
        """One sample as a batch of one."""
        if self._is_text:
            return serving_text.encoded(value)
        return torch.tensor(value, dtype=torch.float32).reshape(1, 1, 28, 28)

    @torch.inference_mode()
    def predict(self, samples: list[Tensor]) -> list[dict[str, Any]]:
        """Rows for samples, computed in one call."""
        batch = samples[0] if len(samples) == 1 else torch.cat(samples)
        if not self._is_text:
            batch = ((batch * 255).round() / 255 - 0.1307) / 0.3081
        best = self._model(batch).softmax(dim=1).max(dim=1)
        return [
            {"label": self._labels[place], "probability": value}
            for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class PeerOptions:
    """What a peer's program is started with. settings: what its best is searched among."""

    kind: str
    weights: str
    port: int
    settings: dict[str, Any]

    def served(self) -> ServedWeights:
        """The model."""
        return ServedWeights(self.kind, self.weights, self.settings.get("threads", 1))


def options() -> PeerOptions:
    """Those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--settings", default="{}")
    found = parser.parse_args()
    return PeerOptions(found.kind, found.weights, found.port, json.loads(found.settings))


def options_of_environment() -> PeerOptions:
    """The same in a process that another tool has started; see `with_bentoml.py`."""
    return PeerOptions(**json.loads(os.environ["SERVING_PEER"]))
