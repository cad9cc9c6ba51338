"""A rank cannot reach the rendezvous address.

**Checks.** Clients of torch's store, torchrun's rendezvous and JAX's coordinator that got no
answer.

**Why it matters.** All ranks connect to rank 0 at MASTER_ADDR:MASTER_PORT. They wait if a firewall
blocks it, the address is wrong, or rank 0 was not started or has failed. WSL in NAT mode is not
reachable from other machines at all.

**Example.** `The client socket has timed out after 60s while trying to connect to (10.0.0.5,
29500).`

**Fix.** Check that rank 0 is running and its port is open; under WSL, set
`networkingMode=mirrored`; by hand.

**Source.** pytorch/pytorch: torch/csrc/distributed/c10d/socket.cpp;
docs.pytorch.org/docs/stable/elastic/run.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The connection timed out or was refused."""
    if not case.sees("rendezvous-timed-out", "rendezvous-refused"):
        return None
    is_certain = case.sees("rendezvous-timed-out")
    return Finding(
        rule="rendezvous-unreachable",
        severity="error" if is_certain else "warning",
        certainty="likely" if is_certain else "possible",
        problem="A rank cannot reach the rendezvous address.",
        because="in NAT mode, WSL's ports cannot be reached from other machines"
        if case.is_wsl
        else (
            "all ranks connect to MASTER_ADDR:MASTER_PORT, where rank 0 must be running and"
            " reachable"
        ),
        evidence=case.evidence("rendezvous-timed-out", "rendezvous-refused"),
        fixes=(
            Fix(
                text="with rank 0 running, test the port from the machine that cannot reach it",
                safety="safe",
                commands=("nc -vz $MASTER_ADDR $MASTER_PORT",),
                changes="nothing",
            ),
            Fix(
                text="open the port for the other machines in rank 0's firewall",
                safety="manual",
                where="host",
            ),
        ),
        confirm=("nc -vz $MASTER_ADDR $MASTER_PORT", "getent hosts $MASTER_ADDR", "ss -ltn"),
    )


RULE = Rule(
    check=check,
    prior=45,
    signatures=(
        signature(
            "rendezvous-timed-out",
            "client socket has timed out",
            "to connect to any network address",
            "RendezvousConnectionError",
            "RendezvousTimeoutError",
            "clients joined",
            "C10d store has failed",
            "timed out. Original timeout",
            "connect() timed out",
            "RegisterTask",
            "wait timeout after",
            pattern=r"client socket has timed out|connect to any network address"
            r"|Rendezvous(?:Connection|Timeout)Error|waiting for clients. \d+/\d+"
            r" clients joined"
            r"|C10d store has failed|timed out\. Original timeout|(?:RegisterTask"
            r"|CoordinationService).{0,120}DEADLINE|wait timeout after \d+ms",
        ),
        signature(
            "rendezvous-refused",
            "client socket has failed to connect",
            pattern=r"client socket has failed to connect to .{0,120}(?:errno|error): (?:11[013]"
            r"|1006[01]|6[015])\b",
        ),
    ),
    explains=("distributed-worker-failed",),
)
