"""Dask's scheduler does not answer.

**Checks.** Clients and workers that could not connect to the scheduler, usually on port 8786.

**Why it matters.** The scheduler prints the address it listens on. A firewall, a wrong address, or
TLS on only one side blocks connections.

**Example.** `OSError: Timed out trying to connect to tcp://10.0.0.5:8786 after 30 s`

**Fix.** Check that the scheduler runs, its port is open, and its address is reachable from the
other machines; by hand.

**Source.** dask/distributed: distributed/comm/core.py;
docs.dask.org/en/stable/deploying-cli.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Clients and workers that could not connect to the scheduler, usually on port 8786."""
    if not case.sees("dask-no-scheduler"):
        return None
    return Finding(
        rule="dask-scheduler-unreachable",
        severity="error",
        certainty="likely",
        problem="Dask's scheduler does not answer.",
        because="nothing listens at the scheduler's address, or a firewall blocks it",
        evidence=case.evidence("dask-no-scheduler"),
        fixes=(
            Fix(
                text=(
                    "test the port, and start the scheduler with an address that other "
                    "machines can reach"
                ),
                safety="ask",
                commands=("nc -vz <scheduler> 8786", "dask scheduler --host <address>"),
                changes="starts a scheduler",
            ),
        ),
        confirm=("nc -vz <scheduler> 8786",),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "dask-no-scheduler",
            "Timed out trying to connect to",
            "Timed out during handshake",
            "Trying to connect to scheduler",
            pattern=r"Timed out (?:trying to connect"
            r"|during handshake while connecting) to '?(?:tcp|tls|ucx|ws)s?://"
            r"|distributed.{0,120}(?:Connection refused|unable to"
            r" connect).{0,40}(?:tcp|tls)://",
        ),
    ),
)
