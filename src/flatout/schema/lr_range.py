"""A learning-rate range test: the request, the replies of its process, and its result."""

from __future__ import annotations

import msgspec

from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.predict_protocol import ProcessFailed, Reply


class LrSweep(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a test: so many, each larger than the one before by the same factor."""

    from_lr: float = 1e-7
    to_lr: float = 10.0
    num_steps: int = 100


class LrPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the test. smoothed: mean loss of the steps around it."""

    lr: float
    loss: float
    smoothed: float


class LrRange(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a test.

    lr: suggested, at which the loss falls fastest; None: reason says why there is none.
    diverged_at: the rate at which the loss grew out of hand and the test ended; None: it did not.
    own_lr: the largest rate of the experiment's own, which `lr` stands for; group_ratios: the rates
    of the optimizers' parameter groups as shares of it, which the test keeps.
    """

    name: str
    device: str
    sweep: LrSweep
    points: tuple[LrPoint, ...]
    lr: float | None
    reason: str | None = None
    diverged_at: float | None = None
    own_lr: float = 0.0
    group_ratios: tuple[float, ...] = ()
    warnings: tuple[Finding, ...] = ()


class LrRangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the test with an experiment."""

    spec: ExperimentSpec
    sweep: LrSweep


class LrStepMade(Reply, frozen=True, kw_only=True, tag="lr-step"):
    """A step has been made at this rate. done: share of the test that is over."""

    lr: float
    done: float


class LrRangeMade(Reply, frozen=True, kw_only=True, tag="lr-range"):
    """The result."""

    result: LrRange


AnyLrReply = LrStepMade | LrRangeMade | ProcessFailed
