"""Samples of what a model writes: kept in the run, and nothing in the training changes by them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment, sampled_tokens
from flatout.errors import UsageError
from flatout.schema.run_lines import Generated, Validated

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


def drawing(model: nn.Module) -> list[str]:
    """Draws from every generator, and leaves the model in training mode."""
    assert not model.training and not torch.is_grad_enabled()
    model.train()
    return [f"{torch.rand(()).item():.6f} {random.random():.6f}"]


def test_samples_leave_the_training_as_it_was(lab: Lab, tell: Tell, plain: Plain) -> None:
    with_samples = tell.traces(lab.run(plain(generate=drawing)))
    without = tell.traces(lab.run(plain()))
    assert with_samples["weights"] == without["weights"]
    assert with_samples["tensors"] == without["tensors"]
    assert with_samples["tree"] == without["tree"]


def test_resume_repeats_the_samples(lab: Lab, tell: Tell, plain: Plain) -> None:
    whole = lab.run(plain(generate=drawing))
    stopped = lab.new(checkpoint_every=4)
    lab.crash(stopped, plain(generate=drawing), 17)
    lab.go_on(stopped, plain(generate=drawing))
    assert tell.traces(stopped) == tell.traces(whole)
    steps = [line.step for line in tell.metrics(stopped, Generated)]
    assert steps == [line.step for line in tell.metrics(stopped, Validated)] == [7, 14, 21]


def test_samples_need_no_validation_data(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(generate=drawing, validation_data=None, validate_every=10))
    assert [line.step for line in tell.metrics(folder, Generated)] == [10, 20, 21]


def test_samples_are_of_the_averaged_weights(lab: Lab, tell: Tell, plain: Plain) -> None:
    def first_weight(model: Any) -> str:
        return str(model[0].weight[0, 0].item())

    folder = lab.run(plain(generate=first_weight, ema=0.9))
    state = tell.state(folder)
    # One text may come as it is, not in a list.
    [text] = tell.metrics(folder, Generated)[-1].texts
    assert text == str(state["average"]["averages"][0][0, 0].item())
    assert text != str(state["model"]["0.weight"][0, 0].item())


def test_samples_are_bounded(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(generate=lambda model: ["x" * 9999, "half \ud83d"] * 50))
    texts = tell.metrics(folder, Generated)[-1].texts
    assert len(texts) == 16 and texts[0] == "x" * 4000 + "…" and texts[1] == "half ?"


def test_samples_that_are_no_texts_are_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    with pytest.raises(UsageError) as caught:
        lab.go_on(folder, plain(generate=lambda model: [torch.tensor([1, 2])]))
    assert caught.value.rule == "generate-gave-no-texts"
    assert tell.failure(folder).rule == "generate-gave-no-texts"


def next_of_ten(tokens: Tensor) -> Tensor:
    """Scores of a made-up language: after n comes n + 1, or less often anything else."""
    return 4.0 * nn.functional.one_hot((tokens[:, -1] + 1) % 10, 10).float()


PROMPT = torch.tensor([[3], [8]])


def test_sampled_tokens_take_the_likeliest() -> None:
    counted = [[3, 4, 5, 6, 7], [8, 9, 0, 1, 2]]
    assert sampled_tokens(next_of_ten, PROMPT, 4, temperature=0).tolist() == counted
    assert sampled_tokens(next_of_ten, PROMPT, 4, top_k=1).tolist() == counted
    assert sampled_tokens(next_of_ten, PROMPT, 4, temperature=0.01).tolist() == counted


def test_sampled_tokens_repeat_by_their_seed_alone() -> None:
    before = torch.get_rng_state()
    drawn = sampled_tokens(next_of_ten, PROMPT, 40, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(sampled_tokens(next_of_ten, PROMPT, 40, seed=1), drawn)
    assert not torch.equal(sampled_tokens(next_of_ten, PROMPT, 40, seed=2), drawn)
    assert drawn.shape == (2, 41) and torch.equal(drawn[:, :1], PROMPT)


def test_sampled_tokens_follow_the_scores() -> None:
    prompt = torch.zeros(4000, 1, dtype=torch.uint8)
    scores = torch.tensor([0.0, 1.0, 2.0, 3.0])
    for temperature, top_k in ((1.0, None), (2.0, None), (1.0, 2)):
        drawn = sampled_tokens(
            lambda tokens: scores.expand(len(tokens), 4), prompt, 1,
            temperature=temperature, top_k=top_k,
        )[:, 1]  # fmt: skip
        kept = scores.masked_fill(scores < scores.sort().values[-(top_k or 4)], -1e9)
        shares = torch.bincount(drawn, minlength=4) / len(drawn)
        torch.testing.assert_close(shares, (kept / temperature).softmax(0), atol=0.03, rtol=0)
