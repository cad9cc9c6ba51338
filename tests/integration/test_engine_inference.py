"""The kept weights of a run put to use: the same numbers as in training, and the run untouched."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import flatout
from flatout.engine import Experiment, load
from flatout.engine.data.tensor_files import read_tensors
from flatout.engine.predict.inputs import InputBatch, UnreadableInput, batches_of
from flatout.engine.predict.predictor import Predictor
from flatout.engine.predict.rows import rows_of
from flatout.engine.tensors.safetensors_file import SEAL
from flatout.engine.training.weights_file import init_weights
from flatout.errors import UsageError
from flatout.experiments.digits import read_digits
from flatout.system.store.run_folder import RunFolder

if TYPE_CHECKING:
    from conftest import Lab

FILE = """
import torch
from torch import nn

import flatout


def points(count):
    places = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
    return places, (places[:, 0] > 0).long()


def experiment(width: int = 4, count: int = 40) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        train_data=lambda: points(100),
        validation_data=lambda: points(count),
        batch_size=10,
        epochs=1,
        labels=["left", "right"],
    )
"""


@pytest.fixture
def run_of_file(run_of: Callable[..., RunFolder], tmp_path: Path) -> RunFolder:
    """A run of an experiment file that lies in the test's folder."""
    file = tmp_path / f"places_{tmp_path.name}.py"
    file.write_text(FILE)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return run_of(name=file.stem, file=str(file), sha256=digest, parameters={"width": 6})


