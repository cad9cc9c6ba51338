"""What the programs that train with one framework are asked, and the lines of their replies.

`engine/bench/programs/training_program.py` is the other end. It does not have msgspec, and reads
the same fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.schema.experiment_spec import Value
from flatout.schema.predict_protocol import ProcessFailed, Reply

# `[kind, sizes...]`, as ["linear", 20, 128], ["conv", 1, 16, 3], ["dropout", 0.25], ["relu"].
Layer = list[str | int | float]


class FrameworkDataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process with torch and flatout writes into a folder before anything is measured.

    experiment, parameters: of the built-in experiment. num_samples, num_validation: at most.
    seeds: of initial weights and of the order of samples. num_epochs: in a file of order.
    """

    experiment: str
    parameters: dict[str, Value]
    device: str
    num_samples: int | None = None
    num_validation: int | None = None
    seeds: tuple[int, ...]
    num_epochs: int
    folder: str


class FrameworkData(Reply, frozen=True, kw_only=True, tag="written"):
    """The files that were written, and the computation that each framework repeats.

    num_samples: those of full batches. flops_per_step: counted by torch; None if it cannot.
    """

    torch: str
    data_file: str
    weights_files: tuple[str, ...]
    layers: tuple[Layer, ...]
    loss: str
    optimizer: dict[str, Any]
    pixels: tuple[float, float] | None
    batch_size: int
    num_samples: int
    num_parameters: int
    flops_per_step: float | None = None


class FrameworkTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one process trains and measures.

    variant: of the framework's ways to do it. layers, loss, optimizer, pixels: the computation.
    pixels: mean and standard deviation of bytes divided by 255; None if inputs are numbers already.
    steps_per_call: where a framework makes several steps in a compiled call.
    num_steps: made first; then the validation data is scored, then steps are timed.
    has_dropout: False to compare what is computed with other frameworks.
    recipe: fields of flatout's recipe; empty for other frameworks.
    """

    experiment: str
    parameters: dict[str, Value]
    variant: str
    device: str
    num_threads: int
    seed: int
    data_file: str
    weights_file: str
    layers: tuple[Layer, ...]
    loss: str
    optimizer: dict[str, Any]
    pixels: tuple[float, float] | None
    steps_per_call: int
    num_steps: int
    num_blocks: int
    block_s: float
    has_dropout: bool = True
    recipe: dict[str, Any] = {}


class ProgramReady(Reply, frozen=True, kw_only=True, tag="ready"):
    """The network is built. recipe: how it trains. fields: of flatout's recipe."""

    version: str
    recipe: str
    fields: dict[str, Any] = {}


class StepsMade(Reply, frozen=True, kw_only=True, tag="made"):
    """The first steps are over, on the device too."""

    num_steps: int


class Scored(Reply, frozen=True, kw_only=True, tag="scored"):
    """Over the validation data. accuracy: None unless targets are classes."""

    loss: float
    accuracy: float | None = None


class StepsTimed(Reply, frozen=True, kw_only=True, tag="timed"):
    """Seconds per step of each block. busy_cpus: that this process kept busy meanwhile."""

    step_s: tuple[float, ...]
    busy_cpus: float


class ProgramEnded(Reply, frozen=True, kw_only=True, tag="ended"):
    """peak_bytes: of the GPU, or of the process on a CPU; None if unreadable."""

    peak_bytes: int | None = None


class ProgramFailed(Reply, frozen=True, kw_only=True, tag="failed"):
    """The framework's own exception."""

    problem: str


AnyProgramReply = ProgramReady | StepsMade | Scored | StepsTimed | ProgramEnded | ProgramFailed
AnyDataReply = FrameworkData | ProcessFailed
