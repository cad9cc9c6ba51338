"""The requests of `flatout profile` to its processes, and the lines of their replies."""

from __future__ import annotations

import msgspec

from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.predict_protocol import ProcessFailed, Reply
from flatout.schema.step_profile import StepProfile


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True, tag="profile"):
    """Profiles an experiment. num_steps: under the profiler; None chooses by their time.

    trace: path of a file for the trace; None writes none.
    is_tuned: with the recipe that `flatout train` has found by a search, if it has.
    """

    spec: ExperimentSpec
    is_tuned: bool = True
    num_steps: int | None = None
    trace: str | None = None


class BlocksRequest(msgspec.Struct, frozen=True, kw_only=True, tag="blocks"):
    """Builds an experiment and warms up; blocks of steps are then made on request."""

    spec: ExperimentSpec


class StepBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Makes steps for at least so many seconds."""

    least_s: float


class Profiling(Reply, frozen=True, kw_only=True, tag="profiling"):
    """What is done from now on. share: of all of it, that is done."""

    what: str
    share: float


class StepProfiled(Reply, frozen=True, kw_only=True, tag="step-profiled"):
    """The report, without limits and advice, which its reader knows."""

    profile: StepProfile


class BlocksReady(Reply, frozen=True, kw_only=True, tag="blocks-ready"):
    """Blocks can be requested."""


class BlockMade(Reply, frozen=True, kw_only=True, tag="block-made"):
    """A block: seconds per sample."""

    sample_s: float


AnyProfileRequest = ProfileRequest | BlocksRequest
AnyProfileReply = Profiling | StepProfiled | BlocksReady | BlockMade | ProcessFailed
