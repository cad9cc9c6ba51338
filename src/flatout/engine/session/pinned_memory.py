"""Whether memory can be page-locked for copies to the GPU: tried, where it is not sure.

Under WSL little memory can be pinned, how little is not documented, and a failed attempt leaves
CUDA in an error. So it is tried in a process of its own:
`python -m flatout.engine.session.pinned_memory BYTES` prints `{"problem": null}`, or why.
Source: https://docs.nvidia.com/cuda/wsl-user-guide (limitations), microsoft/WSL#8447.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import msgspec
import torch
from torch.utils._pytree import tree_leaves

from flatout.engine.runtime import rng
from flatout.engine.runtime.child_query import query_in_child
from flatout.engine.session.session import BuiltExperiment
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.units import bytes_text
from flatout.system.exit_code import end
from flatout.system.wsl import is_wsl

# Starting Python, torch and CUDA takes most of it.
_LIMIT_S = 60.0

# Tried at least: what smaller batches come to in the course of an epoch.
_LEAST_BYTES = 64 * 2**20
# Batches that are pinned at a time, in addition to those that the workers have ready.
_IN_USE = 2


def with_pinning_tried(recipe: Recipe, built: BuiltExperiment) -> Recipe:
    """The recipe, without pinned memory where flatout has chosen it and it is not available."""
    chosen = recipe.loader_pin_memory
    if not chosen.value or chosen.origin == "yours":
        return recipe
    problem = pinning_problem(built, recipe)
    if problem is None:
        return recipe
    choice = Choice(value=False, why=problem, origin="measured")
    return msgspec.structs.replace(recipe, loader_pin_memory=choice)


def pinning_problem(built: BuiltExperiment, recipe: Recipe) -> str | None:
    """The reason why a loader's batches cannot be pinned here; None if they can, or need not be.

    Args:
        built: whose training data they are made of.
        recipe: says how many of them its workers have ready.
    """
    if built.device.type != "cuda" or built.facts.data_kind == "tensors" or not is_wsl():
        return None
    num_ahead = recipe.loader_workers.value * recipe.loader_prefetch.value
    num_bytes = (num_ahead + _IN_USE) * built.facts.batch_size * _sample_bytes(built)
    return _problem_of(max(_LEAST_BYTES, num_bytes))


@functools.cache
def _problem_of(num_bytes: int) -> str | None:
    output = query_in_child(
        "flatout.engine.session.pinned_memory", str(num_bytes), limit_s=_LIMIT_S
    )
    return problem_from_trial(output, num_bytes)


def problem_from_trial(output: dict[str, Any] | str, num_bytes: int) -> str | None:
    """The answer of the test process, as the reason for not pinning; None if it works."""
    problem = output if isinstance(output, str) else output.get("problem", "it gave no result")
    if problem is None:
        return None
    return f"pinning {bytes_text(num_bytes)} failed in a test under WSL: {problem}"


def _sample_bytes(built: BuiltExperiment) -> int:
    """Bytes of the first sample, as far as it is tensors or arrays; 0 where reading it is a step
    of the training itself.
    """
    if built.facts.data_kind != "map-style":
        return 0
    states = rng.host_generator_states()
    try:
        sample = built.train_data[0]
    finally:
        rng.restore_host_generators(states)
    return sum(map(_num_bytes, tree_leaves(sample)))


def _num_bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0))


def main(argv: list[str]) -> int:
    """Pins so many bytes, copies them to the GPU, and prints the result."""
    problem = None
    if not torch.cuda.is_available():
        problem = "torch sees no GPU in the test process"
    else:
        try:
            # In pieces, as batches are; all of them are kept at the same time.
            size = max(1, int(argv[0]) // 8)
            pieces = [torch.zeros(size, dtype=torch.uint8, pin_memory=True) for _ in range(8)]
            for piece in pieces:
                piece.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
        except RuntimeError as error:
            problem = str(error).splitlines()[0]
    print(json.dumps({"problem": problem}))
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
