"""Copies between GPUs fail: ACS or the IOMMU redirects them, or peer access is unavailable.

**Checks.** Hanging collectives, the effect of NCCL_P2P_DISABLE, `ACSCtl` of the PCIe bridges, IOMMU
faults, and checks of peer access.

**Why it matters.** With ACS or the IOMMU on, the root complex redirects what one GPU writes to
another. NCCL trusts the driver's report that peers can reach each other, and waits forever.

**Example.** `ACSCtl: SrcValid+ ... ReqRedir+ CmpltRedir+` and an all-reduce that never ends

**Fix.** As a workaround, NCCL_P2P_DISABLE=1, slower but correct. Permanently, disable ACS and the
IOMMU in the firmware, or boot with `iommu=pt`; by hand.

**Source.** NCCL, troubleshooting
(docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html); NVIDIA/nccl#631.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_REFUSED = ("p2p-unsupported", "p2p-off-helps")
_BUS = ("acs-on", "iommu-fault")


def check(case: Case) -> Finding | None:
    """Peer access is refused, or a hang with a matching bus setting."""
    hangs = case.sees("multi-gpu-hangs", "collective-timed-out")
    is_first = case.value("collective-timed-out", "first") is not None
    certainty: Certainty = "possible"
    if case.sees(*_REFUSED) or case.sees(*_BUS) and hangs:
        certainty = "decided"
    elif (
        case.sees("acs-on")
        or hangs
        and case.sees("iommu-on")
        or case.sees("multi-gpu-hangs")
        and case.sees("nccl-p2p-used")
    ):
        certainty = "likely"
    elif not case.sees("multi-gpu-hangs", "iommu-fault") and not is_first:
        return None
    return Finding(
        rule="nccl-p2p-broken-by-acs-iommu",
        severity="error",
        certainty=certainty,
        problem=(
            "Copies between GPUs fail: ACS or the IOMMU redirects them, or peer access is "
            "unavailable."
        ),
        because="NCCL copies between GPUs over PCIe if the driver reports that it can",
        evidence=case.evidence(
            *_REFUSED, *_BUS, "iommu-on", "multi-gpu-hangs", "collective-timed-out"
        ),
        fixes=(
            Fix(
                text="disable peer-to-peer copies: slower, but correct",
                safety="safe",
                commands=("export NCCL_P2P_DISABLE=1",),
                changes="environment variables of this shell",
                undo="unset NCCL_P2P_DISABLE",
            ),
            Fix(
                text="or disable ACS and the IOMMU in the firmware, or boot with `iommu=pt`",
                where="host",
                changes="isolation of virtual machines",
            ),
        ),
        confirm=(
            "sudo lspci -vvv | grep ACSCtl",
            "nvidia-smi topo -p2p r",
            "dmesg | grep -iE 'iommu|dmar|AMD-Vi'",
            "NCCL_P2P_DISABLE=1 <the same command>",
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "p2p-off-helps",
            "NCCL_P2P_DISABLE",
            "NCCL_P2P_LEVEL",
            "disable_p2p",
            "p2p",
            pattern=r"NCCL_P2P_(?:DISABLE ?=? ?1?|LEVEL ?=? ?\w{0,4})\b.{0,80}(?:complet"
            r"|works?\b|working|finish|succe|fix|pass|help|\bok\b|fine\b|runs\b|solve)"
            r"|(?:complet|works|fixed|pass|succeeds|finish|solved|fine).{0,60}NCCL_P"
            r"2P_DISABLE",
        ),
        signature(
            "p2p-unsupported",
            "peer access is not supported",
            "PeerAccessUnsupported",
            "PEER_ACCESS_UNSUPPORTED",
            "communication broadband via P2P",
            "Verification error",
            pattern=r"peer access is not supported between|PEER_?ACCESS_?UNSUPPORTED"
            r"|support faster communication broadband via P2P|Verification error @"
            r" element",
        ),
        signature(
            "acs-on",
            "ACSCtl",
            pattern=r"ACSCtl:\s*SrcValid\+",
        ),
        signature(
            "iommu-fault",
            "IO_PAGE_FAULT",
            "DMAR",
            pattern=r"AMD-Vi: .{0,40}IO_PAGE_FAULT|DMAR: .{0,60}\bfault\b",
        ),
        signature(
            "iommu-on",
            "intel_iommu",
            "amd_iommu",
            "iommu",
            pattern=r"(?:intel|amd)_iommu=on|\biommu=(?:on|force)\b|IOMMU enabled"
            r"|Default domain type: Translated",
        ),
        signature(
            "multi-gpu-hangs",
            "hang",
            "hangs",
            "hanging",
            "hung",
            "stuck",
            "freezes",
            "deadlock",
            pattern=r"(?:nccl|all_?reduce|all_?gather|broadcast|\bddp\b|multi-?gpu"
            r"|init_process_group|DataParallel|tensor.parallel|torchrun|collective|b"
            r"arrier"
            r"|p2pBandwidth"
            r"|\d ?x? ?gpus).{0,100}(?<!cause a )(?<!might )(?<!may )(?<!could"
            r" )\b(?:hangs?"
            r"|hanging|hung|stuck|freezes|deadlocks?)\b|(?<!cause a"
            r" )\b(?:hangs?|hanging|hung"
            r"|stuck|freezes)\b.{0,80}(?:nccl|all_?reduce|init_process_group|barrier"
            r"|broadcast)",
        ),
        signature(
            "nccl-p2p-used",
            "P2P",
            pattern=r"via P2P/|P2P/(?:IPC|CUMEM|direct)",
        ),
    ),
    explains=("collective-timed-out",),
)
