"""A model behind BentoML, with its adaptive batching.

BentoML starts its own processes, which find what to serve in a variable.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import served_model

if __name__ == "__main__":
    found = served_model.options()
    folder = str(Path(__file__).resolve().parent)
    os.chdir(folder)
    words = [
        sys.executable, "-m", "bentoml", "serve", "with_bentoml:PredictService",
        "--host", "127.0.0.1", "--port", str(found.port),
    ]  # fmt: skip
    environment = {
        **os.environ, "SERVING_PEER": json.dumps(dataclasses.asdict(found)),
        "PYTHONPATH": folder, "BENTOML_DO_NOT_TRACK": "True",
    }  # fmt: skip
    os.execve(sys.executable, words, environment)

import bentoml

OPTIONS = served_model.options_of_environment()


@bentoml.service(
    workers=OPTIONS.settings.get("workers", 1), traffic={"timeout": 30}, logging={
        "access": {"enabled": False}
    },
)  # fmt: skip
class PredictService:
    """The model, and the requests for it."""

    def __init__(self) -> None:
        self.served = OPTIONS.served()

    # Its answer is a list of rows: what is batched has one argument and one result.
    @bentoml.api(
        route="/predict", batchable=True, max_batch_size=OPTIONS.settings.get("batch", 32),
        max_latency_ms=50,
    )  # fmt: skip
    def predict(self, inputs: list[Any]) -> list[Any]:
        """Rows for the inputs of several requests."""
        return self.served.predict([self.served.decode(one) for one in inputs])
