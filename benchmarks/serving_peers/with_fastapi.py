"""A model behind plain FastAPI: in the server's process, in a function of a thread pool or not."""

from __future__ import annotations

from pathlib import Path
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


def predict(body: Body) -> dict[str, Any]:
    """Rows for the inputs; FastAPI calls it in a thread, as its documentation recommends."""
    return {"predictions": SERVED.predict([SERVED.decode(one) for one in body.inputs])}


async def predict_at_once(body: Body) -> dict[str, Any]:
    """The same without a thread: a fast model keeps the event loop for a moment only."""
    return predict(body)


APP.post("/predict")(predict_at_once if OPTIONS.settings.get("is_async") else predict)


if __name__ == "__main__":
    workers = OPTIONS.settings.get("workers", 1)
    uvicorn.run(
        # Several processes find it by its name.
        APP if workers == 1 else "with_fastapi:APP", app_dir=str(Path(__file__).parent),
        workers=workers, host="127.0.0.1", port=OPTIONS.port, log_level="warning",
        access_log=False,
    )  # fmt: skip
