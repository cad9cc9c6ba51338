"""Models of the transformers library in an experiment of one's own."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from flatout.engine import Experiment
from flatout.engine.runtime.rng import mixed_seed, seed_generators
from flatout.engine.session.session import build

if TYPE_CHECKING:
    from conftest import Lab, Tell

transformers = pytest.importorskip(
    "transformers", reason="needs transformers (pip install 'flatout[language]')"
)
_SPEC = importlib.util.spec_from_file_location(
    "huggingface_example", Path(__file__).parents[2] / "examples" / "huggingface.py"
)
assert _SPEC is not None and _SPEC.loader is not None
example = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(example)


def short(**parameters: Any) -> Experiment:
    """The example on fewer sentences: 10 steps."""
    return dataclasses.replace(
        example.experiment(epochs=2, **parameters),
        train_data=lambda: example.sentences(160, seed=1),
        validation_data=lambda: example.sentences(40, seed=2),
    )


def tied_model() -> nn.Module:
    """Input and output embeddings are one tensor."""
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=24, vocab_size=100, bos_token_id=1,
        eos_token_id=1, use_cache=False,
    )  # fmt: skip
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def next_words(model: nn.Module, batch: dict[str, Any]) -> Any:
    words, mask = batch["input_ids"], batch["attention_mask"]
    labels = words.masked_fill(mask == 0, -100)
    return model(input_ids=words, attention_mask=mask, labels=labels).loss


def short_tied() -> Experiment:
    return dataclasses.replace(
        short(),
        model=tied_model,
        optimizer=lambda named: torch.optim.AdamW([p for _, p in named], lr=1e-3),
        loss=next_words,
        metrics=None,
        best="loss",
    )


@pytest.mark.parametrize("make", [short, short_tied])
def test_run_of_a_transformers_model_goes_on_exactly(lab: Lab, tell: Tell, make: Any) -> None:
    whole, parts = lab.run(make()), lab.new()
    lab.go_on(parts, make(), stop_after=3)
    lab.crash(parts, make(), 4)
    lab.go_on(parts, make())
    assert tell.traces(parts) == tell.traces(whole)


def test_run_equals_a_plain_loop(lab: Lab) -> None:
    experiment = dataclasses.replace(short(), shuffle=False, epochs=1)
    trained = lab.go_on(lab.new(optimizer_implementation="own"), experiment)
    built = build(experiment, 0, "cpu")
    model, optimizer = built.model.train(), built.optimizers.given
    schedule = experiment.schedule(optimizer, total_steps=built.schedule_steps)
    data = experiment.train_data()
    # Dropout draws what it draws in the run.
    seed_generators(mixed_seed(0, "training"))
    for begin in range(0, 160, 32):
        batch = {name: column[begin : begin + 32] for name, column in data.items()}
        model(**batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    for one, two in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("make", [short, short_tied])
def test_kept_weights_are_loaded_by_the_library(lab: Lab, tmp_path: Path, make: Any) -> None:
    folder = lab.run(make())
    model = build(make(), 1, "cpu").model
    model.load_state_dict(load_file(folder.weights), strict=make is short)
    if make is short_tied:
        model.tie_weights()
    place = tmp_path / "exported"
    model.config.save_pretrained(place)
    shutil.copy(folder.weights, place / "model.safetensors")
    loaded = type(model).from_pretrained(place)
    for one, two in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_pretrained_model_is_taken_from_a_folder(lab: Lab, tell: Tell, tmp_path: Path) -> None:
    torch.manual_seed(3)
    given = example.model(None)
    given.half().save_pretrained(tmp_path / "mine")
    experiment = short(pretrained=str(tmp_path / "mine"), lr=0.0)
    folder = lab.run(experiment)
    state = tell.state(folder)["model"]
    for name, value in given.state_dict().items():
        if value.is_floating_point():
            assert state[name].dtype == torch.float32
            assert torch.equal(state[name], value.float())
    whole, parts = lab.run(short(pretrained=str(tmp_path / "mine"))), lab.new()
    lab.go_on(parts, short(pretrained=str(tmp_path / "mine")), stop_after=4)
    lab.go_on(parts, short(pretrained=str(tmp_path / "mine")))
    assert tell.traces(parts) == tell.traces(whole)
