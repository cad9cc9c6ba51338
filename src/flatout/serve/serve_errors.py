"""Why a request gets no answer, and why the server cannot start or swap.

FlatoutError                                                                          HTTP
├── ServerBusy           the queue is full, or the deadline cannot be met; come back     503
├── ServerStopping       it finishes what it has accepted, and accepts nothing more      503
├── RequestKilledModel   the replica died while it computed this request                 500
├── ModelFailed          the model could not compute it                                  500
├── InputNotAccepted     the input is wrong for this model                               422
├── SwapRunning          another swap is in progress                                     409
├── NothingToSwapBack    no swap has replaced a model                                    409
└── ReplicaNotStarted    a replica could not be started: its own finding                 500
"""

from __future__ import annotations

from flatout.errors import RunFailed, UsageError
from flatout.schema.finding import Finding
from flatout.schema.units import seconds_text

# No client comes back sooner.
_SHORTEST_RETRY_S = 1.0


class ServerBusy(RunFailed):
    """It cannot be answered in time.

    Args:
        because: why not.
        wait_s: how long until it could be; None: not known.
    """

    def __init__(self, because: str, wait_s: float | None) -> None:
        retry_after_s = max(_SHORTEST_RETRY_S, wait_s or 0.0)
        super().__init__(
            "server-busy",
            "the server is too busy for this request.",
            because=because,
            fix=f"send it again in {seconds_text(retry_after_s)}, or start the server with more "
            "`--replicas`",
        )
        self.retry_after_s = retry_after_s


class ServerStopping(RunFailed):
    """The server is shutting down."""

    def __init__(self) -> None:
        super().__init__(
            "server-is-stopping",
            "the server is stopping.",
            because="it finishes the requests that it has accepted, and accepts no more",
            fix="send the request to another server, or again when this one is back",
        )
        self.retry_after_s = 5.0


class RequestKilledModel(RunFailed):
    """The replica died computing this request alone, or hung."""

    def __init__(self, because: str) -> None:
        super().__init__(
            "request-killed-the-model",
            "the process that computed this request ended before it answered.",
            because=because,
            fix="send a smaller or different input; the log of the server has the details",
        )


class _FromReplica(RunFailed):
    """What a replica found, under an id that the server's clients know. finding: the replica's."""

    def __init__(self, rule: str, finding: Finding, fix: str) -> None:
        fixes = "; ".join(item.text for item in finding.fixes)
        super().__init__(rule, finding.problem, because=finding.because, fix=fixes or fix)
        self.finding = finding


class InputNotAccepted(_FromReplica):
    """The input is wrong for this model."""

    def __init__(self, finding: Finding) -> None:
        super().__init__("input-not-accepted", finding, "send what GET /v2/models describes")


class ModelFailed(_FromReplica):
    """The model could not compute a correct input."""

    def __init__(self, finding: Finding) -> None:
        super().__init__("model-failed", finding, "read the log of the server")


class SwapRunning(UsageError):
    """One swap at a time."""

    def __init__(self) -> None:
        super().__init__(
            "swap-is-running",
            "another swap is in progress.",
            because="its replicas are still warming up",
            fix="wait for it to end",
        )


class NothingToSwapBack(UsageError):
    """The model that it started with is the one that answers."""

    def __init__(self) -> None:
        super().__init__(
            "nothing-to-swap-back",
            "no model was replaced, so there is none to swap back to.",
            fix="name the run or file to serve: `flatout serve swap RUN`",
        )


class ReplicaNotStarted(RunFailed):
    """A replica could not be started. finding: why; exit_code: as the replica says.

    printed: the end of what it wrote to stderr.
    """

    def __init__(self, finding: Finding, *, exit_code: int = 1, printed: str = "") -> None:
        fixes = "; ".join(item.text for item in finding.fixes)
        super().__init__(
            finding.rule,
            finding.problem,
            because=finding.because,
            fix=fixes or "read what it printed",
            # Wrong use has no cause in what was printed.
            printed="" if exit_code == UsageError.exit_code else printed,
        )
        self.finding = finding
        self.exit_code = exit_code