def contents(folder: RunFolder) -> dict[str, tuple[bytes, int]]:
    """Every file of a run with its content and time."""
    files = [path for path in sorted(folder.path.rglob("*")) if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_predictions_of_the_validation_images_have_the_recorded_accuracy(
    run_of: Callable[..., RunFolder],
) -> None:
    predictor = load(run_of(name="digits", parameters={"epochs": 2}).path)
    images, labels = read_digits(is_test=True)
    found = {size: predictor.predict(images, batch_size=size) for size in (1, 7, 64, 1000)}
    right = (found[64].argmax(dim=1) == labels).double().mean().item()
    assert right == pytest.approx(predictor.recorded["accuracy"], abs=1e-6)
    assert found[64].sum(dim=1).allclose(torch.ones(len(images)))
    for other in found.values():
        torch.testing.assert_close(other, found[64], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "fixed",
    [{}, {"precision": "bf16"}, {"memory_format": "channels_last"}, {"micro_batch_size": 13}],
    ids=str,
)
def test_evaluate_gives_what_was_recorded_digit_for_digit(
    run_of: Callable[..., RunFolder], fixed: dict[str, Any]
) -> None:
    predictor = load(run_of(name="digits", parameters={"epochs": 1}, fixed=fixed).path)
    assert predictor.evaluate().metrics == predictor.recorded
    assert not predictor.differences


@pytest.mark.parametrize("ema", [None, 0.9])
def test_evaluate_uses_the_weights_that_were_kept(
    lab: Lab, plain: Callable[..., Experiment], ema: float | None
) -> None:
    experiment = plain(ema=ema)
    predictor = load(lab.run(experiment).path, experiment=experiment)
    assert predictor.evaluate().metrics == predictor.recorded


def test_evaluate_of_samples_that_draw_random_numbers(
    lab: Lab, plain: Callable[..., Experiment]
) -> None:
    experiment = plain(validation_data=Noisy)
    predictor = load(lab.run(experiment).path, experiment=experiment)
    before = torch.get_rng_state()
    assert predictor.evaluate().metrics == predictor.recorded
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(torch.utils.data.Dataset[Any]):
    """Points that are drawn when they are read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6), index % 3


def test_evaluate_without_validation_data_is_refused(
    lab: Lab, plain: Callable[..., Experiment]
) -> None:
    experiment = plain(validation_data=None)
    predictor = load(lab.run(experiment).path, experiment=experiment)
    assert predictor.recorded == {}
    with pytest.raises(UsageError) as refused:
        predictor.evaluate()
    assert refused.value.rule == "no-validation-data"


def test_another_precision_is_reported_as_a_difference(
    lab: Lab, plain: Callable[..., Experiment]
) -> None:
    experiment = plain()
    folder = lab.run(experiment)
    predictor = load(folder.path, use={"precision": "bf16"}, experiment=experiment)
    exact = load(folder.path, experiment=experiment).predict(torch.randn(30, 6))
    short = predictor.predict(torch.randn(30, 6))
    assert predictor.differences == ("precision=bf16",)
    assert short.dtype == exact.dtype == torch.float32


def test_a_run_that_trains_is_read_and_left_alone(
    lab: Lab, plain: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = plain(validate_every=2, epochs=4)
    folder = lab.copied_at(lab.new(), experiment, 20, tmp_path / "copy")
    if not folder.weights.exists():
        lab.go_on(folder, experiment, stop_after=8)
    before = contents(folder)
    predictor = load(folder.path, experiment=experiment)
    assert predictor.evaluate().metrics == predictor.recorded
    predictor.predict(torch.randn(3, 6))
    assert contents(folder) == before


def test_a_copied_folder_is_used_without_the_original_file(
    run_of_file: RunFolder, tmp_path: Path
) -> None:
    copy = RunFolder(tmp_path / "elsewhere")
    shutil.copytree(run_of_file.path, copy.path)
    here = load(run_of_file.path)
    file = next(tmp_path.glob("places_*.py"))
    file.write_text("raise RuntimeError('not this one')")
    there = load(copy.path)
    assert there.evaluate().metrics == here.recorded
    copy.experiment.write_text(FILE + "\n")
    with pytest.raises(UsageError) as refused:
        load(copy.path)
    assert refused.value.rule == "experiment-changed"
    copy.experiment.unlink()
    with pytest.raises(UsageError) as refused:
        load(copy.path)
    assert refused.value.rule == "experiment-not-kept"


def test_parameters_can_be_other_than_the_runs(run_of_file: RunFolder) -> None:
    predictor = load(run_of_file.path, parameters={"count": 7})
    assert predictor.evaluate().metrics != predictor.recorded
    with pytest.raises(UsageError) as refused:
        load(run_of_file.path, parameters={"width": 9})
    assert refused.value.rule == "weights-do-not-fit"


def test_weights_that_are_missing_or_damaged(run_of_file: RunFolder) -> None:
    for spoil, rule in (
        (lambda path: path.write_bytes(b"no weights"), "weights-not-readable"),
        (lambda path: path.unlink(), "weights-not-found"),
    ):
        spoil(run_of_file.weights)
        with pytest.raises(UsageError) as refused:
            load(run_of_file.path)
        assert refused.value.rule == rule


@pytest.mark.parametrize("place", [-100, b"weight", -1])
def test_one_flipped_bit_of_kept_weights_is_found(
    run_of_file: RunFolder, place: int | bytes
) -> None:
    content = bytearray(run_of_file.weights.read_bytes())
    content[content.index(place) if isinstance(place, bytes) else place] ^= 0x40
    run_of_file.weights.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        load(run_of_file.path)
    assert refused.value.rule in ("weights-damaged", "weights-not-readable")
    with pytest.raises(UsageError) as refused:
        init_weights(nn.Linear(4, 2), run_of_file.weights)
    assert refused.value.rule in ("weights-damaged", "weights-not-readable")


def test_weights_without_a_checksum_are_read(run_of_file: RunFolder) -> None:
    before = load(run_of_file.path).evaluate().metrics
    with safetensors.safe_open(run_of_file.weights, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert len(metadata.pop(SEAL)) == 64
    safetensors.torch.save_file(tensors, run_of_file.weights, metadata)
    assert load(run_of_file.path).evaluate().metrics == before


def test_a_run_of_a_notebook_needs_its_experiment(
    lab: Lab, plain: Callable[..., Experiment]
) -> None:
    experiment = plain(epochs=1)
    trained = flatout.engine.train(experiment, is_quiet=True)
    with pytest.raises(UsageError) as refused:
        load(trained.run.id)
    assert refused.value.rule == "experiment-not-kept"
    assert load(trained.run.id, experiment=experiment).evaluate().metrics == trained.metrics


def test_a_device_of_another_machine_is_replaced_and_reported(run_of_file: RunFolder) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU: cuda:7 must not be there")
    text = run_of_file.events.read_text()
    for here, there in (("cpu", "cuda:7"), ("fp32", "tf32")):
        text = text.replace(f'"value":"{here}"', f'"value":"{there}"')
    run_of_file.events.write_text(text)
    predictor = load(run_of_file.path)
    assert {finding.rule for finding in predictor.findings} == {"other-than-in-the-run"}
    assert predictor.recipe.precision.value == "fp32" and predictor.recipe.deterministic.value
    assert {"device=cpu", "precision=fp32"} <= set(predictor.differences)
    with pytest.raises(UsageError) as refused:
        load(run_of_file.path, use={"device": "cuda"})
    assert refused.value.rule == "device-not-here"


def test_a_setting_of_training_has_no_effect(run_of_file: RunFolder) -> None:
    predictor = load(run_of_file.path, use={"clip_norm": 1.0})
    assert [finding.rule for finding in predictor.findings] == ["setting-without-effect"]


@pytest.fixture
def predictor_with(lab: Lab, plain: Callable[..., Experiment]) -> Callable[..., Predictor]:
    """Trains the plain experiment, and loads it with other fields: `predict`, `labels`."""
    folder = lab.run(plain(epochs=1))
    return lambda **fields: load(folder.path, experiment=plain(**fields))


def test_a_model_is_called_by_the_nesting_of_its_input(
    predictor_with: Callable[..., Predictor],
) -> None:
    points = torch.randn(5, 6)
    plain = predictor_with()
    scores = plain.predict(points)
    assert torch.equal(plain.predict((points,)), scores)
    assert torch.equal(plain.predict({"input": points}), scores)
    labelled = predictor_with(labels=["a", "b", "c"])
    torch.testing.assert_close(labelled.predict(points), scores.softmax(dim=1))


def test_predict_of_the_experiment_is_used(predictor_with: Callable[..., Predictor]) -> None:
    def predict(model: nn.Module, batch: Tensor) -> dict[str, Any]:
        scores = model(batch)
        return {"class": scores.argmax(dim=1), "text": [f"{len(batch)} at once"] * len(batch)}

    found = predictor_with(predict=predict).predict(torch.randn(5, 6), batch_size=3)
    assert found["class"].shape == (5,)
    assert found["text"] == ["3 at once"] * 3 + ["2 at once"] * 2


@pytest.mark.parametrize(
    "predict",
    [
        lambda model, batch: model(batch).mean(),
        lambda model, batch: model(batch)[:-1],
        lambda model, batch: ["one"],
        lambda model, batch: None,
    ],
)
def test_a_prediction_must_have_an_entry_for_each_sample(
    predictor_with: Callable[..., Predictor], predict: Callable[..., Any]
) -> None:
    with pytest.raises(UsageError) as refused:
        predictor_with(predict=predict).predict(torch.randn(5, 6))
    assert refused.value.rule == "bad-prediction"


@pytest.mark.parametrize(
    ("found", "values"),
    [
        ([torch.tensor([1, 2]), numpy.float32(0.5)], [[1, 2], 0.5]),
        (
            [{"box": torch.zeros(1, 4)}, ("cut \ud83d", None)],
            [{"box": [[0.0] * 4]}, ["cut ?", None]],
        ),
        (torch.tensor([[0.5], [1.5]]), [0.5, 1.5]),
    ],
)
def test_values_of_a_sample_become_jsons_own(found: Any, values: list[Any]) -> None:
    reported = rows_of(found, 2, None, 1)
    assert [row["prediction"] for row in reported] == values
    msgspec.json.encode(reported)


@pytest.mark.parametrize(
    "found",
    [
        torch.tensor([0, 3]),
        torch.tensor([-1, 0]),
        torch.zeros(2, dtype=torch.complex64),
        [object(), object()],
    ],
)
def test_values_that_cannot_be_reported_are_refused(found: Any) -> None:
    with pytest.raises(UsageError) as refused:
        rows_of(found, 2, ["a", "b", "c"], 1)
    assert refused.value.rule == "bad-prediction"


def test_data_of_any_kind_is_predicted(predictor_with: Callable[..., Predictor]) -> None:
    predictor = predictor_with()
    points = torch.randn(20, 6)
    found = predictor.predict(points)
    samples = list(points)
    torch.testing.assert_close(predictor.predict(samples, batch_size=2), found)
    torch.testing.assert_close(predictor.predict(one for one in samples), found)
    with pytest.raises(ValueError, match="no samples"):
        predictor.predict(points[:0])


def test_batches_hold_samples_of_several_inputs_in_order() -> None:
    data = {"a": torch.zeros(5, 2), "b": torch.ones(1, 2), "c": torch.ones(1, 3),
            "e": [torch.ones(3), torch.ones(3), torch.ones(4)]}  # fmt: skip
    batches = list(batches_of(["a", "b", "c", "missing", "e"], data.__getitem__, 4, None))
    rows = [one.rows for one in batches if isinstance(one, InputBatch)]
    assert rows == [
        [("a", 0), ("a", 1), ("a", 2), ("a", 3)], [("a", 4), ("b", None)], [("c", None)],
        [("e", 0), ("e", 1)], [("e", 2)],
    ]  # fmt: skip
    assert isinstance(batches[3], UnreadableInput) and batches[3].text == "missing"
    assert batches[1].content.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_an_input_with_bad_news_is_named_and_the_others_are_read() -> None:
    rules = {"damaged": "table-not-readable", "later": "data-package-not-installed"}

    def read(text: str) -> Any:
        if text in rules:
            raise UsageError(rules[text], "it cannot be read.", fix="mend it")
        return torch.zeros(2, 3)

    found = list(batches_of(["damaged", "good"], read, 4, None))
    assert isinstance(found[0], UnreadableInput) and found[0].text == "damaged"
    assert isinstance(found[1], InputBatch) and len(found) == 2
    # That is the matter with all of them.
    with pytest.raises(UsageError):
        list(batches_of(["good", "later", "good"], read, 4, None))


def test_samples_that_cannot_be_put_together_leave_the_others() -> None:
    good, bad = [1.0, 2.0], [3.0, "text", 4.0, 5.0, 6.0]
    data: dict[str, Any] = {"a": good, "bad": bad, "c": good}
    found = list(batches_of(["a", "bad", "c"], data.__getitem__, 3, None))
    reported = [one.text if isinstance(one, UnreadableInput) else one.rows for one in found]
    assert reported == [[("a", 0), ("a", 1), ("bad", 0)], "bad", [("c", 0), ("c", 1)]]
    # As in training.
    assert isinstance(found[1], UnreadableInput) and isinstance(found[1].error, UsageError)

    def collate(samples: list[Any]) -> Any:
        return torch.tensor([float(one) for one in samples])

    found = list(batches_of(["a", "bad", "c"], data.__getitem__, 8, collate))
    reported = [one.text if isinstance(one, UnreadableInput) else one.rows for one in found]
    assert reported == [[("a", 0), ("a", 1)], "bad", [("c", 0)], [("c", 1)]]


def test_batches_of_a_stream_read_no_further_than_they_need() -> None:
    read: list[int] = []

    def stream(text: str) -> Any:
        for number in itertools.count():
            read.append(number)
            yield torch.zeros(2)

    next(batches_of(["endless"], stream, 8, None))
    assert len(read) <= 9


def test_tensors_are_read_where_the_experiment_says_nothing(tmp_path: Path) -> None:
    import numpy
    import safetensors.torch

    numpy.save(tmp_path / "a.npy", numpy.ones((3, 2)))
    safetensors.torch.save_file({"x": torch.ones(2, 2)}, tmp_path / "b.safetensors")
    safetensors.torch.save_file(
        {"x": torch.ones(2, 2), "y": torch.ones(2)}, tmp_path / "c.safetensors"
    )
    assert read_tensors(str(tmp_path / "a.npy")).dtype == torch.float32
    assert read_tensors(str(tmp_path / "b.safetensors")).shape == (2, 2)
    assert set(read_tensors(str(tmp_path / "c.safetensors"))) == {"x", "y"}
    with pytest.raises(UsageError) as refused:
        read_tensors("a.png")
    assert refused.value.rule == "input-not-readable"
    assert "`predict_data`" in str(refused.value.because) and ".safetensors" in refused.value.fix
