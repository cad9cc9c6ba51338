"""The Ray head node is not reachable at that address.

**Checks.** Ray's errors about the GCS, Redis, or a cluster that it cannot find.

**Why it matters.** Nodes and drivers connect to the head's port 6379, Ray clients to 10001. A head
that is not running, has another address, or is behind a firewall or WSL's NAT does not answer.

**Example.** `Unable to connect to GCS at 127.0.0.1:6379. Check that (1) Ray GCS with matching
version started successfully ...`

**Fix.** Run `ray start --head --node-ip-address=...` there, and use that address here; by hand.
`ray.init()` without an address starts a separate local cluster.

**Source.** ray-project/ray: python/ray/_private/node.py, services.py;
docs.ray.io/en/latest/cluster/faq.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Ray's errors about the GCS, Redis, or a cluster that it cannot find."""
    if not case.sees("ray-no-gcs", "ray-connection-lost"):
        return None
    return Finding(
        rule="ray-head-unreachable",
        severity="error",
        certainty="decided" if case.sees("ray-no-gcs") else "likely",
        problem="The Ray head node is not reachable at that address.",
        because="nodes connect to the head's port 6379, Ray clients to its port 10001",
        evidence=case.evidence("ray-no-gcs", "ray-connection-lost"),
        fixes=(
            Fix(
                text="start the head with an address that the other nodes can reach",
                safety="ask",
                commands=("ray stop", "ray start --head --node-ip-address=<address> --port=6379"),
                where="host",
                changes="stops everything on that Ray cluster",
            ),
            Fix(
                text="then connect to that address",
                safety="safe",
                commands=("nc -vz <address> 6379", "ray start --address=<address>:6379"),
                changes="starts Ray on this machine",
                undo="ray stop",
            ),
        ),
        confirm=("ray status", "nc -vz <address of the head> 6379"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "ray-no-gcs",
            "connect to GCS",
            "connected to GCS",
            "any running Ray instance",
            "Ray client connection timeout",
            "ray client connection",
            "cluster ID from GCS",
            "cluster id from GCS",
            "GCS server",
            "Ray GCS with matching version",
            "connect to Ray cluster",
            "connect to Redis",
            "connect to redis",
            "send request to gcs",
            pattern=r"(?:Unable|Failed|failing|Couldn't|could not) to connect to GCS"
            r"|connect to GCS (?:server )?(?:at|within|failed)"
            r"|Failed to send request to gcs"
            r"|Could not find any running Ray instance|ray client connection timeout"
            r"|cluster id from GCS|failed to connect to Ray"
            r" cluster|(?:Unable|Failed|Couldn't"
            r"|Could not) (?:to )?connect to redis.{0,120}(?:6379|ray)|(?:gcs"
            r"|GCS)\w{0,12} (?:server )?(?:may have|has) (?:died|been killed|exited)"
            r"|Lost connection .{0,20}GCS",
        ),
        signature(
            "ray-connection-lost",
            "ray://",
            "Connection refused",
            "No route to host",
            "Error 111 connecting",
            "Error 113 connecting",
            "failed to connect",
            "StatusCode.UNAVAILABLE",
            "missed too many heartbeats",
            "connecting to",
            pattern=r"Error 1?11[01]? connecting to .{0,80}:6379|:(?:6379|10001"
            r"|8265)\b.{0,80}(?:Connection refused|timed out|unreachable|No route to"
            r" host)"
            r"|ray://.{0,120}(?:refused|UNAVAILABLE|timed"
            r" out|timeout)|(?:refused|UNAVAILABLE"
            r"|failed to connect).{0,160}:(?:6379|10001)\b|missed too many heartbeats",
        ),
    ),
)
