"""torch's compiler is imported by a process only once something in it compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fork_server import CAN_FORK, ForkServer

# Not run in this process: its compiler is there already.
BEGIN = """
import sys
import torch
from flatout.engine.runtime.lazy_compiler import defer_compiler, use_deterministic_algorithms
if "--deferred" in sys.argv:
    defer_compiler()

def compilers():
    return [name for name in sys.modules if name.startswith(("torch._dynamo.", "torch._inductor."))]

def trained(kind, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = kind(model.parameters(), **options)
    for _ in range(3):
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return [value.tolist() for value in model.parameters()]
"""

EAGER = """
use_deterministic_algorithms(True)
kinds = (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop)
weights = [trained(kind, lr=0.01) for kind in kinds]
assert torch.are_deterministic_algorithms_enabled()
assert not ("--deferred" in sys.argv and compilers()), compilers()
print(weights)
"""

COMPILED = """
trained(torch.optim.SGD, lr=0.01)
use_deterministic_algorithms(True)
assert not compilers(), compilers()
twice = torch.compile(lambda x: 2 * x, backend="eager")
assert twice(torch.ones(2)).tolist() == [2.0, 2.0]
import torch._inductor.config
assert torch._inductor.config.deterministic
# What torch leaves out of graphs is asked for again.
kept = vars(torch.optim.Optimizer.zero_grad.__wrapped__)
assert "__dynamo_disable" not in kept
trained(torch.optim.SGD, lr=0.01)
assert kept["__dynamo_disable"] is not torch.optim.Optimizer.zero_grad.__wrapped__
print("compiled")
"""

BELOW = """
import torch._dynamo.utils as utils
from torch._dynamo import config
assert utils is sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
assert type(utils.__spec__.loader).__name__ == "SourceFileLoader"
assert config is sys.modules["torch._dynamo.config"]
assert type(torch._dynamo).__name__ == "module"
print("found")
"""

SETTING = """
torch._dynamo.config.cache_size_limit = 3
import torch._dynamo
torch._dynamo.reset()
assert torch._dynamo.config.cache_size_limit == 3
print("set")
"""


# Runs programs in children of a process that has loaded torch, and not its compiler.
LOADED = """
import json, os, sys
import torch
from flatout.engine.runtime import lazy_compiler

for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["-c", *asked["arguments"]]
    exec(asked["program"], {"__name__": "__main__"})
    break
"""
Run = Callable[..., str]


@pytest.fixture(scope="module")
def loaded() -> Iterator[ForkServer]:
    server = ForkServer([sys.executable, "-c", LOADED])
    yield server
    server.close()


@pytest.fixture
def run(loaded: ForkServer, tmp_path: Path) -> Run:
    """Gives what a program prints that ends well."""

    def printed(program: str, *arguments: str) -> str:
        if not CAN_FORK:
            done = subprocess.run(
                [sys.executable, "-c", BEGIN + program, *arguments], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            return done.stdout
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        out, err = place / "stdout", place / "stderr"
        asked = {"program": BEGIN + program, "arguments": arguments, "stdout": str(out),
                 "stderr": str(err)}  # fmt: skip
        exit_code = loaded.ask(json.dumps(asked), 300.0)
        assert exit_code == "0\n", err.read_text(encoding="utf-8")
        return out.read_text(encoding="utf-8")

    return printed


def test_eager_updates_are_the_same_without_the_compiler(run: Run) -> None:
    assert run(EAGER, "--deferred") == run(EAGER)


@pytest.mark.parametrize("program", [COMPILED, BELOW, SETTING], ids=["compiled", "below", "set"])
def test_compiler_is_there_when_something_asks_for_it(run: Run, program: str) -> None:
    assert run(program, "--deferred")


def test_nothing_is_deferred_when_the_compiler_is_there(run: Run) -> None:
    program = """
import torch._dynamo as real
defer_compiler()
assert torch._dynamo is real and sys.modules["torch._dynamo"] is real
print("kept")
"""
    assert run(program)
