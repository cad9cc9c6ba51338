"""Activation checkpointing: less is kept, and the same is computed, to the last bit."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.model.activation_checkpointing import ActivationCheckpointing, repeated_blocks
from flatout.engine.runtime.rng import seed_generators
from flatout.errors import FlatoutError, UsageError
from flatout.experiments import charlm, gpt3_small, resnet50, vit_mnist

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


class Residual(nn.Module):
    """A block with dropout."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 6))
        self.norm = norm()

    def forward(self, hidden: Tensor, *, scale: float = 1.0) -> Tensor:
        return hidden + scale * self.inside(self.norm(hidden))


def layer_norm() -> nn.Module:
    return nn.LayerNorm(6)


class Deep(nn.Module):
    def __init__(self, norms: list[Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Residual(norm) for norm in norms])
        self.head = nn.Linear(6, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden, scale=0.5)
        scores: Tensor = self.head(hidden)
        return scores


def deep() -> nn.Module:
    return Deep([layer_norm] * 4)


def batch_norm() -> nn.Module:
    return nn.BatchNorm1d(6)


def short_charlm() -> Experiment:
    """The built-in at its smallest, with dropout, on made-up text."""
    size = dataclasses.replace(charlm.SIZES["tiny"], dropout=0.2)
    experiment = charlm.experiment(size="tiny", steps=12, batch_size=4)
    text = torch.randint(65, (40, 65), dtype=torch.uint8, generator=torch.Generator())
    return dataclasses.replace(
        experiment,
        model=lambda: charlm.CharGPT(size),
        train_data=lambda: text,
        validation_data=lambda: text[:8],
    )


def short_gpt() -> Experiment:
    """A model of the transformers library, with its dropout and tied embeddings."""
    text = torch.randint(256, (40, 33), dtype=torch.uint8, generator=torch.Generator())

    def model() -> nn.Module:
        library = gpt3_small.transformers_library()
        shape = {"n_layer": 3, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 256}
        return library.GPT2LMHeadModel(library.GPT2Config(**shape))  # type: ignore[no-any-return]

    experiment = gpt3_small.experiment(size="tiny", steps=12, batch_size=4)
    return dataclasses.replace(
        experiment, model=model, train_data=lambda: text, validation_data=lambda: text[:8]
    )


MODELS: dict[str, Callable[[], Experiment]] = {"charlm": short_charlm, "transformers": short_gpt}


@pytest.mark.parametrize("use", [{}, {"precision": "bf16"}, {"micro_batch_size": 2}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_weights_are_the_same_to_the_bit(
    lab: Lab, tell: Tell, name: str, use: dict[str, Any]
) -> None:
    if name == "transformers" and find_spec("transformers") is None:
        pytest.skip("needs transformers (pip install 'flatout[language]')")
    kept = lab.run(MODELS[name](), **use)
    again = lab.run(MODELS[name](), **use, activation_checkpointing=True)
    assert tell.traces(again) == tell.traces(kept)


def test_resume_is_exact_and_the_field_may_change_on_the_way(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    experiment = plain(model=deep)
    whole, parts = lab.run(experiment), lab.new(activation_checkpointing=True)
    lab.go_on(parts, experiment, stop_after=4)
    lab.crash(parts, experiment, 5)
    lab.go_on(parts, experiment, activation_checkpointing=False)
    assert tell.traces(parts) == tell.traces(whole)


@pytest.mark.parametrize("name", MODELS)
def test_a_share_of_the_blocks_gives_the_same_bits(lab: Lab, tell: Tell, name: str) -> None:
    if name == "transformers" and find_spec("transformers") is None:
        pytest.skip("needs transformers (pip install 'flatout[language]')")
    kept = lab.run(MODELS[name]())
    assert tell.traces(lab.run(MODELS[name](), activation_checkpointing=0.5)) == tell.traces(kept)


@pytest.mark.parametrize(
    ("share", "num_blocks"), [(0.0, 0), (0.1, 1), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)]
)
def test_a_share_is_of_the_first_blocks(share: float, num_blocks: int) -> None:
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)])
    checkpointing = ActivationCheckpointing(blocks, share=share)
    assert ["forward" in vars(block) for block in blocks] == [n < num_blocks for n in range(4)]
    assert checkpointing.num_blocks == num_blocks
    checkpointing.close()
    assert not any("forward" in vars(block) for block in blocks)


