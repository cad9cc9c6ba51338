"""What a step does on a GPU: precisely, without waiting, with its numbers read late."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.engine import Experiment
from flatout.engine.data import normalized
from flatout.engine.optim.fused_step import own_step, prepared_step, set_implementation
from flatout.engine.optim.weight_update import WeightUpdate
from flatout.engine.runtime.rng import sample_order
from flatout.engine.runtime.step_timer import PARTS, Losses, StepTimer
from flatout.engine.session.session import Session, build
from flatout.engine.step.step import EagerStep
from flatout.errors import FlatoutError
from flatout.schema.run_lines import Finished, Progress, Validated

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]

# Long enough for the host to come back from it before the device is done.
PAUSE_CYCLES = 200_000_000


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                         nn.Linear(2048, 3))  # fmt: skip


KINDS: dict[str, Callable[..., Optimizer]] = {
    "adam": lambda p: Adam(p, weight_decay=0.1, amsgrad=True),
    "adam that decays like adamw": lambda p: Adam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": AdamW,
    "sgd": lambda p: SGD(p, lr=0.1),
    "sgd nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd dampening": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
}


def trained(make: Callable[..., Optimizer], *, is_prepared: bool) -> list[Tensor]:
    """Parameters after 20 steps with a changing rate and gradients that come and go."""
    dice = torch.Generator().manual_seed(0)
    shapes = [(64, 33), (7,), (1,), (5, 5)]
    members = [nn.Parameter(torch.randn(shape, generator=dice).cuda()) for shape in shapes]
    optimizer = make([{"params": members[:2], "lr": 0.05}, {"params": members[2:], "lr": 0.02}])
    set_implementation(optimizer, "fused")
    call: Callable[[], Any] | None = None
    for step in range(20):
        for index, parameter in enumerate(members):
            gradient = torch.randn(parameter.shape, generator=dice).cuda()
            is_missing = index == 1 and step % 3 == 2
            parameter.grad = None if is_missing else gradient
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        if call is None:
            own_step(optimizer)
            call = prepared_step(optimizer) if is_prepared else optimizer.step
            assert call is not None
        else:
            call()
    return [parameter.detach().cpu() for parameter in members]


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_step_is_torchs_own_on_the_gpu(kind: str) -> None:
    ours, theirs = (trained(KINDS[kind], is_prepared=is_ours) for is_ours in (True, False))
    for one, two in zip(ours, theirs, strict=True):
        assert torch.equal(one, two)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "use",
    [{}, {"clip_norm": 0.5}, {"micro_batch_size": 3}, {"memory_format": "channels_last"}],
    ids=str,
)
def test_step_does_not_wait_for_the_device(plain: Plain, use: dict[str, Any]) -> None:
    built = build(plain(ema=0.9), 0, "cuda")
    session = Session(built, built.recipe({"data_path": "resident", **use}))
    session.model.train()
    step = EagerStep(session.step_parts(), StepTimer(session.device))
    updates = list(session.feed.updates(0, 0))
    losses = Losses(session.device)
    for update in updates[:3]:
        losses.add(step.run(update), 8)
    torch.cuda.synchronize()
    with no_waiting():
        for update in updates[3:]:
            losses.add(step.run(update), 8)
    assert len(losses.take(is_waiting=True)) == len(updates)


def test_resident_batches_are_read_without_waiting(plain: Plain) -> None:
    built = build(plain(), 0, "cuda")
    feed = Session(built, built.recipe({"data_path": "resident"})).feed
    before = list(feed.updates(0, 0))
    torch.cuda.synchronize()
    with no_waiting():
        assert len(list(feed.updates(1, 0))) == len(before)
        normalized(torch.zeros(2, 3, 4, 4, dtype=torch.uint8, device="cuda"))


class Decoded:
    """Points that are the same each time they are read."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.arange(6.0) * index, index % 3


def test_batches_out_of_a_cache_are_pinned_and_those_of_the_loader(plain: Plain) -> None:
    feeds = []
    for path in ("cached", "loader"):
        built = build(plain(train_data=Decoded), 0, "cuda")
        use = {"data_path": path, "loader_workers": 0, "loader_pin_memory": True}
        feeds.append(Session(built, built.recipe(use)).feed)
    for epoch in (0, 1):
        for cached, loaded in zip(*(feed.updates(epoch, 0) for feed in feeds), strict=True):
            for one, other in zip(cached[0][0], loaded[0][0], strict=True):
                assert one.is_pinned() and other.is_pinned() and torch.equal(one, other)


