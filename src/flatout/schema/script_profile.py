"""The profile of a program of the user's own: the request to the hook in it, and what comes back.

The hook (`engine/profile/hook`) writes a file into the folder that it is given, named after its
process: `profile-PID.json` (StepProfile), `short-PID.json` (`{"num_made": N}`: only so many steps),
or `problem-PID.json` (a text). A trace is `trace-PID.json`.
"""

from __future__ import annotations

import msgspec

HOOK_VARIABLE = "FLATOUT_PROFILE"


class ScriptProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout profile -- PROGRAM` as data.

    num_steps: under the profiler; None chooses by their time. trace: path of a file for the trace.
    """

    program: tuple[str, ...]
    num_steps: int | None = None
    trace: str | None = None
    is_json: bool = False


class HookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the hook reads from the environment, as JSON.

    out: its folder. packages: name -> the folder that it is imported from, where the program's own
    Python does not have it, or has another version.
    """

    out: str
    subject: str
    packages: dict[str, str]
    num_steps: int | None = None
    has_trace: bool = False
