"""The requests of `flatout bench run` to its processes, and the lines of their replies."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flatout.schema.predict_protocol import ProcessFailed, Reply
from flatout.schema.workloads import MeasuredSize

Way = Literal["plain", "flatout"]


class RecipeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="recipe"):
    """Finds the recipe of a workload.

    device: `cpu` or `cuda:N`. fixed: recipe fields that belong to the workload.
    budget_s: of a search, if none is stored; None takes flatout's defaults then.
    """

    size: MeasuredSize
    device: str
    fixed: dict[str, Any] = {}
    budget_s: float | None = None


class WorkloadRequest(msgspec.Struct, frozen=True, kw_only=True, tag="workload"):
    """Measures a workload in one process.

    changes: recipe fields over the plain loop's; None is the plain loop.
    started_at: when the process was started, in seconds since the epoch.
    num_blocks: of step times. block_s: least length of each.
    """

    size: MeasuredSize
    device: str
    fixed: dict[str, Any] = {}
    changes: dict[str, Any] | None = None
    started_at: float
    num_blocks: int
    block_s: float


class RecipeChosen(Reply, frozen=True, kw_only=True, tag="recipe"):
    """The recipe. text: its fields and where it is from.

    ladder: from the plain loop to it, as the search has measured each step; empty without a search.
    """

    changes: dict[str, Any]
    text: str
    ladder: str = ""


class WorkloadMeasured(Reply, frozen=True, kw_only=True, tag="workload"):
    """The quantities of one process.

    name, uuid: of the GPU, None on a CPU. data: what was trained on.
    dtype: of matrix products, as limits name them.
    flops_per_step: counted by torch; None with the reason in not_counted.
    samples_per_step: of a whole batch. mean_samples: of a step, in each block: the last batch of an
        epoch may be smaller.
    step_s: mean step time of each block. time_to_steps_s: since started_at, with compile time.
    peak_bytes: of the GPU, or of the process. energy_j: per sample; None with its reason.
    data_share: of the loop's time. host_share: of a step, for which the host is busy with it; None
        with its reason.
    loss, accuracy: on a part of the validation data after num_steps; None if there is no accuracy.
    """

    torch: str
    num_threads: int
    name: str | None = None
    uuid: str | None = None
    data: str
    dtype: str
    num_parameters: int
    samples_per_step: int
    mean_samples: tuple[float, ...]
    tokens_per_sample: int | None = None
    flops_per_step: float | None = None
    not_counted: str | None = None
    step_s: tuple[float, ...]
    time_to_steps_s: float
    peak_bytes: int
    energy_j: float | None = None
    no_energy: str | None = None
    data_share: float
    host_share: float | None = None
    no_host_share: str | None = None
    loss: float
    accuracy: float | None = None


RunRequest = RecipeRequest | WorkloadRequest
AnyRunReply = RecipeChosen | WorkloadMeasured | ProcessFailed
