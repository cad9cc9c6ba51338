"""The prepared fused step computes what torch's own does, to the last bit."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.engine import Experiment
from flatout.engine.gate.fakes import Bag
from flatout.engine.optim.fused_step import (
    can_be_fused,
    load_optimizer,
    match_layout,
    own_step,
    prepared_step,
    set_implementation,
)
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.optim.weight_update import WeightUpdate
from flatout.engine.recipe.default_recipe import chosen_recipe
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.session.session import build
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.errors import UsageError
from flatout.schema.tuning import Setting

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
Make = Callable[..., Optimizer]

KINDS: dict[str, Make] = {
    "adam": Adam,
    "adam with decay": lambda p: Adam(p, weight_decay=0.1),
    "adam amsgrad": lambda p: Adam(p, amsgrad=True, betas=(0.5, 0.9), eps=1e-4),
    "adam that decays like adamw": lambda p: Adam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "adam maximizing": lambda p: Adam(p, maximize=True),
    "adamw": AdamW,
    "adamw amsgrad": lambda p: AdamW(p, weight_decay=0.3, amsgrad=True),
    "sgd": lambda p: SGD(p, lr=0.1),
    "sgd momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "sgd nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd dampening": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True),
}


def parameters() -> list[nn.Parameter]:
    """Several shapes, one transposed, one that is frozen."""
    dice = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (7,), (1,), (2, 3, 4), (5, 5)]
    made = [nn.Parameter(torch.randn(shape, generator=dice)) for shape in shapes]
    made[3] = nn.Parameter(made[3].data.transpose(0, 2))
    made[4].requires_grad_(False)
    return made


def groups(members: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": members[:2], "lr": 0.05},
        {"params": members[2:], "lr": 0.02, "weight_decay": 0.2},
    ]


def make_gradients(members: list[nn.Parameter], step: int, missing: set[int]) -> None:
    dice = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(members):
        gradient = torch.randn(parameter.shape, generator=dice)
        is_there = parameter.requires_grad and index not in missing
        # As autograd does: with the strides of the parameter.
        parameter.grad = torch.empty_like(parameter).copy_(gradient) if is_there else None


def trained(make: Make, missing: Callable[[int], set[int]], *, is_prepared: bool) -> Any:
    """Parameters and state after 20 steps with a changing rate: by our call, or by torch's own."""
    members = parameters()
    optimizer = make(groups(members))
    set_implementation(optimizer, "fused")
    call: Callable[[], None] | None = None
    for step in range(20):
        make_gradients(members, step, missing(step))
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        if call is None:
            own_step(optimizer)
            call = prepared_step(optimizer) if is_prepared else optimizer.step  # type: ignore[assignment]
            assert call is not None
        else:
            call()
    return members, optimizer.state_dict()["state"]


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_step_is_torchs_own(kind: str) -> None:
    make = KINDS[kind]
    ours = trained(make, lambda _: set(), is_prepared=True)
    assert is_equal(ours, trained(make, lambda _: set(), is_prepared=False))
    assert not is_equal(ours[0], parameters())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "sgd" not in kind])
def test_prepared_step_is_torchs_own_when_gradients_come_and_go(kind: str) -> None:
    # The second has none in some steps; the first gets its first one late.
    def missing(step: int) -> set[int]:
        return ({1} if step % 3 == 1 else set()) | ({0} if step < 4 else set())

    ours = trained(KINDS[kind], missing, is_prepared=True)
    assert is_equal(ours, trained(KINDS[kind], missing, is_prepared=False))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "sgd" in kind])
