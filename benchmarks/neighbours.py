"""Other programs that run during a measurement, as on a machine in everyday use.

with neighbours("training"):
    ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flatout.system.die_with_parent import guarded

_LOOP = "while True: pass"
# A training of another user, with torch's default number of threads.
_TRAINING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
optimizer = torch.optim.AdamW(model.parameters())
while True:
    optimizer.zero_grad()
    model(torch.randn(128, 512)).square().mean().backward()
    optimizer.step()
"""
# What a compiler does to a machine: short processes, one after the other.
_COMPILE = """
import subprocess, sys
text = "\\n".join(f"def f{n}(x):\\n    return [x * {n} + i for i in range({n})]" for n in range(4000))
while True:
    subprocess.run([sys.executable, "-I", "-c", "import sys; compile(sys.stdin.read(), 'x', 'exec')"],
                   input=text.encode())
"""  # noqa: E501
KINDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "loop": (_LOOP,),
    "loops": (_LOOP, _LOOP),
    "training": (_TRAINING,),
    "compile": (_COMPILE,),
    "both": (_LOOP, _TRAINING),
}

# Until a neighbour that imports torch is at work.
_START_S = 6.0


@contextmanager
def neighbours(kind: str) -> Iterator[None]:
    """Runs these programs with the priority of this one.

    As those of another terminal: Linux shares CPUs out to sessions (autogroups), then to what runs
    in each. In the session of what is measured, they would slow down only what does not start one.
    """
    if not KINDS[kind]:
        yield
        return
    started = [
        subprocess.Popen(
            guarded(sys.executable, ["-c", text]), stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_without_threads(),
        )
        for text in KINDS[kind]
    ]  # fmt: skip
    try:
        time.sleep(_START_S if any("torch" in text for text in KINDS[kind]) else 0.5)
        yield
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        for process in started:
            process.wait()


def _without_threads() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def chosen(text: str) -> list[str]:
    """The kinds in a comma-separated list; exits if one is unknown."""
    names = text.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        sys.exit(f"unknown neighbour: {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    return names
