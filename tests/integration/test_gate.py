"""The gate refuses what computes something else, and nothing that does not.

The bugs and the clean configurations are those of campaigns/gate.py, which has many more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gate as benchmark
import pytest
import torch
from gate_bugs import BUGS, Bug, experiment_of
from gate_clean import configuration
from gate_graph_flaws import captured
from gate_models import KINDS, mean_loss
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.gate import Gate, GateSubject, judge
from flatout.engine.gate.fixtures import changed
from flatout.engine.model.precision import can_compute_lstm_in_bf16
from flatout.engine.session.session import build
from flatout.errors import UsageError
from flatout.schema.recipe import Recipe
from flatout.schema.tuning import Check, GateVerdict

Plain = Callable[..., Experiment]


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_judge_when_a_bug_is_planted(bug: Bug) -> None:
    failed = benchmark.judge_bug(bug).verdict.failed
    assert failed
    assert not any("could not be computed" in (check.note or "") for check in failed)


@pytest.mark.parametrize("seed", range(100, 115))
def test_judge_when_nothing_is_wrong(seed: int) -> None:
    judged = benchmark.judge_clean(configuration(seed, with_workers=False))
    assert judged.verdict.is_passed, f"{judged.name}: {judged.failed_text()}"


def recipe_for(experiment: Experiment, **fixed: Any) -> Recipe:
    """The plain recipe of an experiment."""
    return build(experiment, 0, "cpu").recipe({"num_threads": 1, "loader_workers": 0} | fixed)


def verdict_of(experiment: Experiment, **changes: Any) -> GateVerdict:
    """What the gate says of the plain step with some recipe fields changed."""
    plain = recipe_for(experiment)
    return judge(GateSubject(experiment=experiment, device="cpu"), changed(plain, **changes), plain)


def check_named(verdict: GateVerdict, name: str) -> Check:
    """The check of that name."""
    return next(check for check in verdict.checks if check.name == name)


def test_judge_leaves_everything_as_it_was(plain: Plain) -> None:
    experiment = plain()
    recipe = recipe_for(experiment)
    gate = Gate(GateSubject(experiment=experiment, device="cpu"), recipe)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    settings = [torch.get_default_dtype(), torch.get_num_threads(),
                torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
                torch.is_autocast_enabled("cpu")]  # fmt: skip
    gate.judge(changed(recipe, precision="bf16", num_threads=2))
    assert torch.equal(torch.get_rng_state(), before)
    assert settings == [
        torch.get_default_dtype(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    ]  # fmt: skip


def test_judge_gives_the_same_verdict_again(plain: Plain) -> None:
    experiment = plain()
    recipe = recipe_for(experiment)
    candidate = changed(recipe, precision="bf16")
    gate = Gate(GateSubject(experiment=experiment, device="cpu"), recipe)
    first = gate.judge(candidate)
    gate.judge(changed(recipe, micro_batch_size=3))
    assert gate.judge(candidate) == first


def test_judge_asks_nothing_when_nothing_changes(plain: Plain) -> None:
    assert verdict_of(plain()).checks == ()


def test_judge_asks_less_when_threads_change(plain: Plain) -> None:
    assert [check.name for check in verdict_of(plain(), num_threads=2).checks] == ["gradients"]


def test_judge_names_batch_norm_when_batches_are_split(plain: Plain) -> None:
    verdict = verdict_of(plain(), micro_batch_size=4)
    assert {check.name for check in verdict.failed} >= {"gradients", "running statistics"}
    assert "BatchNorm" in (check_named(verdict, "gradients").note or "")


def test_judge_when_the_person_has_fixed_micro_batches(plain: Plain) -> None:
    experiment = plain()
    fixed = recipe_for(experiment, micro_batch_size=4)
    candidate = changed(fixed, precision="bf16")
    assert judge(GateSubject(experiment=experiment, device="cpu"), candidate, fixed).is_passed


def test_judge_when_batch_norm_is_frozen(plain: Plain) -> None:
    def frozen_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return mean_loss(model, batch)

    assert verdict_of(plain(loss=frozen_loss), micro_batch_size=4).is_passed


class HardFloat(nn.Module):
    """Asks for fp32 in a way that nobody can answer otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.linear(inputs.type("torch.FloatTensor"))
        return scores


