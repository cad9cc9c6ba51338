"""A rank does not reach the machine where the ranks meet.

**Checks.** Clients of torch's store, of torchrun's rendezvous and of JAX's coordinator that got
no answer.

**Why it matters.** All ranks connect to rank 0 at MASTER_ADDR:MASTER_PORT. A firewall, a wrong
address, or a rank 0 that was not started or has failed leaves them waiting. WSL in NAT mode is
not reachable from other machines at all.

**Example.** `The client socket has timed out after 60s while trying to connect to (10.0.0.5,
29500).`

**Fix.** See that rank 0 runs and its port is open; under WSL `networkingMode=mirrored`; by hand.

**Source.** pytorch/pytorch: torch/csrc/distributed/c10d/socket.cpp;
docs.pytorch.org/docs/stable/elastic/run.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Nobody answered in time, or the connection was refused."""
    if not case.sees("rendezvous-timed-out", "rendezvous-refused"):
        return None
    is_certain = case.sees("rendezvous-timed-out")
    return Finding(
        rule="rendezvous-unreachable",
        severity="error" if is_certain else "warning",
        certainty="likely" if is_certain else "possible",
        problem="A rank does not reach the machine where the ranks meet.",
        because="under WSL in NAT mode no other machine reaches a port inside"
        if case.is_wsl
        else "all ranks connect to MASTER_ADDR:MASTER_PORT, which must be open and running",
        evidence=case.evidence("rendezvous-timed-out", "rendezvous-refused"),
        fixes=(
            Fix(
                text="try the port from the machine that does not reach it, with rank 0 started",
                safety="safe",
                commands=("nc -vz $MASTER_ADDR $MASTER_PORT",),
                changes="nothing",
            ),
            Fix(
                text="open the port for the other machines in the firewall of rank 0",
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
