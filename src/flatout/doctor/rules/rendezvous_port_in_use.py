"""The rendezvous port is already in use.

**Checks.** Errors of torch, accelerate, JAX and Paddle when rank 0 cannot listen. On the machine: a
listener on 29500 or 29400; reported as a note.

**Why it matters.** Rank 0 listens on MASTER_PORT, by default 29500. Another or leftover training on
the machine uses it, or, on Windows, Hyper-V has reserved it.

**Example.** `The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in
use).`

**Fix.** Use another port, or `torchrun --standalone`, which picks a free one; safe. Stop a leftover
process; asks first.

**Source.** pytorch/pytorch: torch/csrc/distributed/c10d/socket.cpp;
docs.pytorch.org/docs/stable/elastic/run.html.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """Rank 0 cannot listen, or an address is in use in a distributed launch."""
    is_used = case.sees("address-in-use")
    if not case.sees("c10d-cannot-listen", "rendezvous-port-told") and not is_used:
        return None
    certainty: Certainty = "decided"
    if not case.sees("c10d-cannot-listen", "rendezvous-port-told"):
        if case.sees("server-named"):
            certainty = "possible"
        elif not case.sees("distributed-named"):
            certainty = "decided" if case.value("address-in-use", "torch") else "possible"
    return Finding(
        rule="rendezvous-port-in-use",
        severity="error",
        certainty=certainty,
        problem="The rendezvous port is already in use.",
        because="rank 0 listens on MASTER_PORT, by default 29500",
        evidence=case.evidence("c10d-cannot-listen", "rendezvous-port-told", "address-in-use"),
        fixes=(
            Fix(
                text="use a free port",
                safety="safe",
                commands=(
                    "torchrun --standalone --nproc-per-node=gpu <script>",
                    "export MASTER_PORT=29511",
                ),
                changes="this launch, or environment variables of this shell",
            ),
            Fix(
                text="or stop a leftover training",
                safety="ask",
                commands=("ss -ltnp | grep 29500", "kill <pid>"),
                changes="stops that process",
            ),
        ),
        confirm=(
            "ss -ltnp | grep 29500",
            "netsh interface ipv4 show excludedportrange protocol=tcp",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """The default port is in use."""
    busy = [port for port in (machine.network.busy_ports if machine.network else None) or ()
            if port in (29400, 29500)]  # fmt: skip
    return fact(f"a process is listening on {busy[0]}", "/proc/net/tcp") if busy else ()


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="rendezvous-port-told", read=_in_facts, severity="note"),),
    signatures=(
        signature(
            "c10d-cannot-listen",
            "server socket has failed to",
            "server socket on",
            "TCPStore",
            "tcp server",
            pattern=r"server socket has failed to (?:bind|listen)"
            r"|server socket on .{0,60}(?:already in use|EADDRINUSE)"
            r"|TCPStore.{0,160}(?:EADDRINUSE|address already in use)|(?:EADDRINUSE"
            r"|address already in use).{0,160}TCPStore",
        ),
        signature(
            "rendezvous-port-told",
            "launch distributed communication on port",
            "MASTER_PORT",
            "coordinator",
            "master_port",
            "rendezvous",
            "rdzv",
            pattern=r"launch distributed communication on port|(?:MASTER_PORT"
            r"|coordinat\w+ (?:service|address)|rendezvous|rdzv)[^\n]{0,120}(?:in"
            r" use|EADDRINUSE"
            r"|Failed to (?:bind|add) port)|(?:in"
            r" use|EADDRINUSE)[^\n]{0,80}(?:MASTER_PORT"
            r"|rendezvous)",
        ),
        signature(
            "distributed-named",
            "init_process_group",
            "torch.distributed",
            "torchrun",
            "MASTER_ADDR",
            "MASTER_PORT",
            "jax.distributed",
            "rendezvous",
            "c10d",
            "ProcessGroup",
            "world_size",
            "dist_url",
            "deepspeed",
            "accelerate launch",
            "horovod",
            "DistributedDataParallel",
            "paddle.distributed",
            "nproc_per_node",
            "nproc-per-node",
            pattern=r"init_process_group|torch[./]distributed|torchrun|MASTER_(?:ADDR|PORT)"
            r"|jax\.distributed|rendezvous|c10d|ProcessGroup|world_?size|dist_url|de"
            r"epspeed"
            r"|accelerate launch|horovod|DistributedDataParallel|paddle\.distributed"
            r"|nproc.per.node",
        ),
    ),
    explains=("port-in-use", "distributed-worker-failed", "rendezvous-unreachable"),
)