class SoftFloat(nn.Module):
    """Asks for fp32 as people do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.linear(inputs.float().to(torch.float32)) + torch.zeros(3)
        return scores.float()


def test_judge_when_a_model_does_not_run_in_fp64(plain: Plain) -> None:
    verdict = verdict_of(plain(model=HardFloat), precision="bf16")
    assert verdict.is_passed
    assert "does not run in fp64" in (check_named(verdict, "gradients").note or "")


def test_judge_when_a_model_asks_for_fp32(plain: Plain) -> None:
    verdict = verdict_of(plain(model=SoftFloat), precision="bf16")
    assert verdict.is_passed
    assert "fp64" not in (check_named(verdict, "gradients").note or "")


def test_judge_when_an_optimizer_has_its_state_before_the_layout_changes() -> None:
    # Found by the gate: fused Adagrad filled a contiguous state in the weights' order.
    experiment = experiment_of(
        KINDS["convolutions, GroupNorm"],
        optimizer=lambda named: torch.optim.Adagrad([p for _, p in named], lr=1e-3),
    )
    assert verdict_of(experiment, memory_format="channels_last").is_passed


def test_judge_when_the_candidate_raises() -> None:
    # torch has channels_last for pictures alone.
    experiment = experiment_of(KINDS["InstanceNorm3d"])
    verdict = verdict_of(experiment, memory_format="channels_last")
    assert not verdict.is_passed
    assert "rank 4" in (check_named(verdict, "gradients").note or "")


def test_judge_when_the_plain_step_needs_its_own_batch_size(plain: Plain) -> None:
    def fussy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[0]) not in (16, 2):
            raise ValueError("16 samples, please")
        return mean_loss(model, batch)

    verdict = verdict_of(plain(loss=fussy, batch_size=16), memory_format="channels_last")
    assert "plain step fails on batches of 8" in (check_named(verdict, "gradients").note or "")


def test_judge_when_the_device_cannot_do_it(plain: Plain) -> None:
    with pytest.raises(UsageError, match="precision"):
        verdict_of(plain(), precision="fp16")


def test_judge_when_a_loss_is_no_scalar(plain: Plain) -> None:
    def vector(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0])

    with pytest.raises(UsageError) as raised:
        verdict_of(plain(loss=vector), precision="bf16")
    assert raised.value.rule == "loss-is-not-a-scalar"


def test_judge_when_workers_read_right(plain: Plain) -> None:
    bug = next(bug for bug in BUGS if bug.name == "last batch dropped")
    experiment = dataclasses.replace(bug.experiment(), clip_norm=None)
    verdict = verdict_of(experiment, loader_workers=2)
    assert [check.name for check in verdict.checks] == ["data", "samples"]
    assert verdict.is_passed


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.is_sparse])
@pytest.mark.parametrize("changes", [{}, {"micro_batch_size": 6}, {"precision": "bf16"}], ids=str)
def test_judge_when_updates_are_in_graphs_and_nothing_is_wrong(
    kind: str, changes: dict[str, Any]
) -> None:
    if kind == "LSTM" and "precision" in changes and not can_compute_lstm_in_bf16():
        pytest.skip("needs a CPU on which torch computes nn.LSTM in bf16 (AVX-512)")
    plain = recipe_for(experiment_of(KINDS[kind]), **changes)
    subject = GateSubject(experiment=experiment_of(KINDS[kind]), device="cpu", maker=captured())
    verdict = judge(subject, changed(plain, capture="step", steps_per_launch=3), plain)
    [check] = verdict.checks
    if check.note is not None and "recording" in check.note:
        pytest.skip(check.note)
    assert check.name == "replays" and check.is_passed, check.note
    assert check.measured == 0