def test_losses_are_taken_late(plain: Plain) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    losses = Losses(device)
    # The first pinned memory is made by the driver, which may wait for the device.
    losses.add(torch.zeros((), device=device), 8)
    losses.take(is_waiting=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(PAUSE_CYCLES)
    for number in range(3):
        losses.add(torch.full((), float(number), device=device), 8)
    # The device is busy: nothing is there, and nobody waits for it.
    assert losses.take() == [] and losses.num_pending() == 3
    losses.add(torch.full((), 3.0, device=device), 2)
    assert losses.take(is_waiting=True) == [(0.0, 8), (1.0, 8), (2.0, 8), (3.0, 2)]
    assert losses.num_pending() == 0


def test_samples_are_named_when_the_loss_is_nan_on_the_gpu(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += model.training
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return value * float("nan") if calls == 10 else value

    folder = lab.new(checkpoint_every=4)
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, plain(loss=loss))
    assert caught.value.rule == "nonfinite-loss"
    kept = json.loads((folder.path / "nonfinite.json").read_text())
    # 7 updates an epoch: the tenth is the third of the second.
    order = sample_order(50, 0, 1, True).tolist()
    assert kept == {"step": 10, "epoch": 1, "indices": order[16:24]}
    state = tell.state(folder)
    assert state["position"]["step"] == 8
    assert all(value.isfinite().all() for value in state["model"].values())


def test_split_and_memory_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    lab.use |= {"deterministic": False}
    folder = lab.run(plain(model=wide, epochs=30))
    [finished] = tell.events(folder, Finished)
    assert set(finished.split_s) == set(PARTS)
    assert finished.train_s == pytest.approx(sum(finished.split_s.values()))
    for part in ("forward", "backward", "optimizer"):
        assert 0 < finished.split_s[part] < finished.train_s
    # Weights of 2048 x 2048 in fp32, their gradients and two moments.
    assert (finished.peak_memory_bytes or 0) > 4 * 16 * 2**20
    lines = tell.metrics(folder, Progress)
    assert lines and all((line.memory_bytes or 0) > 4 * 2**20 for line in lines)


def test_precisions_are_what_they_say(lab: Lab, plain: Plain) -> None:
    seen: dict[str, Any] = {}

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen["dtype"] = output.dtype
        seen["tf32"] = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def model() -> nn.Module:
        made = wide()
        made[0].register_forward_hook(hook)
        return made

    expected = {"fp32": torch.float32, "fp16": torch.float16}
    if torch.cuda.get_device_capability() >= (8, 0):
        expected |= {"tf32": torch.float32, "bf16": torch.bfloat16}
    for precision, dtype in expected.items():
        lab.run(plain(model=model, epochs=1), precision=precision)
        assert seen["dtype"] == dtype
        assert seen["tf32"] == (("high", True) if precision == "tf32" else ("highest", False))


def test_losses_on_both_devices_agree(lab: Lab, tell: Tell, plain: Plain) -> None:
    def still() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    experiment = plain(model=still, optimizer=lambda p: SGD(p, lr=0.1))
    values = [
        tell.metrics(lab.run(experiment, device=device), Validated)[-1].metrics["loss"]
        for device in ("cpu", "cuda")
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_memory_that_is_not_there_is_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        too_much = torch.empty(2**44, dtype=torch.uint8, device=batch[0].device)
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) + too_much[0]

    folder = lab.new()
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, plain(loss=loss))
    assert caught.value.rule == "out-of-memory"
    finding = tell.failure(folder)
    assert finding.rule == "out-of-memory" and "micro_batch_size" in finding.fixes[0].text
    lab.go_on(folder, plain())


def test_operation_that_does_not_repeat_is_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    def images() -> tuple[Tensor, Tensor]:
        return torch.randn(24, 2, 5, 5), torch.arange(24) % 3

    def pooled() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 3, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
        )

    experiment = plain(model=pooled, train_data=images, validation_data=None, epochs=1)
    folder = lab.new()
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, experiment)
    assert caught.value.rule == "nondeterministic-operation"
    lab.go_on(folder, experiment, deterministic=False)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "sgd" in kind])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_fused_sgd_is_right_when_the_scaler_leaves_the_first_steps_out(
    kind: str, clip_norm: float | None
) -> None:
    results = []
    for implementation in ("fused", "for-loop"):
        dice = torch.Generator().manual_seed(0)
        members = [nn.Parameter(torch.randn(64, 33, generator=dice).cuda()) for _ in range(3)]
        optimizer = KINDS[kind](members)
        set_implementation(optimizer, implementation)  # type: ignore[arg-type]
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        update = WeightUpdate([optimizer], scaler, clip_norm)
        scaler.scale(torch.ones((), device="cuda"))
        for step in range(10):
            factor = scaler.get_scale() if step > 1 else float("inf")
            for member in members:
                member.grad = torch.randn(64, 33, generator=dice).cuda() * factor
            # What the allocator takes back is handed to the next one who asks.
            junk = [torch.full_like(one, 1e3) for one in members for _ in range(20)]
            del junk
            update.apply()
            update.clear()
        results.append([member.detach().cpu() for member in members])
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one, two, atol=1e-5)
