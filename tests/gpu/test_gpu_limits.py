"""The roofs of a GPU: every quantity is measured, or says why not, and is plausible."""

from __future__ import annotations

import torch

from flatout.engine.bench.limits_worker import replies
from flatout.schema.limits_protocol import Measured, Ready, RoofRequest


def test_worker_measures_a_gpu() -> None:
    request = RoofRequest(device="cuda", num_blocks=3, block_s=0.02, call_s=0.02, is_last=True)
    first, *others = replies(request)
    assert isinstance(first, Ready) and first.name == torch.cuda.get_device_name(0)
    rows = {reply.row.id: reply.row for reply in others if isinstance(reply, Measured)}
    assert all(bool(row.samples) != bool(row.unread) for row in rows.values())
    reasons = {id: row.unread for id, row in rows.items() if row.unread}
    allowed = {"limits/matmul/tf32", "limits/matmul/float8", "limits/matmul/int8", "limits/pinned"}
    assert reasons.keys() <= allowed, reasons
    best = {id: max(row.samples) for id, row in rows.items() if row.samples}
    # Whatever the card: half the bytes are at least as fast, and a graph is launched in less than
    # a millisecond.
    assert best["limits/matmul/fp16"] > best["limits/matmul/fp32"]
    assert min(rows["limits/launch/graph"].samples) < 1e-3
    assert best["limits/memory/copy"] > best["limits/to-device/pinned"]


def test_tf32_is_off_afterwards() -> None:
    request = RoofRequest(device="cuda", num_blocks=1, block_s=0.001, call_s=0.001)
    list(replies(request))
    assert torch.get_float32_matmul_precision() == "highest"
