"""A fake `flatout.engine.training.worker`, for tests of its callers: writes lines, no more.

It runs as a real child process, so that starting, stopping, killing and following are tried as
they happen. Parameter `mode`: finish, fail, die, lose-gpu, lose-gpu-first (before it trains), warn,
stubborn, held (after step 3, until there is a file `may-stop`), fetch, classify, slow-start (as if
torch was loaded, as long as there is the file `hold`). Parameter `quality`: a factor of the
accuracy. Parameter `hold`: a file; while it is there, a worker whose quality is below `hold_below`
waits after step 3, until it is asked to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time

folder = sys.argv[1]
is_orphan = threading.Event()
# For what a test does meanwhile, however busy the machine is.
LONGEST_S = 180
if "--attached" in sys.argv:
    threading.Thread(target=lambda: (os.read(0, 1), is_orphan.set()), daemon=True).start()


def wait_while(is_so):
    until_s = time.monotonic() + LONGEST_S
    while is_so() and not is_orphan.is_set() and time.monotonic() < until_s:
        time.sleep(0.01)


with open(os.path.join(folder, "run.json")) as file:
    reported = {"mode": "finish", "steps": 6, "pause": 0.02, "hold": ""}
    spec = json.load(file)["spec"]
reported.update(spec["parameters"])
if reported["mode"] == "slow-start":
    wait_while(lambda: os.path.exists(reported["hold"]))
lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT)
if sys.platform == "win32":
    import msvcrt

    msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(2) from None
# A request to stop from before was meant for an earlier session.
with contextlib.suppress(FileNotFoundError):
    os.remove(os.path.join(folder, "stop"))
change = json.loads(sys.argv[sys.argv.index("--change") + 1]) if "--change" in sys.argv else {}
steps = 2 * change["epochs"] if "epochs" in change else reported["steps"]
marks = os.path.join(folder, "checkpoints")
done = max(map(int, os.listdir(marks)), default=0) if os.path.isdir(marks) else 0


def write(file_name, **line):
    with open(os.path.join(folder, file_name), "a") as file:
        file.write(json.dumps({"at": time.time(), **line}) + "\n")


def is_there(file_name):
    return os.path.exists(os.path.join(folder, file_name))


def end(**line):
    if line["kind"] in ("finished", "stopped"):
        os.makedirs(os.path.join(marks, f"{step:06d}"), exist_ok=True)
        open(os.path.join(marks, f"{step:06d}", "rank0.json"), "w").close()
    write("events.jsonl", step=step, **line)
    raise SystemExit(1 if line["kind"] == "failed" else 0)


def choice(value, origin="default"):
    return {"value": value, "why": "the fake says so", "origin": origin}


step = done
split = {"data": 0.1, "forward": 0.5, "backward": 0.4}
finding = {
    "rule": "experiment-raised",
    "severity": "error",
    "problem": "the experiment raised.",
    "evidence": ["line 7, in model", "ValueError: no"],
    "fixes": [{"text": "mend it"}],
}
recipe = {
    "device": "cpu",
    "precision": "fp32",
    "data_path": "sliced",
    "loader_workers": 0,
    "loader_prefetch": 2,
    "loader_pin_memory": False,
    "loader_persistent": True,
    "optimizer_implementation": "own",
    "attention": "auto",
    "memory_format": "contiguous",
    "micro_batch_size": 8,
    "clip_norm": None,
    "num_threads": 2,
    "deterministic": True,
    "nonfinite_loss": "stop",
    "checkpoint_every": None,
    **spec.get("fixed", {}),
}
if reported["mode"] in ("fail", "no-kernel"):
    if reported["mode"] == "no-kernel":
        print("RuntimeError: CUDA error: no kernel image is available for execution on the device")
    end(kind="failed", finding=finding)
write(
    "events.jsonl",
    kind="recipeset",
    step=step,
    recipe={name: choice(value) for name, value in recipe.items()},
)
if reported["mode"] == "lose-gpu-first":
    with open(os.path.join(folder, "events.jsonl")) as file:
        is_first = file.read().count('"recipeset"') == 1
    if is_first:
        end(kind="failed", finding=dict(finding, rule="gpu-state-lost"))
if reported["mode"] == "fetch":
    for part in (1, 2):
        write(
            "events.jsonl",
            kind="fetched",
            step=0,
            name="mnist",
            done_bytes=part * 2**20,
            total_bytes=2**21,
        )
        time.sleep(0.5)
write(
    "events.jsonl",
    kind="started",
    step=step,
    pid=os.getpid(),
    num_steps=steps,
    num_epochs=steps // 2,
    steps_per_epoch=2,
    num_parameters=10,
    num_samples=16,
    unit="images",
    resumed=done > 0,
    versions={"torch": "2.13.0"},
    best="accuracy",
)
if reported["mode"] == "warn":
    write("events.jsonl", kind="warned", step=step, finding=dict(finding, severity="warning"))
while step < steps:
    time.sleep(reported["pause"])
    step += 1
    write(
        "metrics.jsonl",
        kind="progress",
        step=step,
        epoch=(step - 1) // 2,
        loss=1 / step,
        samples_per_s=1000.0,
        learning_rate=0.1,
        memory_bytes=2**20,
        power_w=120.0,
        split_s=split,
    )
    if step % 2 == 0:
        write("metrics.jsonl", kind="epochended", step=step, epoch=step // 2 - 1, loss=1 / step)
        write(
            "metrics.jsonl",
            kind="validated",
            step=step,
            epoch=step // 2 - 1,
            is_best=True,
            metrics={"loss": 1 / step, "accuracy": reported.get("quality", 1) * (1 - 1 / step)},
        )
    if step % 2 == 0 and reported["mode"] == "classify":
        write(
            "metrics.jsonl",
            kind="classified",
            step=step,
            epoch=step // 2 - 1,
            name="animals",
            labels=["cat", "dog"],
            counts=[[0, 0, step], [0, 1, 1], [1, 1, 7]],
        )
        write(
            "metrics.jsonl",
            kind="generated",
            step=step,
            epoch=step // 2 - 1,
            texts=[f"written at step {step}"],
        )
    if step == 3 and reported.get("quality", 1) < reported.get("hold_below", 2):
        wait_while(lambda: os.path.exists(reported["hold"]) and not is_there("stop"))
    if reported["mode"] == "lose-gpu" and step == 3 and not done:
        os.makedirs(os.path.join(marks, "000002"))
        open(os.path.join(marks, "000002", "rank0.json"), "w").close()
        end(kind="failed", finding=dict(finding, rule="gpu-state-lost"))
    if reported["mode"] == "break" and step == 3:
        end(kind="failed", finding=finding)
    if reported["mode"] == "die" and step == 3 and not change.get("is_after_kill"):
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL) if sys.platform != "win32" else os._exit(9)
    if reported["mode"] == "held" and step == 3:
        wait_while(lambda: not is_there("may-stop"))
    is_asked = is_there("stop")
    if reported["mode"] != "stubborn" and (is_asked or is_orphan.is_set()):
        end(kind="stopped", reason="asked to" if is_asked else "the command line has died")
end(kind="finished", train_s=1.0, split_s=split, num_samples_seen=8 * steps)
