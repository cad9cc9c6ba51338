"""NCCL or Gloo finds no network interface, or uses one that cannot reach the other machines.

**Checks.** NCCL's messages about sockets and interfaces, the address it could not reach, and the
interface it used.

**Why it matters.** Ranks first connect over TCP. NCCL uses the first interface that is up, but
`docker0`, `virbr0`, `lo` or a VPN reach no other machine; if NCCL_SOCKET_IFNAME matches no
interface, none is left.

**Example.** `NCCL WARN Bootstrap : no socket interface found`

**Fix.** Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, on every machine, to the interface that
reaches the other machines; safe.

**Source.** NCCL, environment variables
(docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html); NVIDIA/nccl: socket.cc,
bootstrap.cc; NVIDIA/nccl#210.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_NONE = ("nccl-no-interface", "nccl-address-family", "gloo-no-interface")


def check(case: Case) -> Finding | None:
    """No interface, or a failed connection over an interface that leads nowhere."""
    is_virtual = case.sees("nccl-virtual-interface")
    is_local = case.value("nccl-connect-failed", "local") is not None
    has_failed = case.sees("nccl-connect-failed", "collective-timed-out", "multi-gpu-hangs")
    certainty: Certainty = "likely"
    if case.sees(*_NONE) or is_local or is_virtual and case.sees("nccl-connect-failed"):
        certainty = "decided"
    elif case.sees("nccl-system-error") and not has_failed:
        certainty = "possible"
    elif not case.sees("nccl-connect-failed") and not (is_virtual and has_failed):
        return None
    return Finding(
        rule="nccl-socket-interface",
        severity="error",
        certainty=certainty,
        problem=(
            "NCCL or Gloo finds no network interface, or uses one that cannot reach the "
            "other machines."
        ),
        because="they use the first interface that is up, or none has the configured name",
        evidence=case.evidence(
            *_NONE, "nccl-connect-failed", "nccl-virtual-interface", "nccl-system-error"
        ),
        fixes=(
            Fix(
                text="set, on every machine, the interface that reaches the other machines",
                safety="safe",
                commands=(
                    "ip -brief -4 address",
                    "export NCCL_SOCKET_IFNAME=<interface> GLOO_SOCKET_IFNAME=<interface>",
                ),
                changes="environment variables of this shell",
                undo="unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME",
            ),
        ),
        confirm=(
            "ip -brief address",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET <the same command>",
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "nccl-no-interface",
            "no socket interface found",
            "no interface found",
            "interface found in the same subnet",
            "no usable interface",
            pattern=r"(?:Bootstrap ?:|NCCL).{0,60}no (?:usable )?(?:socket )?interface found"
            r"|NET/Socket ?:? ?no interface|No interface found in the same subnet",
        ),
        signature(
            "nccl-address-family",
            "Socket creation failed",
            "Address family not supported",
            "is neither AF_INET",
            pattern=r"socket\.(?:h"
            r"|cc):\d{1,5} (?:NCCL )?WARN .{0,40}Address family not supported"
            r"|NCCL WARN.{0,80}Address family not supported"
            r"|Socket creation failed ?: ?Address family"
            r"|connecting to address .{0,60}is neither AF_INET",
        ),
        signature(
            "gloo-no-interface",
            "Unable to find interface for",
            "Unable to find address for",
            "makeDeviceForInterface",
        ),
        signature(
            "nccl-connect-failed",
            "socketStartConnect",
            "socketPollConnect",
            "socketFinalizeConnect",
            "Net : Connect",
            "Call to connect",
            "Call to bind",
            "Connect to",
            pattern=r"(?:NCCL|Net ?:|socket\w{0,16}Connect:?|Call to) .{0,60}(?:connect(?: to)?"
            r"|bind) (?:(?P<local>(?:127\.|172\.1[7-9]\.0\.|192\.168\.122\.|169\.254\."
            r"|fe80:)[\w.:%]{1,40})(?:<\d+>)? )?(?:[\w.:%]{3,45}(?:<\d+>)?"
            r" )?(?:failed|returned)"
            r"|Call to (?:connect|bind) failed"
            r"|Net ?: Connect to (?P<bridge>172\.1[7-9]\.0\.)?[\w.:%]{1,45}(?:<\d+>)?"
            r" failed"
            r"|socketStartConnect: Connect to [\w.:%]{3,45}(?:<\d+>)? failed"
            r"|socketPollConnect:? connect to",
        ),
        signature(
            "nccl-virtual-interface",
            "Using",
            pattern=r"(?:NET/Socket|Bootstrap) ?: Using ?(?:\[\d+\])?(?:lo|docker\d*|virbr\d+"
            r"|veth\w{1,12}|br-\w{1,16}|tun\d+|tailscale\d+|cni\d+|flannel\.\d+)[: ]",
        ),
        signature(
            "nccl-system-error",
            "unhandled system error",
            "ncclSystemError",
        ),
    ),
    explains=("collective-timed-out", "distributed-worker-failed"),
)
