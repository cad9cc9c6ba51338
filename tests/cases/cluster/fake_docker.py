"""Stands in for Docker where only the outside is tried: three containers whose programs run here.

What it needs to know stands in variables: FAKE_RUNS, the folder that the nodes have as
/flatout/runs, and whose name with `-temporary` stands for their own /tmp; FAKE_PYTHON, an
interpreter with the fake engine; FAKE_SOURCE, this checkout's src; FAKE_LOST, a file that names
containers that are gone; FAKE_CONFIG, a file with what Compose understands; FAKE_FAILS, the command
of Compose that fails. Each call is a line of FAKE_CALLS.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

INSPECTED = Path(__file__).with_name("inspect.json")
words = sys.argv[1:]


def lost() -> set[str]:
    path = Path(os.environ.get("FAKE_LOST", "/no/such/file"))
    return set(path.read_text().split()) if path.exists() else set()


def containers() -> list[dict]:
    found = json.loads(INSPECTED.read_text())
    return [one for one in found if one["Name"] not in lost()]


def execute(words: list[str]) -> None:
    """As `docker exec`: variables, a container, a command; the command runs on this machine."""
    while words[0].startswith("-"):
        if words[0] == "--env":
            name, _, value = words.pop(1).partition("=")
            os.environ[name] = value
        words.pop(0)
    container, *command = words
    if "flatout.cluster.compose.node_report" in command:
        print(os.environ["FAKE_REPORT"].replace("NODE", json.loads(command[-1])["node"]))
        return
    if not any(one["Id"] == container for one in containers()):
        sys.exit(f"Error response from daemon: container {container} is not running")
    runs = os.environ["FAKE_RUNS"]
    temporary = os.environ["FAKE_RUNS"] + "-temporary"
    command = [
        word.replace("/flatout/runs", runs).replace("/tmp/flatout-", temporary) for word in command
    ]
    if "flatout.engine.launch" in command:
        if command[command.index("--node") + 1] != "0":
            # A further node has ranks that write nothing; this one ends with its container.
            command = [*command[: command.index("python3")], sys.executable, "-c", FURTHER]
        else:
            command[command.index("python3")] = os.environ["FAKE_PYTHON"]
            command[command.index("flatout.engine.launch")] = "flatout.engine.training.worker"
    else:
        os.environ["PYTHONPATH"] = os.environ["FAKE_SOURCE"]
        command = [sys.executable if word == "python3" else word for word in command]
    os.execvp(command[0], command)


FURTHER = f"""
import os, signal, time
from pathlib import Path
lost = Path({os.environ.get("FAKE_LOST", "/no/such/file")!r})
end = time.monotonic() + 1
while time.monotonic() < end:
    if lost.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
"""

if "FAKE_CALLS" in os.environ:
    with open(os.environ["FAKE_CALLS"], "a") as file:
        file.write(json.dumps(words) + "\n")
if words[0] == "exec":
    execute(words[1:])
elif words[0] == "compose" and os.environ.get("FAKE_FAILS", "nothing") in words:
    sys.exit("no space left on device")
elif words[0] == "compose" and "config" in words:
    print(Path(os.environ["FAKE_CONFIG"]).read_text())
else:
    answers = {
        "version": "27.0.1",
        "compose": "2.29.0",
        "ps": "\n".join(one["Id"] for one in containers()),
        "inspect": json.dumps(containers()),
    }
    print(answers[words[0]])
