"""A fake `flatout.engine.serve.export_worker`, for tests of its callers: prints lines, no more.

It runs as a real child process. What it does is set by the name of the output: raise, die; any
other is exported.
"""

from __future__ import annotations

import json
import os
import sys

job = json.loads(sys.stdin.readline())


def say(kind, **fields):
    print(json.dumps({"kind": kind, **fields}), flush=True)


say("exporting", what="loading the weights")
if "raise" in job["output"]:
    finding = {
        "rule": "model-not-exportable",
        "severity": "error",
        "problem": "it has no graph",
        "fixes": [{"text": "serve it"}],
    }
    say("broken", finding=finding, exit_code=2)
    raise SystemExit(2)
if "die" in job["output"]:
    os._exit(7)
say(
    "exported",
    path=job["output"],
    form=job["form"],
    size_bytes=2048,
    opset=job["opset"],
    facts={
        "flatout": "0",
        "run": "one",
        "step": 6,
        "inputs": [{"name": "input", "dtype": "float32", "shape": [None, 1, None]}],
        "outputs": [{"name": "prediction", "dtype": "float32", "shape": [None, 10]}],
        "precision": "int8" if job["is_int8"] else "fp32",
        "preprocessing": "none",
    },
    checked={
        "num_samples": 64,
        "data": "validation",
        "batch_sizes": [1, 3, 64],
        "difference": 0.000012,
        "tolerance": 0.0001,
        **(
            {"metric": "accuracy", "before": 0.98, "after": 0.975, "allowed_fall": 0.01}
            if job["is_int8"]
            else {}
        ),
    },
)
