"""Whether the GPU works: CUDA by itself, then each framework, all in children.

Only for a deep examination (`--deep`): it takes seconds and memory of the GPU.
"""

from __future__ import annotations

import msgspec

from flatout.schema.driver import CudaStart
from flatout.schema.environment_facts import Environment
from flatout.system.host_system import Completed, System

START_TIMEOUT_S = 20.0
OPERATION_TIMEOUT_S = 120.0

# A sum on the GPU, read back: what is queued and never runs is not a proof.
_OPERATIONS = {
    "torch": "import torch; assert (torch.ones(8, device='cuda') * 2).sum().item() == 16",
    "tensorflow": "import tensorflow as tf\nwith tf.device('GPU:0'):\n"
    "    assert float(tf.reduce_sum(tf.ones(8) * 2)) == 16",
    "paddlepaddle": "import paddle; paddle.set_device('gpu'); "
    "assert float((paddle.ones([8]) * 2).sum()) == 16",
    "jax": "import jax, jax.numpy as n; d = jax.devices('gpu')[0]; "
    "assert float((jax.device_put(n.ones(8), d) * 2).sum()) == 16",
}
_MOST_CHARACTERS = 2_000


def start_cuda(system: System) -> tuple[CudaStart, dict[str, str]]:
    """The result of starting CUDA, and reasons for its None values."""
    done = system.run(
        [system.python, "-P", "-m", "flatout.system.cuda_init_child"], START_TIMEOUT_S
    )
    return parse_start(done)


def parse_start(done: Completed) -> tuple[CudaStart, dict[str, str]]:
    """CUDA's start from what `system/cuda_init_child.py` printed, or how that process ended."""
    if done.exit_code != 0:
        how = done.reason or f"crashed (exit code {done.exit_code})"
        return CudaStart(error=how), {
            f"cuda_start.{name}": how for name in ("path", "cuda", "num_devices")
        }
    try:
        start = msgspec.json.decode(done.stdout, type=CudaStart)
    except msgspec.DecodeError:
        start = CudaStart(error=f"cannot read the answer {done.stdout[:80]!r}")
    fields = ("path", "cuda", "num_devices")
    why = start.error or "CUDA did not report it"
    return start, {f"cuda_start.{name}": why for name in fields if getattr(start, name) is None}


def try_environment(system: System, environment: Environment) -> tuple[Environment, str]:
    """The environment with whether its frameworks can use the GPU, and all that they printed.

    A build without CUDA is not tried: that it cannot is known already.
    """
    errors: list[str] = []
    problem = None
    tried = False
    for framework in environment.frameworks:
        operation = _OPERATIONS.get(framework.name)
        if operation is None or framework.build == "cpu":
            continue
        tried = True
        # From no folder of the user's: a torch.py next to it would be taken for torch.
        code = f"import sys; sys.path = [one for one in sys.path if one]\n{operation}"
        done = system.run([environment.python, "-c", code], OPERATION_TIMEOUT_S)
        if done.exit_code == 0:
            continue
        errors.append(done.stderr[-_MOST_CHARACTERS:])
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        how = done.reason or (lines[-1] if lines else f"crashed (exit code {done.exit_code})")
        problem = problem or f"{framework.name}: {how[:300]}"
    can_use_gpu = problem is None if tried else None
    return (
        msgspec.structs.replace(environment, can_use_gpu=can_use_gpu, problem=problem),
        "\n".join(errors),
    )
