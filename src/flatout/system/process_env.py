"""The environment variables of the processes that flatout starts."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys

from flatout.errors import UsageError
from flatout.schema.placement import RANKS_LIMIT_NAME, RANKS_LIMIT_S
from flatout.system import paths

_ADDED = {
    # So that cuda:1 is the second GPU as nvidia-smi and flatout's probe count them.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # Without it cuBLAS does not repeat bit for bit; it is read when CUDA is first used.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

# Where torch keeps what it has compiled. By itself it would be a folder that a restart empties.
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"

# The C++ compiler that torch looks for if CXX is not set.
_COMPILERS = {"win32": "cl", "darwin": "clang++"}

# Names the variables that were added, with commas between.
_NAMES = "FLATOUT_ADDED"

# The GPUs that CUDA sees.
_GPUS = "CUDA_VISIBLE_DEVICES"

# It decides which GPU is which; all the others are about speed.
_GPU_ORDER = "CUDA_DEVICE_ORDER"


def worker_environment(gpus: str | None = None) -> dict[str, str]:
    """The environment of an engine's process; the user's own settings win.

    The names of what was added go along: a plain loop that is measured has none of it.

    gpus: those that CUDA sees; None leaves it as it is.
    """
    variables = {**_ADDED, _COMPILED: str(paths.compiled_folder())}
    added = {name: value for name, value in variables.items() if name not in os.environ}
    chosen = {} if gpus is None else {_GPUS: gpus}
    return {**os.environ, **added, **chosen, _NAMES: ",".join(added)}


def missing_compiler() -> str | None:
    """The C++ compiler that torch would call in this process, if it is not installed; else None."""
    compiler = os.environ.get("CXX") or _COMPILERS.get(sys.platform, "g++")
    return compiler if shutil.which(compiler) is None else None


def repeat_products() -> None:
    """Lets cuBLAS repeat bit for bit in this process, if it has not been used yet; what the user
    has set holds.
    """
    os.environ.setdefault(_WORKSPACE, _ADDED[_WORKSPACE])


def do_products_repeat() -> bool:
    """Whether cuBLAS was set to repeat bit for bit."""
    return os.environ.get(_WORKSPACE) in (":4096:8", ":16:8")


def give_up_transfers() -> None:
    """Has torch give up an NCCL transfer that fails, where it would end the process: to be called
    before NCCL is started. What the user has set wins.

    Source: "PYTORCH ProcessGroupNCCL Environment Variables",
    https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html.
    """
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")


def visible_gpus() -> str | None:
    """The GPUs that the user lets CUDA see, as typed; None if not set."""
    return os.environ.get(_GPUS)


def is_bus_order() -> bool:
    """Whether CUDA counts GPUs in PCI bus order in a worker, as flatout's probe does."""
    return os.environ.get(_GPU_ORDER, _ADDED[_GPU_ORDER]) == _ADDED[_GPU_ORDER]


def ranks_limit() -> dict[str, str]:
    """The variable for the limit of ranks' waits, if they do not inherit it; nothing by default."""
    return {name: os.environ[name] for name in (RANKS_LIMIT_NAME,) if name in os.environ}


def loopback_variables() -> dict[str, str]:
    """Keeps the traffic between processes of one machine on it, whatever its name resolves to."""
    if "GLOO_SOCKET_IFNAME" in os.environ or sys.platform == "win32":
        return {}
    return {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}


def ranks_limit_s() -> float:
    """The limit of ranks' waits for each other.

    Raises:
        UsageError: bad-setting.
    """
    text = os.environ.get(RANKS_LIMIT_NAME, str(RANKS_LIMIT_S))
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise UsageError(
            "bad-setting",
            f"{RANKS_LIMIT_NAME}={text} is not a number of seconds.",
            fix=f"{RANKS_LIMIT_NAME}={RANKS_LIMIT_S:g}, or leave it out",
        )
    return limit_s


def shell_variables() -> dict[str, str]:
    """All that the user's shell has set: programs that read a file of settings prefer it."""
    return dict(os.environ)


def plain_environment() -> dict[str, str]:
    """The environment of the user's own loop."""
    added = set(os.environ.get(_NAMES, "").split(",")) - {_GPU_ORDER}
    own = {name: value for name, value in os.environ.items() if name not in added}
    # Otherwise cuda:0 may be another GPU than the one that flatout's worker trains on.
    return {_GPU_ORDER: _ADDED[_GPU_ORDER], **own}


def head_address(engine: str) -> str | None:
    """The address of a cluster's head, from Ray's and Dask's own variables; None if unset."""
    variable = {"ray": "RAY_ADDRESS", "dask": "DASK_SCHEDULER_ADDRESS"}[engine]
    return os.environ.get(variable, "").strip() or None


# They would lead an environment's interpreter, or an installer, to other packages or places.
_MISLEADING = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX",
    "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON",
    "PIP_REPORT", "UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_PROJECT_ENVIRONMENT", "UV_TORCH_BACKEND",
    "UV_NO_BINARY", "UV_OVERRIDE",
)  # fmt: skip


def setup_environment(**added: str) -> dict[str, str]:
    """The environment of installers, and of interpreters in new environments."""
    inherited = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    return {**inherited, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **added}


def proof_environment(*, is_cpu: bool, **added: str) -> dict[str, str]:
    """The environment of smoke tests."""
    variables = setup_environment(
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        TF_CPP_MIN_LOG_LEVEL="3",
        # Otherwise JAX takes three quarters of a card that a screen or another program needs too.
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    if is_cpu:
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    elif variables.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        # Someone hides the GPUs from other programs; here one of them is to compute.
        del variables["CUDA_VISIBLE_DEVICES"]
    return {**variables, **added}


def framework_environment(device: str, num_threads: int, **added: str) -> dict[str, str]:
    """The environment of a program that measures one framework, the same for all of them.

    device: `cpu` or `cuda:N`, the only one that it sees.
    """
    variables = proof_environment(
        is_cpu=device == "cpu",
        OMP_NUM_THREADS=str(num_threads),
        # XLA's, which has no option for it on a CPU.
        PJRT_NPROC=str(num_threads),
        NPROC=str(num_threads),
    )
    if device != "cpu":
        number = int(device.partition(":")[2] or 0)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
        variables["CUDA_VISIBLE_DEVICES"] = names[number] if number < len(names) else str(number)
        # All compute in fp32: each framework has its own option for TF32, with its own default.
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
    return {**variables, **added}


def creation_flags() -> int:
    """The creation flags for our processes under Windows."""
    if sys.platform == "win32":
        # Without a console of its own, closing ours would end the worker before its checkpoint.
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    return 0
