"""The command lines of `flatout serve` and `flatout serve swap` as data."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.schema.predict_protocol import InferenceRequest


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is served, and how.

    model: a run, or an exported file. experiment, settings, uses, python, env, is_trusted: as of
    `InferenceRequest`. device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    model: str
    experiment: str | None = None
    settings: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    device: str = "auto"
    python: str | None = None
    env: str | None = None
    is_trusted: bool = False

    @property
    def inference(self) -> InferenceRequest:
        """The same for those who check the parameters of a run."""
        return InferenceRequest(
            run=self.model,
            experiment=self.experiment,
            settings=self.settings,
            uses=self.uses,
            device=self.device,
            python=self.python,
            env=self.env,
            is_trusted=self.is_trusted,
        )

    @property
    def fixed(self) -> dict[str, Any]:
        """The recipe fields that the user fixed, as of `InferenceRequest`."""
        return self.inference.fixed


class ServeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is served.

    num_replicas, max_samples: None chooses. latency_s: target for a batch. host, port: of the HTTP
    server; port 0 takes a free one. allowed_hosts: more names of the server, in lower case, for a
    reverse proxy. token: that clients must send; None: none.
    max_queue: requests that wait. timeout_s: for a request.
    """

    num_replicas: int | None = None
    max_samples: int | None = None
    latency_s: float = 0.02
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()
    token: str | None = None
    max_queue: int = 1024
    timeout_s: float = 30.0