def test_fused_sgd_goes_on_when_a_gradient_comes_late(kind: str) -> None:
    def missing(step: int) -> set[int]:
        return ({1} if step % 3 == 1 else set()) | ({0} if step < 4 else set())

    ours, _ = trained(KINDS[kind], missing, is_prepared=True)
    members = parameters()
    plainly = KINDS[kind](groups(members))
    set_implementation(plainly, "for-loop")
    for step in range(20):
        make_gradients(members, step, missing(step))
        for group in plainly.param_groups:
            group["lr"] *= 0.9
        plainly.step()
    for one, other in zip(ours, members, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_fused_steps_are_right_when_the_scaler_leaves_the_first_ones_out(
    kind: str, clip_norm: float | None
) -> None:
    results = []
    for implementation in ("fused", "for-loop"):
        members = parameters()
        optimizer = KINDS[kind](groups(members))
        set_implementation(optimizer, implementation)  # type: ignore[arg-type]
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        update = WeightUpdate([optimizer], scaler, clip_norm)
        scaler.scale(torch.ones(()))
        for step in range(12):
            # The last one is used for the first time when the others have their state.
            make_gradients(members, step, {3} if step < 5 else set())
            for member in members:
                if member.grad is not None:
                    member.grad.mul_(scaler.get_scale() if step > 1 else torch.inf)
            # What lies in memory that is given back is taken by the next one who asks.
            junk = [torch.full_like(one, 1e3) for one in members for _ in range(20)]
            del junk
            update.apply()
            update.clear()
            assert optimizer.param_groups[0]["fused"] is (implementation == "fused")
        results.append(members)
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("implementation", ["for-loop", "foreach"])
def test_implementations_agree(kind: str, implementation: Any) -> None:
    fused, _ = trained(KINDS[kind], lambda _: set(), is_prepared=True)
    members = parameters()
    optimizer = KINDS[kind](groups(members))
    set_implementation(optimizer, implementation)
    for step in range(20):
        make_gradients(members, step, set())
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.step()
    for one, other in zip(fused, members, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_from_one_implementation_to_the_other(kind: str) -> None:
    results = []
    state: Any = None
    for names in (("fused", "fused"), ("fused", "for-loop"), ("for-loop", "fused")):
        members = parameters()
        for half, name in enumerate(names):
            optimizer = KINDS[kind](groups(members))
            set_implementation(optimizer, name)  # type: ignore[arg-type]
            if half:
                load_optimizer(optimizer, copy.deepcopy(state))
                set_implementation(optimizer, name)  # type: ignore[arg-type]
                match_layout(optimizer)
                assert {group["fused"] for group in optimizer.param_groups} == {name == "fused"}
            for step in range(5):
                make_gradients(members, 5 * half + step, set())
                optimizer.step()
            state = optimizer.state_dict()
        results.append(members)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.allclose(one, two, atol=1e-5)


def test_nothing_is_prepared_when_somebody_listens() -> None:
    members = parameters()
    optimizer = Adam(members)
    set_implementation(optimizer, "fused")
    make_gradients(members, 0, set())
    optimizer.step()
    assert prepared_step(optimizer) is not None
    optimizer.register_step_post_hook(lambda *_: None)
    assert prepared_step(optimizer) is None
    assert prepared_step(Adam(members)) is None
    assert prepared_step(torch.optim.Adagrad(members, fused=True)) is None


class Own(Adam):
    """Somebody's own optimizer."""


def test_nothing_is_prepared_for_an_optimizer_of_ones_own() -> None:
    assert prepared_step(Own(parameters(), fused=True)) is None


def with_gaps() -> nn.Module:
    module = nn.Linear(6, 3)
    module.weight = nn.Parameter(torch.randn(3, 12)[:, ::2])
    return module


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Flatten(1), nn.Linear(18, 3))


def double() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 3).double())


FUSED_GETS_WRONG: dict[str, dict[str, Any]] = {
    "gaps": {"model": with_gaps, "optimizer": lambda p: Adam(p, lr=0.01)},
    "sparse": {
        "model": sparse,
        "optimizer": lambda p: SGD(p, lr=0.01),
        "train_data": lambda: (torch.arange(144).reshape(24, 6) % 4, torch.arange(24) % 3),
        "validation_data": None,
    },
    "double": {
        "model": double,
        "optimizer": lambda p: Adam(p, lr=0.01),
        "train_data": lambda: (torch.randn(24, 6).double(), torch.arange(24) % 3),
        "validation_data": None,
    },
}


