"""What a batch changes in a model's plain attributes is put back, or known to be unknown."""

from __future__ import annotations

import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from flatout.engine.training.attribute_snapshot import AttributeSnapshot

LARGE = 2**19


def kept(model: nn.Module) -> AttributeSnapshot:
    """A snapshot in the second batch, when it is known that `count` moves."""
    snapshot = AttributeSnapshot(model)
    snapshot.keep()
    model.count = 1  # type: ignore[assignment]
    snapshot.detect_changes()
    snapshot.keep()
    return snapshot


def test_large_tensor_that_no_batch_changes_is_no_reason_to_go_back() -> None:
    model: Any = nn.Linear(2, 2)
    model.table = torch.zeros(LARGE)
    snapshot = kept(model)
    model.count = 2
    assert snapshot.is_known()
    snapshot.restore()
    assert model.count == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["first batch", "later"])
@pytest.mark.parametrize("is_in_place", [True, False], ids=["in place", "replaced"])
def test_change_of_a_large_tensor_is_unknown(is_in_place: bool, is_first: bool) -> None:
    model: Any = nn.Linear(2, 2)
    model.table = torch.zeros(LARGE)
    snapshot = AttributeSnapshot(model) if is_first else kept(model)
    if is_first:
        snapshot.keep()
    if is_in_place:
        model.table.add_(1)
    else:
        model.table = model.table + 1
    assert not snapshot.is_known()


def test_large_tensor_that_every_batch_changes_is_unknown() -> None:
    model: Any = nn.Linear(2, 2)
    model.table = torch.zeros(LARGE)
    snapshot = AttributeSnapshot(model)
    for _ in range(3):
        snapshot.keep()
        assert snapshot.is_known()
        model.table = model.table + 1
        assert not snapshot.is_known()
        snapshot.detect_changes()


def test_memory_of_a_large_tensor_is_not_held() -> None:
    model: Any = nn.Linear(2, 2)
    model.table = torch.zeros(LARGE)
    table = weakref.ref(model.table)
    snapshot = kept(model)
    model.table = None
    assert table() is None
    # Another one, perhaps in the same memory.
    model.table = torch.zeros(LARGE)
    assert not snapshot.is_known()


def test_activation_is_put_back_without_its_graph() -> None:
    model: Any = nn.Linear(2, 2)
    model.last = None
    snapshot = AttributeSnapshot(model)
    snapshot.keep()
    model.last = model(torch.ones(1, 2))
    before = model.last.detach().clone()
    snapshot.detect_changes()
    snapshot.keep()
    assert snapshot.is_known()
    model.last = None
    assert snapshot.is_known()
    snapshot.restore()
    assert torch.equal(model.last, before) and model.last.grad_fn is None


def test_expanded_activation_keeps_its_shape() -> None:
    model: Any = nn.Linear(2, 2)
    model.gate = None
    snapshot = AttributeSnapshot(model)
    snapshot.keep()
    model.gate = model(torch.ones(1, 2)).mean().expand(4, 32)
    before = model.gate.detach().clone()
    snapshot.detect_changes()
    snapshot.keep()
    model.gate = None
    assert snapshot.is_known()
    snapshot.restore()
    assert torch.equal(model.gate, before)


def test_containers_that_others_hold_are_put_back_in_place() -> None:
    first: Any = nn.Linear(2, 2)
    second: Any = nn.Linear(2, 2)
    shared: Any = {"losses": [], "pair": ([0], 1)}
    losses, numbers = shared["losses"], shared["pair"][0]
    first.record, second.record = shared, shared
    snapshot = AttributeSnapshot(nn.Sequential(first, second))
    for _ in range(2):
        snapshot.keep()
        losses.append(0.5)
        numbers[0] += 1
        snapshot.detect_changes()
    snapshot.keep()
    losses.clear()
    numbers[0] += 1
    del shared["losses"]
    first.record = {}
    assert snapshot.is_known()
    snapshot.restore()
    assert shared == {"losses": [0.5, 0.5], "pair": ([2], 1)}
    assert first.record is shared and second.record is shared
    assert shared["losses"] is losses and shared["pair"][0] is numbers


def test_growing_list_costs_no_more_when_it_is_long() -> None:
    model: Any = nn.Linear(2, 2)
    model.sizes = []
    snapshot = AttributeSnapshot(model)
    snapshot.keep()
    model.sizes.append(8)
    snapshot.detect_changes()
    snapshot.keep()
    model.sizes.append(8)
    assert snapshot.is_known()
    snapshot.restore()
    assert model.sizes == [8]
    model.sizes = [{"size": size} for size in range(20_000)]
    # Copied a last time.
    snapshot.keep()
    model.sizes.append({"size": 8})
    tracemalloc.start()
    snapshot.keep()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000
    # It was not copied again, so the run goes back to its checkpoint.
    assert not snapshot.is_known()


def test_long_list_that_no_batch_changes_is_no_reason_to_go_back() -> None:
    model: Any = nn.Linear(2, 2)
    model.words = {str(number): number for number in range(20_000)}
    snapshot = kept(model)
    assert snapshot.is_known()
    model.words["another"] = 0
    assert not snapshot.is_known()


def test_long_list_that_only_the_first_batch_makes_is_no_reason_to_go_back() -> None:
    model: Any = nn.Linear(2, 2)
    model.table = None
    snapshot = AttributeSnapshot(model)
    snapshot.keep()
    model.table = list(range(20_000))
    snapshot.detect_changes()
    for _ in range(3):
        snapshot.keep()
        assert snapshot.is_known()
    model.table[0] = 1
    assert not snapshot.is_known()


@pytest.mark.parametrize("is_detected", [True, False], ids=["after a detection", "before it"])
@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "not to be saved"])
def test_long_list_that_a_batch_takes_away_is_unknown(is_removed: bool, is_detected: bool) -> None:
    model: Any = nn.Linear(2, 2)
    model.history = []
    snapshot = AttributeSnapshot(model)
    snapshot.keep()
    model.history.append(0)
    snapshot.detect_changes()
    model.history += range(20_000)
    if is_detected:
        snapshot.detect_changes()
    snapshot.keep()
    assert snapshot.is_known()
    if is_removed:
        del model.history
    else:
        model.history.append(torch.zeros(1))
    assert not snapshot.is_known()
