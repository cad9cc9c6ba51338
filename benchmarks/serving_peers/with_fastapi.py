"""A model behind plain FastAPI: in the server's process, in a function of a thread pool."""

from __future__ import annotations

from typing import Any

import served_model
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

APP = FastAPI()
OPTIONS = served_model.options()
SERVED = OPTIONS.served()


class Body(BaseModel):
    """What a client sends."""

    inputs: list[Any]


@APP.post("/predict")
def predict(body: Body) -> dict[str, Any]:
    """Rows for the inputs."""
    return {"predictions": SERVED.predict([SERVED.decode(one) for one in body.inputs])}


if __name__ == "__main__":
    uvicorn.run(APP, host="127.0.0.1", port=OPTIONS.port, log_level="warning", access_log=False)
