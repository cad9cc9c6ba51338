"""What an operator or a kernel does, by its name."""

from __future__ import annotations

import re

from flatout.schema.step_profile import Part

_MATRIX = frozenset(
    {
        "mm", "bmm", "addmm", "addbmm", "baddbmm", "addmv", "mv", "dot", "vdot", "ger", "_int_mm",
        "_scaled_mm", "_addmm_activation", "mkldnn_linear", "_mkldnn_linear", "linear_backward",
        "mkldnn_linear_backward", "mkldnn_linear_backward_input", "mkldnn_linear_backward_weights",
        "_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
        "_efficient_attention_backward", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward", "_cudnn_rnn", "_cudnn_rnn_backward", "_trilinear",
        "_linear_pointwise", "_thnn_fused_lstm_cell",
    }
)  # fmt: skip
_CONVOLUTION = frozenset(
    {
        "mkldnn_convolution", "_convolution", "convolution_overrideable", "convolution_backward",
        "cudnn_convolution", "cudnn_convolution_transpose", "slow_conv2d_forward", "thnn_conv2d",
        "_slow_conv2d_forward", "_slow_conv2d_backward", "slow_conv3d_forward", "conv_depthwise3d",
        "_conv_depthwise2d", "slow_conv_transpose2d", "slow_conv_dilated2d",
        "cudnn_convolution_relu", "mkldnn_convolution_backward_weights", "_convolution_pointwise",
    }
)  # fmt: skip
# Their own time is that of calling something, or of giving another view of the same memory.
_HOST = frozenset(
    {
        "linear", "matmul", "conv1d", "conv2d", "conv3d", "convolution", "einsum", "reshape",
        "view", "_unsafe_view", "t", "transpose", "permute", "expand", "expand_as", "as_strided",
        "slice", "select", "narrow", "unsqueeze", "squeeze", "detach", "detach_", "alias",
        "flatten", "unflatten", "split", "chunk", "unbind", "empty", "empty_like", "empty_strided",
        "new_empty", "resize_", "result_type", "is_nonzero", "to", "_reshape_alias", "lift_fresh",
        "contiguous", "set_", "requires_grad_", "data", "view_as", "numpy_T", "movedim", "item",
        "scaled_dot_product_attention", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "dropout",
        "batch_norm", "layer_norm", "group_norm", "max_pool2d", "adaptive_avg_pool2d", "embedding",
        "_batch_norm_impl_index", "_batch_norm_impl_index_backward", "real", "is_floating_point",
        "broadcast_to", "tensor_split", "type_as", "unfold", "resolve_conj", "resolve_neg",
    }
)  # fmt: skip
_SYNC = frozenset({"_local_scalar_dense", "is_nonzero", "equal"})
_SYNC_CALLS = re.compile(
    r"(cuda|hip)(Stream|Device|Event)Synchronize|cudaMemcpy$|cuStreamSynchronize"
)
_COMMUNICATION = re.compile(r"^(c10d::|gloo:|nccl:|record_param_comms|_c10d_functional)")
_OPTIMIZER_OPERATOR = re.compile(r"_fused_(adam|adamw|sgd|adagrad)_?$")

# Names of kernels of a GPU, of cuBLAS, cuDNN, CUTLASS, Triton, NCCL and torch.
_KERNELS: tuple[tuple[re.Pattern[str], Part], ...] = (
    (re.compile(r"nccl|rccl|AllReduce|AllGather|ReduceScatter", re.I), "communication"),
    (re.compile(r"multi_tensor_apply|fused_adam|adam_|_foreach", re.I), "optimizer"),
    (
        re.compile(r"conv|wgrad|dgrad|implicit_gemm|winograd|cudnn.*(fprop|bprop)|im2col", re.I),
        "convolution",
    ),
    (
        re.compile(r"gemm|gemv|cutlass|cublas|xmma|wgmma|flash|fmha|attention|nvjet|_mm_", re.I),
        "matrix",
    ),
)


def operator_part(name: str) -> Part:
    """The part of a step in which an operator's own time is, on a CPU."""
    if _COMMUNICATION.search(name):
        return "communication"
    namespace, _, rest = name.rpartition("::")
    if not namespace:
        # An annotation, or a node of autograd: what it calls is under it.
        return "host"
    short = rest.partition(".")[0]
    if namespace == "mkldnn" and short == "_linear_pointwise":
        return "matrix"
    if short in _SYNC:
        return "sync"
    if short in _MATRIX:
        return "matrix"
    if short in _CONVOLUTION:
        return "convolution"
    if _OPTIMIZER_OPERATOR.search(short):
        return "optimizer"
    is_engine = namespace in ("autograd::engine", "torch::autograd")
    return "host" if short in _HOST or is_engine else "memory"


def kernel_part(name: str, operator: str | None = None) -> Part:
    """The part of a step in which a kernel's time is; operator: that has launched it, if known."""
    if name.startswith("Memcpy HtoD"):
        return "copy"
    if operator is not None:
        of_operator = operator_part(operator)
        if of_operator in ("matrix", "convolution", "communication", "optimizer"):
            return of_operator
    for pattern, part in _KERNELS:
        if pattern.search(name):
            return part
    return "memory"


def is_pageable_copy(name: str) -> bool:
    """Whether a kernel's name is that of a copy to the device from memory that is not pinned."""
    return name.startswith("Memcpy HtoD") and "Pageable" in name


def is_sync(name: str) -> bool:
    """Whether the host waits for the device in this call."""
    return _SYNC_CALLS.match(name) is not None or (
        name.startswith("aten::") and name.partition("::")[2] in _SYNC
    )
