"""A fake `flatout.engine.predict.worker`, for tests of its callers: prints lines, no more.

It runs as a real child process. What it does is told by the inputs: refuse, noisy, die, raise,
mute, slow; any other input is predicted. `evaluate` with the parameter `steps` differs.
"""

from __future__ import annotations

import json
import os
import sys
import time

question = json.loads(sys.stdin.readline())


def tell(kind, **fields):
    print(json.dumps({"kind": kind, **fields}), flush=True)


def finding(rule, problem):
    return {"rule": rule, "severity": "error", "problem": problem, "fixes": [{"text": "mend it"}]}


inputs = question["inputs"]
tell(
    "loaded",
    step=6,
    recorded={"accuracy": 0.5, "loss": 0.25},
    device="cpu",
    precision="fp32",
    unit="images",
    num_inputs=len(inputs),
    longest_input=max(map(len, inputs), default=0),
)
if question["verb"] == "evaluate":
    is_other = bool(question["parameters"] or question["fixed"])
    differences = [f"{name}={value}" for name, value in question["parameters"].items()]
    metrics = {"accuracy": 0.25 if is_other else 0.5, "loss": 0.25}
    tell("evaluated", metrics=metrics, differences=differences)
    raise SystemExit(0)
for number, text in enumerate(inputs):
    if text == "refuse":
        tell("refused", input=text, finding=finding("input-not-readable", "`refuse` is no input"))
    elif text == "raise":
        print("Traceback: line 7", file=sys.stderr)
        tell("broken", finding=finding("experiment-raised", "it raised"), exit_code=1)
        raise SystemExit(1)
    elif text == "die":
        print("about to die", file=sys.stderr, flush=True)
        os._exit(7)
    elif text == "slow":
        with open(os.path.join(question["folder"], "pid"), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    elif text == "write":
        tell("predicted", input=text, values={"text": "To be,\nor not to be"})
    else:
        tell("predicted", input=text, values={"label": str(number), "probability": 0.875})
if question["output"]:
    tell("written", path=question["output"])
