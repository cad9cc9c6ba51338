"""What `flatout serve` starts, reports while it runs, and is asked by `flatout serve swap`."""

from __future__ import annotations

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import ReplicaStart


class ReplicaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of a model. name: of the run or file, as it is shown.

    command: starts one of them. starts: the first message to each.
    latency_s: target for a batch; None: batches have the fixed size that the starts name.
    num_cores: to share out among the server and as many replicas as the first one, which alone has
    a start, leaves room for; None: there are as many as there are starts.
    """

    name: str
    command: tuple[str, ...]
    starts: tuple[ReplicaStart, ...]
    latency_s: float | None = 0.02
    num_cores: int | None = None


class ServeEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that happened in a server: a line of `flatout serve --json`."""


class ServeStarted(ServeEvent, frozen=True, kw_only=True, tag="started"):
    """Replicas are being started. place: the interpreter or the cluster that they run in.

    num_replicas: None where the first one is measured first.
    """

    name: str
    place: str
    num_replicas: int | None
    pid: int
    findings: tuple[Finding, ...] = ()


class ReplicaWarming(ServeEvent, frozen=True, kw_only=True, tag="warming"):
    """What a replica does before it is ready. name: of what it will serve."""

    name: str
    replica: int
    what: str


class ServeReady(ServeEvent, frozen=True, kw_only=True, tag="ready"):
    """It answers. url: of the server. batch_samples: the most in one batch.

    example: a command that gets an answer; None where the model gives no example.
    """

    url: str
    model: ServedModel
    num_replicas: int
    batch_samples: int
    max_queue: int
    timeout_s: float
    needs_token: bool
    startup_s: float
    example: str | None = None
    findings: tuple[Finding, ...] = ()


class ReplicaLost(ServeEvent, frozen=True, kw_only=True, tag="replica-lost"):
    """A replica has died or could not be started again. restart_in_s: when it is tried again.

    num_retried, num_failed: requests that were in it and are computed again, or cannot be.
    printed: the end of what it wrote to stderr.
    """

    replica: int
    finding: Finding
    restart_in_s: float
    num_retried: int = 0
    num_failed: int = 0
    printed: str = ""


class ReplicaPrinted(ServeEvent, frozen=True, kw_only=True, tag="replica-printed"):
    """What a replica has written to stderr while it answers, such as the traceback of a failure."""

    replica: int
    text: str


class ReplicaRestored(ServeEvent, frozen=True, kw_only=True, tag="replica-restored"):
    """A replica that was lost answers again."""

    replica: int
    pid: int


class ServeSwapped(ServeEvent, frozen=True, kw_only=True, tag="swapped"):
    """New requests get another model. warmup_s: how long its replicas took."""

    model: ServedModel
    warmup_s: float


class BatchesMeasured(ServeEvent, frozen=True, kw_only=True, tag="batches-measured"):
    """Batches of a model that was swapped in were measured again, once the old one had ended.

    batch_samples: the most in one batch from now on. finding: why they could not be measured; then
    it is what the warm-up has found.
    """

    model: ServedModel
    batch_samples: int
    finding: Finding | None = None


class SwapFailed(ServeEvent, frozen=True, kw_only=True, tag="swap-failed"):
    """A swap was refused or could not be done; the model that answered continues to.

    exit_code: as of the error tree.
    """

    finding: Finding
    exit_code: int = 1


class ServeTick(ServeEvent, frozen=True, kw_only=True, tag="tick"):
    """The last seconds of a server. p50_s, p99_s: of answers, from arrival; None without any.

    batch_samples: mean of the batches; None without any.
    """

    requests_per_s: float
    num_queued: int
    num_ready: int
    num_replicas: int
    p50_s: float | None = None
    p99_s: float | None = None
    batch_samples: float | None = None


class ServeStopping(ServeEvent, frozen=True, kw_only=True, tag="stopping"):
    """It finishes what it has accepted. num_open: requests; None: Ray knows."""

    num_open: int | None


class ServeStopped(ServeEvent, frozen=True, kw_only=True, tag="stopped"):
    """It has ended. num_lost: accepted requests that got no answer, after a second Ctrl-C."""

    num_answered: int
    num_failed: int
    num_refused: int
    num_lost: int
    uptime_s: float


class ControlFile(msgspec.Struct, frozen=True, kw_only=True):
    """How `flatout serve swap` reaches a server: its control port on the loopback interface.

    port: of the HTTP server, which names it. secret: proves that the file could be read.
    host: that the HTTP server listens on.
    """

    name: str
    port: int
    control_port: int
    secret: str
    host: str = "127.0.0.1"


class SwapOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The request to a server's control port. plan: None swaps back."""

    secret: str
    plan: ReplicaPlan | None = None


SwapReply = ReplicaWarming | ServeSwapped | SwapFailed