def test_a_share_of_a_models_own_blocks() -> None:
    if find_spec("transformers") is None:
        pytest.skip("needs transformers (pip install 'flatout[language]')")
    model = gpt3_small.experiment(size="tiny").model()
    checkpointing = ActivationCheckpointing(model, share=0.5)
    layers = [m for m in model.modules() if type(m).__name__ == "GPT2Block"]
    assert [layer.gradient_checkpointing for layer in layers] == [
        n < len(layers) / 2 for n in range(len(layers))
    ]
    assert checkpointing.num_blocks == -(-len(layers) // 2)
    checkpointing.close()
    assert not any(layer.gradient_checkpointing for layer in layers)


# Memory.


def kept_bytes(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> int:
    """What a forward pass keeps for the backward pass, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(model).backward()
    return sum(kept.values())


def test_less_is_kept_for_the_backward_pass() -> None:
    windows = torch.randint(65, (4, 65), generator=torch.Generator())

    def run(model: nn.Module) -> Tensor:
        return charlm.loss(model, windows)

    model = charlm.CharGPT(dataclasses.replace(charlm.SIZES["tiny"], dropout=0.2))
    everything = kept_bytes(model, run)
    checkpointing = ActivationCheckpointing(model)
    blocks_inputs = kept_bytes(model, run)
    checkpointing.close()
    # Measured: 12,934,692 and 859,684 bytes with these four blocks.
    assert blocks_inputs < everything / 10
    assert kept_bytes(model, run) == everything


# Which blocks.


def names(model: nn.Module) -> list[str]:
    return list(repeated_blocks(model).usable)


def test_blocks_are_the_outermost_lists_of_one_class() -> None:
    inner = nn.Sequential(*[nn.Sequential(Residual(layer_norm)) for _ in range(2)])
    assert names(nn.Sequential(inner, nn.Linear(6, 3))) == ["0.0", "0.1"]
    assert names(nn.Sequential(*[nn.Sequential(inner) for _ in range(2)])) == ["0", "1"]
    assert names(charlm.CharGPT(charlm.SIZES["tiny"])) == [f"blocks.{n}" for n in range(4)]
    assert names(vit_mnist.ViT(3, 64)) == [f"layers.{n}" for n in range(3)]


def test_what_saves_nothing_is_no_block() -> None:
    # A lone block, layers that keep only their input, and classes that differ.
    assert names(nn.Sequential(Residual(layer_norm), nn.Linear(6, 3))) == []
    assert names(nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])) == []
    assert names(nn.ModuleDict({"a": Residual(layer_norm), "b": Residual(layer_norm)})) == []


def test_blocks_with_running_statistics_are_left_out() -> None:
    mixed = repeated_blocks(Deep([layer_norm, batch_norm, layer_norm]))
    assert list(mixed.usable) == ["blocks.0", "blocks.2"]
    assert mixed.with_running_statistics == ("blocks.1",)
    resnet = repeated_blocks(resnet50.ResNet(resnet50.SIZES["tiny"]))
    assert not resnet.usable


def test_blocks_left_out_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    def mixed() -> nn.Module:
        return Deep([layer_norm, batch_norm, layer_norm])

    kept = lab.run(plain(model=mixed))
    again = lab.run(plain(model=mixed), activation_checkpointing=True)
    assert tell.traces(again) == tell.traces(kept)
    [finding] = tell.findings(again)
    assert finding.rule == "blocks-left-out" and "1 of 3" in finding.problem


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Deep([batch_norm] * 2), "2 repeated blocks hold norms"),
        (lambda: nn.Linear(6, 3), "no repeated blocks"),
    ],
    ids=["statistics", "no blocks"],
)
def test_model_without_a_block_is_refused(lab: Lab, plain: Plain, model: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        lab.run(plain(model=model), activation_checkpointing=True)
    assert caught.value.rule == "recipe-does-not-fit" and words in (caught.value.because or "")


class Counting(nn.Module):
    """Moves a buffer in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, hidden: Tensor) -> Tensor:
        self.mean.lerp_(hidden.detach().mean(dim=0), 0.1)
        changed: Tensor = self.layers(hidden - self.mean)
        return changed


def test_block_that_changes_a_buffer_is_refused(lab: Lab, plain: Plain) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Sequential(Counting(), Counting()), nn.Linear(6, 3))

    with pytest.raises(FlatoutError) as caught:
        lab.run(plain(model=model), activation_checkpointing=True)
    assert caught.value.rule == "block-changes-its-buffers"
    assert "`0.0`" in caught.value.problem and "`mean`" in (caught.value.because or "")
    lab.run(plain(model=model))


def test_blocks_that_are_not_called_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        inputs, labels = batch
        for block in model.blocks:
            inputs = block.inside(inputs)
        return nn.functional.cross_entropy(model.head(inputs), labels)

    folder = lab.run(plain(model=deep, loss=loss), activation_checkpointing=True)
    [finding] = tell.findings(folder)
    assert finding.rule == "setting-without-effect"


# The model is left as it was.


def test_model_is_left_as_it_was(lab: Lab, plain: Plain) -> None:
    trained = lab.go_on(lab.new(activation_checkpointing=True), plain(model=deep))
    assert list(trained.state_dict()) == list(deep().state_dict())
    assert not any("forward" in vars(module) for module in trained.modules())
    pickle.dumps(trained)


def test_forward_that_the_person_has_replaced_is_kept() -> None:
    model = Deep([layer_norm] * 2)
    calls = []

    def counted(hidden: Tensor, *, scale: float) -> Tensor:
        calls.append(scale)
        return hidden * scale

    model.blocks[0].forward = counted
    checkpointing = ActivationCheckpointing(model)
    seed_generators(0)
    model(torch.randn(2, 6)).sum().backward()
    checkpointing.close()
    assert model.blocks[0].forward is counted and calls == [0.5]