def test_no_graph_is_planned_with_sparse_gradients(plain: Plain) -> None:
    # Only the GPU knows their size.
    def setting(name: str) -> Setting:
        task = TuningTask(experiment=plain(**FUSED_GETS_WRONG[name]), device_name="cpu")
        return CandidateBuilder(task).setting

    assert setting("sparse").forms_to_capture == ()
    assert "sparse=True" in (setting("sparse").not_captured or "")
    assert setting("gaps").forms_to_capture != () and setting("gaps").not_captured is None


def test_refused_graph_names_the_embedding_when_gradients_are_sparse(plain: Plain) -> None:
    facts = build(plain(**FUSED_GETS_WRONG["sparse"]), 0, "cpu").facts
    on_gpu = dataclasses.replace(facts, device=torch.device("cuda", 0), free_device_bytes=2**30)
    with pytest.raises(UsageError, match="sparse=True") as caught:
        check_recipe(chosen_recipe(on_gpu, {"capture": "step"}), on_gpu)
    assert caught.value.rule == "recipe-does-not-fit"


class SparseAttention(nn.Linear):
    """Means another thing by it, and not even a flag."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.sparse = torch.ones(2)


def test_only_embeddings_have_sparse_gradients(plain: Plain) -> None:
    facts = build(plain(model=SparseAttention), 0, "cpu").facts
    assert facts.not_captured is None and facts.can_be_fused and facts.forms_to_capture
    assert Bag(SparseAttention(), 1).is_sparse == [False, False]
    assert Bag(sparse(), 1).is_sparse == [True, False, False]


@pytest.mark.parametrize("name", FUSED_GETS_WRONG)
def test_fused_is_not_chosen_when_its_kernels_cannot(
    lab: Lab, tell: Tell, plain: Plain, name: str
) -> None:
    experiment = plain(**FUSED_GETS_WRONG[name], epochs=2)
    default, own = lab.run(experiment), lab.run(experiment, optimizer_implementation="own")
    assert tell.traces(default)["tensors"] == tell.traces(own)["tensors"]
    with pytest.raises(UsageError) as caught:
        lab.run(experiment, optimizer_implementation="fused")
    assert caught.value.rule == "optimizer-has-no-such-implementation"


def test_fused_is_possible_when_a_weight_is_transposed() -> None:
    assert can_be_fused(Adam(parameters()))
    assert not can_be_fused(torch.optim.RMSprop(parameters()))


def test_an_optimizer_that_asks_for_the_loss_is_refused() -> None:
    lbfgs = torch.optim.LBFGS(parameters())
    for given in (lbfgs, {"mine": lbfgs}):
        with pytest.raises(UsageError, match="LBFGS, whose step recomputes the loss") as caught:
            Optimizers(given)
        assert caught.value.rule == "bad-experiment" and "AdamW" in str(caught.value.fix)


def test_training_goes_on_when_part_of_the_model_is_used_late(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        number = int(model.calls)
        model.calls += model.training
        scores = model.first(inputs) + (model.late(inputs) if number >= 3 else 0)
        return nn.functional.cross_entropy(scores, labels)

    def model() -> nn.Module:
        made = nn.Module()
        made.first, made.late = nn.Linear(6, 3), nn.Linear(6, 3)
        made.register_buffer("calls", torch.tensor(0))
        return made

    experiment = plain(model=model, loss=loss, optimizer=lambda p: SGD(p, lr=0.1, momentum=0.9))
    whole, parts = lab.run(experiment), lab.new()
    for stop in (2, 1, 4):
        lab.go_on(parts, experiment, stop_after=stop)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)
    assert tell.state(whole)["model"]["late.weight"].abs().sum() > 0
