"""A host name resolves to the wrong address, or not at all.

**Checks.** Names that Gloo, torch and JAX cannot resolve, and loopback addresses that other
machines try to reach.

**Why it matters.** Each rank advertises the address that its own host name resolves to. Debian maps
that name to `127.0.1.1` in /etc/hosts, and Docker Desktop names a Windows machine
`kubernetes.docker.internal`: the other ranks then connect to themselves.

**Example.** `connect [127.0.1.1]:3210: Connection refused`

**Fix.** Set the interface: GLOO_SOCKET_IFNAME; safe. Or set the right address for the host name in
/etc/hosts, or use an IP address as MASTER_ADDR; by hand.

**Source.** pytorch/pytorch: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp and socket.cpp;
docs.pytorch.org/docs/stable/distributed.html (common environment variables).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_WRONG = ("gloo-connects-to-loopback", "rendezvous-name-unknown", "gloo-no-device-for-name")
_HINTS = ("gloo-loopback-fallback", "rendezvous-address-invalid", "rendezvous-name-unknown-once")


def check(case: Case) -> Finding | None:
    """A name was not resolved, or resolved to a loopback address."""
    is_named = case.sees("distributed-named") and case.sees("gaierror")
    has_failed = case.sees("gloo-mesh-failed", "rendezvous-timed-out", "distributed-failed")
    if not case.sees(*_WRONG, *_HINTS, "gloo-mesh-failed") and not is_named:
        return None
    certainty: Certainty = "likely"
    if case.sees(*_WRONG) or is_named or case.sees(*_HINTS) and has_failed:
        certainty = "decided"
    is_error = certainty == "decided" or case.sees("gloo-mesh-failed")
    return Finding(
        rule="distributed-hostname-resolution",
        severity="error" if is_error else "warning",
        certainty=certainty,
        problem="A host name resolves to the wrong address, or not at all.",
        because="each rank advertises the address that its own host name resolves to",
        evidence=case.evidence(*_WRONG, *_HINTS, "gloo-mesh-failed", "gaierror"),
        fixes=(
            Fix(
                text="set the interface, and use an IP address as MASTER_ADDR",
                safety="safe",
                commands=(
                    "export GLOO_SOCKET_IFNAME=<interface>",
                    "export MASTER_ADDR=<IP address of rank 0>",
                ),
                changes="environment variables of this shell",
                undo="unset GLOO_SOCKET_IFNAME MASTER_ADDR",
            ),
            Fix(
                text=(
                    "map the host name to its real address in /etc/hosts instead of "
                    "127.0.1.1 (Windows: C:\\Windows\\System32\\drivers\\etc\\hosts)"
                ),
                where="host",
            ),
        ),
        confirm=("hostname -I; getent hosts $(hostname)", "grep -n $(hostname) /etc/hosts"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "gloo-connects-to-loopback",
            "connect [127",
            "connect 127",
            "connect [::1]",
            "tcp/pair.cc",
            pattern=r"(?:gloo|pair\.cc).{0,80}connect \[?(?:127\.\d+\.\d+\.\d+|::1)\]?:\d+"
            r"|^\s*(?:what\(\):)?.{0,200}connect \[127\.\d+\.\d+\.\d+\]:\d+: ",
        ),
        signature(
            "gloo-loopback-fallback",
            "Using the loopback address as fallback",
            "Unable to resolve hostname to a",
        ),
        signature(
            "gloo-mesh-failed",
            "connectFullMesh failed",
            "Gloo connectFullMesh",
        ),
        signature(
            "gloo-no-device-for-name",
            "makeDeviceForHostname",
        ),
        signature(
            "rendezvous-address-invalid",
            "requested address is not valid in its context",
            "system error: 10049",
            "WinError 10049",
            "errno: 99",
            "Cannot assign requested address",
            pattern=r"10049|not valid in its context|(?:c10d|client socket"
            r"|MASTER).{0,160}(?:errno: 99|Cannot assign requested address)",
        ),
        signature(
            "rendezvous-name-unknown",
            "gai error",
            "network addresses of",
            "getaddrinfo",
            pattern=r"(?:\[E |\[ERROR\]|RuntimeError|DistNetworkError"
            r"|IPv4 network addresses of).{0,240}(?:gai error|cannot be"
            r" retrieved)|(?:gloo|nccl"
            r"|rendezvous|c10d).{0,120}(?:getaddrinfo|resolve).{0,60}fail",
        ),
        signature(
            "rendezvous-name-unknown-once",
            "gai error",
            "cannot be retrieved",
            pattern=r"network addresses of \(.{1,120}cannot be retrieved",
        ),
        signature(
            "gaierror",
            "gaierror",
            "getaddrinfo failed",
            "nodename nor servname provided",
            "Name or service not known",
            "No such host is known",
            pattern=r"gaierror|getaddrinfo failed|nodename nor servname"
            r"|Name or service not known|No such host is known",
        ),
        signature(
            "distributed-failed",
            "DistBackendError",
            "DistNetworkError",
            "RuntimeError",
            "DistStoreError",
            pattern=r"Dist\w{3,10}Error|RuntimeError: .{0,120}(?:connect|socket|gloo|rendezvous"
            r"|timed out|address)",
        ),
    ),
    explains=(
        "rendezvous-unreachable",
        "dns-broken",
        "wsl-dns-broken",
        "collective-timed-out",
        "distributed-worker-failed",
    ),
)
