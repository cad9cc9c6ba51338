"""Every built-in at its smallest: trains 20 steps, and goes on exactly after it was stopped."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from flatout.engine import Experiment, train
from flatout.engine.runtime.rng import seed_generators
from flatout.engine.session.load_experiment import load_experiment
from flatout.errors import UsageError
from flatout.experiments import (
    bert_large,
    charlm,
    gpt3_small,
    mnist_large,
    resnet50,
    unet_denoise,
)
from flatout.runs.experiment_source import built_in_names
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run_lines import Stopped
from flatout.system.store import datasets
from flatout.system.store.run_folder import read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

# Parameters that make 20 steps, as `-s` would set them.
TWO_EPOCHS = {"samples": 40, "batch_size": 4, "epochs": 2}
TWENTY_STEPS = {"samples": 40, "batch_size": 4, "steps": 20}
SHORT: dict[str, dict[str, Any]] = {
    "bert-large": TWENTY_STEPS,
    "charlm": TWENTY_STEPS,
    "digits": {"batch_size": 144, "epochs": 2},
    "gpt3-small": TWENTY_STEPS,
    "lstm-text": TWENTY_STEPS,
    "mlp": {"rows": 160, "batch_size": 16, "epochs": 2},
    "mnist": TWO_EPOCHS,
    "mnist-large": TWO_EPOCHS,
    "resnet50": TWO_EPOCHS,
    "unet-denoise": TWO_EPOCHS,
    "vit-mnist": TWO_EPOCHS,
}
OF_THE_TRUNK = ("digits", "mlp", "mnist")
DATA = {
    "mnist": ("mnist", "mnist-large", "unet-denoise", "vit-mnist"),
    "tinyshakespeare": ("bert-large", "charlm", "gpt3-small", "lstm-text"),
}
OF_TRANSFORMERS = ("bert-large", "gpt3-small")


def need_what_it_needs(name: str) -> None:
    """Skips, and says all that is lacking, where this built-in cannot be trained."""
    lacking = [
        f"the data set {data} (flatout data get {data})"
        for data, users in DATA.items()
        if name in users and datasets.find(data) is None
    ]
    if name in OF_TRANSFORMERS and find_spec("transformers") is None:
        lacking.append("transformers (pip install 'flatout[language]')")
    if lacking:
        pytest.skip(f"{name} needs {' and '.join(lacking)}")


def short(name: str, **parameters: Any) -> Experiment:
    size = {} if name in OF_THE_TRUNK else {"size": "tiny"}
    spec = ExperimentSpec(name=name, parameters={**SHORT[name], **size, **parameters})
    return load_experiment(spec)


def test_every_built_in_is_tried_here() -> None:
    assert sorted(SHORT) == built_in_names()


@pytest.mark.parametrize("name", SHORT)
def test_built_in_goes_on_exactly_when_it_was_stopped(
    lab: Lab, tell: type[Tell], name: str
) -> None:
    need_what_it_needs(name)
    lab.use["loader_workers"] = 0
    whole = lab.run(short(name))
    stopped = lab.new()
    lab.go_on(stopped, short(name), stop_after=10)
    assert tell.events(stopped, Stopped)[-1].step == 10
    lab.go_on(stopped, short(name))
    run = read_run(whole)
    assert (run.status, run.step) == ("finished", 20)
    assert all(value is not None for value in run.validations[-1].metrics.values())
    assert tell.traces(whole) == tell.traces(stopped)


@pytest.mark.parametrize("name", ["resnet50", "lstm-text"])
def test_loss_of_a_built_in_falls(lab: Lab, name: str) -> None:
    need_what_it_needs(name)
    use = {"num_threads": 1}
    first, last = (
        train(short(name, **length), use=use, is_quiet=True).metrics["loss"]
        for length in SHORTER_AND_LONGER[name]
    )
    assert first is not None and last is not None
    assert last < 0.9 * first


PICTURES = {"samples": 160, "batch_size": 16, "lr": 0.4}
WINDOWS = {"samples": 600, "batch_size": 16}
SHORTER_AND_LONGER: dict[str, list[dict[str, Any]]] = {
    "resnet50": [{**PICTURES, "epochs": 1}, {**PICTURES, "epochs": 6}],
    "lstm-text": [{**WINDOWS, "steps": 1}, {**WINDOWS, "steps": 60}],
}


def test_mnist_large_has_the_shapes_of_the_benchmark() -> None:
    with torch.device("meta"):
        model = mnist_large.build_model(128)
        linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        assert [(one.in_features, one.out_features) for one in linear] == [
            (15488, 7744), (7744, 10),
        ]  # fmt: skip
        assert model(torch.empty(2, 1, 28, 28)).shape == (2, 10)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet50_is_the_published_network() -> None:
    with torch.device("meta"):
        model = resnet50.ResNet(resnet50.SIZES["full"])
        assert num_parameters(model) == 25_557_032
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1_000)
    strides = [
        layer.stride[0]
        for block in model.features
        if isinstance(block, resnet50.Bottleneck)
        for layer in block.convolutions
        if isinstance(layer, nn.Conv2d)
    ]
    # Version 1.5: a block's 3 x 3 convolution has the stride, not its first.
    assert set(strides[0::3]) == {1}
    assert sorted(strides[1::3]) == [1] * 13 + [2] * 3


def test_norms_and_biases_do_not_decay() -> None:
    model = resnet50.ResNet(resnet50.SIZES["tiny"])
    decayed, others = short("resnet50").optimizer(model.named_parameters()).param_groups
    layers = list(model.modules())
    weights = [layer.weight for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert {id(one) for one in decayed["params"]} == {id(weight) for weight in weights}
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))
    assert (decayed["weight_decay"], others["weight_decay"]) == (1e-4, 0.0)


def test_language_models_are_the_published_networks() -> None:
    need_what_it_needs("bert-large")
    with torch.device("meta"):
        assert num_parameters(gpt3_small.build_model(gpt3_small.SIZES["full"])) == 124_439_808
        assert num_parameters(bert_large.build_model(bert_large.SIZES["full"])) == 335_174_458


def test_language_model_when_transformers_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError) as caught:
        gpt3_small.build_model(gpt3_small.SIZES["tiny"])
    assert caught.value.rule == "transformers-not-installed"
    assert caught.value.fix.endswith("-m pip install transformers")


def test_charlm_reads_the_text_it_is_given() -> None:
    need_what_it_needs("charlm")
    text = charlm.read_text()
    assert len(text) == 1_115_394
    assert int(text.max()) == charlm.NUM_CHARACTERS - 1
    train_data = charlm.train_windows(64, None)
    validation = charlm.validation_windows(64, None)
    # Each character of the last tenth is predicted once, but for what fills no window.
    assert validation.shape == (1742, 65)
    assert train_data[-1, -1] == text[len(text) * 9 // 10 - 1]
    assert torch.equal(validation[0, :-1], text[len(text) * 9 // 10 :][:64])
    assert torch.equal(validation[1, 0], validation[0, -1])


def test_charlm_does_not_see_the_future() -> None:
    seed_generators(0)
    model = charlm.CharGPT(charlm.SIZES["tiny"]).eval()
    text = torch.arange(64).unsqueeze(0)
    changed = text.clone()
    changed[0, 40] = 0
    is_equal = (model(text) == model(changed)).all(dim=2)[0]
    assert is_equal[:40].all()
    assert not is_equal[40:].any()


def test_bert_large_asks_for_masked_characters_alone() -> None:
    need_what_it_needs("charlm")
    speeches = bert_large.MaskedSpeeches(bert_large.read_speeches(64, is_test=False))
    seed_generators(0)
    samples = [speeches[index] for index in range(200)]
    tokens = torch.stack([sample["tokens"] for sample in samples])
    targets = torch.stack([sample["targets"] for sample in samples])
    is_asked = targets != bert_large.NOT_ASKED
    assert torch.equal(is_asked, tokens == bert_large.MASK)
    assert torch.equal(torch.where(is_asked, targets, tokens), speeches.speeches[:200].long())
    num_bytes = int((speeches.speeches[:200] >= bert_large.FIRST_BYTE).sum())
    assert 0.13 < int(is_asked.sum()) / num_bytes < 0.17
    # Real lengths: some fill the whole sequence, some need padding.
    lengths = (tokens != bert_large.PAD).sum(dim=1)
    assert int(lengths.max()) == 64 and int(lengths.min()) < 32


def test_unet_denoise_tells_the_ratio_of_peak_to_noise() -> None:
    clean = torch.rand(3, 1, 28, 28)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    # 10 log10(1 / 0.25): what is told of a network that takes nothing away.
    assert unet_denoise.metrics(nn.Identity(), (noisy, clean))["psnr"].item() == pytest.approx(
        6.02, abs=0.1
    )
