"""A model behind LitServe, which batches in a process of its own."""

from __future__ import annotations

from typing import Any

import litserve
import served_model


class PredictApi(litserve.LitAPI):
    """One input for a request; LitServe puts requests together."""

    def setup(self, device: str) -> None:
        self.served = OPTIONS.served()

    # LitServe makes a parameter of the query of a request with another type than its own.
    def decode_request(self, request, **context):  # type: ignore[no-untyped-def]
        return self.served.decode(request["inputs"][0])

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, batch: Any, **context: Any) -> Any:
        is_batch = isinstance(batch, list)
        rows = self.served.predict(batch if is_batch else [batch])
        return rows if is_batch else rows[0]

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output, **context):  # type: ignore[no-untyped-def]
        return {"predictions": [output]}


OPTIONS = served_model.options()

if __name__ == "__main__":
    settings = OPTIONS.settings
    api = PredictApi(max_batch_size=settings["batch"], batch_timeout=settings.get("wait_s", 0.0))
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=settings.get("workers", 1),
        fast_queue=settings.get("fast_queue", False),
    )  # fmt: skip
    server.run(
        host="127.0.0.1", port=OPTIONS.port, num_api_servers=settings.get("api_servers"),
        generate_client_file=False, log_level="warning", access_log=False,
    )  # fmt: skip
