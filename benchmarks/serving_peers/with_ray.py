"""A model behind Ray Serve, with its batching."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import served_model

OPTIONS = served_model.options()
SETTINGS = OPTIONS.settings
if SETTINGS.get("is_optimized"):
    # Read when Ray is imported. "Performance Tuning", docs.ray.io.
    os.environ["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = "1"

import ray  # noqa: E402
from ray import serve  # noqa: E402
from starlette.requests import Request  # noqa: E402


@serve.deployment(
    num_replicas=SETTINGS.get("replicas", 1), max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 0.5},
)  # fmt: skip
class PredictDeployment:
    """The model in a process of its own."""

    def __init__(self, options: served_model.PeerOptions) -> None:
        self.served = options.served()

    @serve.batch(
        max_batch_size=SETTINGS.get("batch", 32), batch_wait_timeout_s=SETTINGS.get("wait_s", 0.0)
    )
    async def rows(self, inputs: list[Any]) -> list[Any]:
        """Rows for requests that arrive together."""
        return self.served.predict([self.served.decode(one) for one in inputs])

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        rows = await asyncio.gather(*(self.rows(one) for one in body["inputs"]))
        return {"predictions": rows}


if __name__ == "__main__":
    # Here, not in a thread: a signal ends the wait below.
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": OPTIONS.port}, logging_config={
            "enable_access_log": False
        },
    )  # fmt: skip
    serve.run(PredictDeployment.bind(OPTIONS), route_prefix="/predict")
    stopped.wait()
    serve.shutdown()
    ray.shutdown()
