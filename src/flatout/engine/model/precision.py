"""Mixed precision: number formats of the step, and loss scaling for small gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from flatout.errors import UsageError
from flatout.schema.recipe import Attention, Precision, Recipe
from flatout.system.process_env import do_products_repeat

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "float8": torch.bfloat16}

# The compute capability that each format needs.
_NEEDED = {"bf16": (8, 0), "tf32": (8, 0), "float8": (8, 9)}
_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def set_matmul_precision(precision: Precision) -> None:
    """tf32 lets CUDA's matrix products and convolutions round fp32 inputs to 10 bits; fp32 not."""
    is_tf32 = precision == "tf32"
    for settings in _fp32_settings():
        # An experiment's setting for one kind of operation would override the following.
        settings.fp32_precision = "none"
    torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = is_tf32


def matmul_precision() -> str:
    """torch's present setting for the precision of fp32 products."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # If set by the newer of torch's two APIs, the older one cannot be queried.
        is_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return "high" if is_tf32 else "highest"


@contextlib.contextmanager
def restored_fp32_settings() -> Iterator[None]:
    """Restores how torch computes fp32 products and convolutions, whatever is set in between.

    torch 2.9 has a setting for each kind of operation, in addition to the older global ones. Each
    API writes to the other, and the older one raises if the two contradict each other.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32 (TF32)".
    """
    saved = [(settings, settings.fp32_precision) for settings in _fp32_settings()]
    matmul, is_cudnn_tf32 = _older_settings()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = is_cudnn_tf32
        for settings, value in saved:
            settings.fp32_precision = value


def _fp32_settings() -> list[Any]:
    """torch's settings of the newer kind: for all, by library, by operation."""
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return []
    libraries = (backends.cudnn, backends.mkldnn)
    found_settings = [backends, backends.cuda.matmul, *libraries]
    for library in libraries:
        for name in ("matmul", "conv", "rnn"):
            settings = getattr(library, name, None)
            if hasattr(settings, "fp32_precision"):
                found_settings.append(settings)
    return found_settings


def _older_settings() -> tuple[str, bool]:
    """The older settings for products and cuDNN.

    torch refuses to read one that contradicts the newer settings: it is their opposite.
    """
    backends: Any = torch.backends
    try:
        matmul = torch.get_float32_matmul_precision()
    except RuntimeError:
        matmul = "highest" if backends.cuda.matmul.fp32_precision == "tf32" else "high"
    try:
        is_cudnn_tf32 = backends.cudnn.allow_tf32
    except RuntimeError:
        operations = (backends.cudnn.conv, backends.cudnn.rnn)
        is_cudnn_tf32 = any(operation.fp32_precision != "tf32" for operation in operations)
    return matmul, is_cudnn_tf32


def autocast(
    precision: Precision, device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context in which matrix products and convolutions are rounded."""
    dtype = _AUTOCAST.get(precision)
    if dtype is None:
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=dtype)


def attention_kernel(attention: Attention) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context in which torch's attention uses that kernel."""
    backend = _BACKENDS.get(attention)
    return contextlib.nullcontext if backend is None else lambda: sdpa_kernel(backend)


def forward_settings(
    precision: Precision, attention: Attention, device: torch.device
) -> Callable[[], AbstractContextManager[Any]]:
    """Makes the context in which the forward pass and the loss are computed."""
    rounding, kernel = autocast(precision, device), attention_kernel(attention)
    if attention not in _BACKENDS:
        return rounding

    @contextlib.contextmanager
    def settings() -> Iterator[None]:
        # The backward pass uses the kernel that the forward pass has chosen.
        with rounding(), kernel():
            yield

    return settings


def gradient_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """fp16 flushes small gradients to zero; scaling the loss keeps them. None where not needed."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuses a precision that the device does not support, instead of using another.

    Raises:
        UsageError: precision-not-here.
    """
    if device.type == "cpu":
        if precision in ("fp32", "bf16"):
            return
        because = f"CPUs do not support {precision}"
        if precision == "fp16":
            because = "on a CPU, fp16 is slower than fp32 and loses range"
        raise _not_here(precision, because, "fp32 or bf16")
    capability = torch.cuda.get_device_capability(device)
    needed = _NEEDED.get(precision, (0, 0))
    if capability < needed:
        has, wants = (f"{version[0]}.{version[1]}" for version in (capability, needed))
        instead = "fp16 or fp32" if capability < _NEEDED["bf16"] else "bf16, fp16 or fp32"
        raise _not_here(precision, f"compute capability {has}; {precision} needs {wants}", instead)


def check_layers(precision: Precision, model: nn.Module, device: torch.device) -> None:
    """Refuses a precision in which this device cannot compute one of the model's layers.

    Raises:
        UsageError: precision-not-here.
    """
    if precision != "bf16" or device.type != "cpu" or can_compute_lstm_in_bf16():
        return
    if any(isinstance(module, nn.LSTM) for module in model.modules()):
        because = "torch supports nn.LSTM in bf16 only on CPUs with AVX-512"
        raise _not_here(precision, because, "fp32")


def can_compute_lstm_in_bf16() -> bool:
    """Whether oneDNN, which computes torch's LSTM on a CPU, knows bf16 here."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def check_repeatable(recipe: Recipe, device: torch.device) -> None:
    """Refuses to promise determinism if cuBLAS was started without the setting that it needs.

    Raises:
        UsageError: recipe-does-not-fit.
    """
    if device.type != "cuda" or not recipe.deterministic.value or do_products_repeat():
        return
    raise UsageError(
        "recipe-does-not-fit",
        "`deterministic=true` cannot be guaranteed in this process.",
        because="it has used CUDA without CUBLAS_WORKSPACE_CONFIG, which cuBLAS needs for exact "
        "repeatability and reads only once",
        fix='restart the notebook, and set os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8" '
        "before anything uses the GPU; or leave `deterministic` out",
    )


def _not_here(precision: str, because: str, instead: str) -> UsageError:
    return UsageError(
        "precision-not-here",
        f"`precision={precision}` is not supported on this device.",
        because=because,
        fix=f"use {instead}, or leave it out",
    )
