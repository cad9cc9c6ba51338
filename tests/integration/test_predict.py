"""What is said of inputs by the built-ins' kept weights, and what is written."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch
from PIL import Image, ImageDraw

from flatout.engine import load
from flatout.engine.predict.worker import ReplyWriter, handle
from flatout.errors import UsageError
from flatout.experiments import charlm
from flatout.experiments._pictures import decode_pictures, read_idx, read_pictures
from flatout.experiments.digits import read_digits
from flatout.schema.predict_protocol import (
    AnyReply,
    Counted,
    Evaluated,
    Loaded,
    Noted,
    Predicted,
    PredictJob,
    Refused,
    Written,
)
from flatout.system.json_process import JsonLines
from flatout.system.store import datasets
from flatout.system.store.run_folder import RunFolder


def ask(folder: RunFolder, *inputs: object, **fields: Any) -> list[AnyReply]:
    """Everything that is said of the inputs, in order."""
    stream = io.BytesIO()
    question = {"verb": "predict", "folder": str(folder.path), "inputs": tuple(map(str, inputs))}
    handle(PredictJob(**(question | fields)), ReplyWriter(JsonLines(stream)))
    decoder = msgspec.json.Decoder(AnyReply)
    said = [decoder.decode(line) for line in stream.getvalue().splitlines()]
    return [one for one in said if not isinstance(one, Counted)]


def of(kind: type, said: list[AnyReply]) -> list[Any]:
    return [one for one in said if isinstance(one, kind)]


@pytest.fixture
def digits(run_of: Callable[..., RunFolder]) -> RunFolder:
    """Ten classes, told apart well enough."""
    return run_of(name="digits", parameters={"epochs": 2})


def draw_one(path: Path, *, ink: int, paper: int, size: int = 64) -> None:
    """A vertical stroke, which is the digit 1 to anybody."""
    image = Image.new("L", (size, size), paper)
    ImageDraw.Draw(image).line([(size // 2, size // 8), (size // 2, size * 7 // 8)], ink, size // 6)
    image.save(path)


def test_images_become_labels_and_those_that_cannot_be_read_are_named(
    digits: RunFolder, tmp_path: Path
) -> None:
    draw_one(tmp_path / "light.png", ink=0, paper=255)
    draw_one(tmp_path / "dark.png", ink=255, paper=0)
    (tmp_path / "broken.png").write_bytes((tmp_path / "dark.png").read_bytes()[:50])
    names = ["light.png", "broken.png", "dark.png", "missing.png"]
    said = ask(digits, *(tmp_path / name for name in names), top=2)
    assert [type(one) for one in said] == [Loaded, Predicted, Refused, Predicted, Refused]
    _, light, broken, dark, missing = said
    assert light.values == dark.values
    assert list(light.values) == ["label", "probability", "label_2", "probability_2"]
    assert light.values["probability"] > light.values["probability_2"]
    assert "broken.png`" in broken.finding.problem
    assert "no such file" in missing.finding.problem


def test_a_validation_image_as_png_is_what_it_was(tmp_path: Path) -> None:
    images, _ = read_digits(is_test=True)
    pixels = (images[0, 0] * 255).round().byte()
    Image.frombytes("L", (8, 8), bytes(pixels.flatten().tolist())).save(tmp_path / "a.png")
    torch.testing.assert_close(
        read_pictures(str(tmp_path / "a.png"), 8), images[:1], atol=0.002, rtol=0
    )


def test_a_wide_picture_keeps_its_proportions(tmp_path: Path) -> None:
    Image.new("L", (40, 10), 255).save(tmp_path / "a.png")
    picture = read_pictures(str(tmp_path / "a.png"), 8)[0, 0]
    # White all over: paper. Inverted, nothing is left of it.
    assert picture.sum() == 0
    draw_one(tmp_path / "b.png", ink=255, paper=0, size=8)
    assert read_pictures(str(tmp_path / "b.png"), 8)[0, 0, :, 0].sum() == 0


def test_rows_of_an_array_are_numbered_and_the_same_in_batches_of_any_size(
    digits: RunFolder, tmp_path: Path
) -> None:
    images, labels = read_digits(is_test=True)
    numpy.save(tmp_path / "x.npy", images.numpy())
    outputs = {}
    for size in (1, 64):
        said = ask(digits, tmp_path / "x.npy", batch_size=size, output=str(tmp_path / "y.csv"))
        assert of(Written, said)[0].path == str(tmp_path / "y.csv")
        with open(tmp_path / "y.csv", newline="") as file:
            outputs[size] = list(csv.DictReader(file))
    found = [int(row["label"]) for row in outputs[64]]
    assert [row["row"] for row in outputs[64]] == list(map(str, range(360)))
    assert [row["label"] for row in outputs[1]] == [row["label"] for row in outputs[64]]
    right = sum(a == b for a, b in zip(found, labels.tolist(), strict=True))
    recorded = load(digits.path).recorded["accuracy"]
    assert right / 360 == pytest.approx(recorded, abs=1e-6)


def test_an_array_is_written_as_an_array(digits: RunFolder, tmp_path: Path) -> None:
    images, _ = read_digits(is_test=True)
    numpy.save(tmp_path / "x.npy", images[:10].numpy())
    ask(digits, tmp_path / "x.npy", batch_size=4, output=str(tmp_path / "y.npy"))
    written = torch.from_numpy(numpy.load(tmp_path / "y.npy"))
    torch.testing.assert_close(written, load(digits.path).predict(images[:10]))


def test_without_a_single_prediction_no_array_is_reported_of(
    digits: RunFolder, tmp_path: Path
) -> None:
    output = tmp_path / "y.npy"
    said = ask(digits, tmp_path / "missing.npy", output=str(output))
    assert (of(Written, said), output.exists()) == ([], False)


def test_an_input_is_never_written_over(digits: RunFolder, tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", numpy.zeros((2, 8, 8), "float32"))
    with pytest.raises(UsageError) as refused:
        ask(digits, tmp_path / "x.npy", output=str(tmp_path / "x.npy"))
    assert refused.value.rule == "output-is-an-input"


def test_samples_that_do_not_go_through_the_model(digits: RunFolder, tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.zeros((2, 5, 8), "float32"))
    [refused] = of(Refused, ask(digits, tmp_path / "a.npy"))
    assert "not pictures of 8 x 8" in refused.finding.problem


def test_evaluate_tells_the_confusion_too(digits: RunFolder) -> None:
    loaded, evaluated = ask(digits, verb="evaluate")
    assert isinstance(loaded, Loaded) and isinstance(evaluated, Evaluated)
    assert evaluated.metrics == loaded.recorded and not evaluated.differences
    [confusion] = evaluated.classified
    assert sum(count for _, _, count in confusion.counts) == 360


def test_evaluate_names_what_is_other_than_in_the_run(digits: RunFolder) -> None:
    _, evaluated = ask(
        digits, verb="evaluate", fixed={"precision": "bf16"}, parameters={"lr": 1.0}, batch_size=9
    )
    assert evaluated.differences == ("precision=bf16", "lr=1.0", "batch_size=9")


def test_a_language_model_goes_on_with_each_prompt(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    if datasets.find("tinyshakespeare") is None:
        pytest.skip("needs the data set tinyshakespeare (flatout data get tinyshakespeare)")
    sizes = {"size": "tiny", "steps": 3, "samples": 40, "batch_size": 4}
    folder = run_of(name="charlm", parameters=sizes)
    (tmp_path / "prompt.txt").write_text("JULIET:\n")
    inputs = ["ROMEO:", tmp_path / "prompt.txt", "naïve"]
    said = ask(folder, *inputs)
    texts = [one.values["prediction"] for one in of(Predicted, said)]
    assert [text[:8] for text in texts][1] == "JULIET:\n" and texts[0].startswith("ROMEO:")
    assert [len(text) for text in texts] == [charlm.NUM_WRITTEN + 6, charlm.NUM_WRITTEN + 8]
    alone = of(Predicted, ask(folder, *inputs, batch_size=1))
    assert [one.values["prediction"] for one in alone] == texts
    [refused] = of(Refused, said)
    assert "does not have 'ï'" in refused.finding.problem


def test_the_alphabet_is_that_of_the_text() -> None:
    if datasets.find("tinyshakespeare") is None:
        pytest.skip("needs the data set tinyshakespeare (flatout data get tinyshakespeare)")
    text = (datasets.require("tinyshakespeare") / "input.txt").read_bytes()
    assert bytes(sorted(set(text))) == charlm.ALPHABET


def test_rows_of_a_table_become_numbers(run_of: Callable[..., RunFolder], tmp_path: Path) -> None:
    folder = run_of(name="mlp", parameters={"rows": 160, "epochs": 1})
    lines = [",".join(f"x{number}" for number in range(20)), ",".join(["0.5"] * 20)]
    (tmp_path / "a.csv").write_text("\n".join([*lines, lines[1], ""]))
    (tmp_path / "b.csv").write_text("1,2,3\n")
    said = ask(folder, tmp_path / "a.csv", tmp_path / "b.csv", top=3)
    first, second = of(Predicted, said)
    assert (first.row, second.row) == (0, 1)
    assert isinstance(first.values["prediction"], float) and first.values == second.values
    assert "not of 20" in of(Refused, said)[0].finding.problem
    assert [one.finding.rule for one in of(Noted, said)] == ["option-without-effect"]


def test_pictures_are_written_to_a_folder(run_of: Callable[..., RunFolder], tmp_path: Path) -> None:
    if datasets.find("mnist") is None:
        pytest.skip("needs the data set mnist (flatout data get mnist)")
    folder = run_of(
        name="unet-denoise", parameters={"size": "tiny", "samples": 8, "batch_size": 4, "epochs": 1}
    )
    draw_one(tmp_path / "one.png", ink=255, paper=0)
    with pytest.raises(UsageError) as refused:
        ask(folder, tmp_path / "one.png")
    assert refused.value.rule == "pictures-need-a-folder"
    ask(folder, tmp_path / "one.png", output=str(tmp_path / "clean"))
    with Image.open(tmp_path / "clean" / "one.png") as image:
        assert (image.size, image.mode) == ((28, 28), "L")
    row = json.loads((tmp_path / "clean" / "predictions.jsonl").read_text())
    assert row == {"input": str(tmp_path / "one.png"), "row": None, "prediction": "one.png"}
    with pytest.raises(UsageError) as refused:
        ask(folder, tmp_path / "one.png", output=str(tmp_path))
    assert refused.value.rule == "output-is-an-input"


def test_error_for_a_file_that_is_not_an_image_has_no_memory_address() -> None:
    with pytest.raises(ValueError, match="^it is not an image file$"):
        decode_pictures(b"\x93NUMPY", 8)


def test_idx_files_are_read_with_and_without_gzip(tmp_path: Path) -> None:
    content = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 784)
    (tmp_path / "t-idx3-ubyte").write_bytes(content)
    assert read_pictures(str(tmp_path / "t-idx3-ubyte"), 28).shape == (2, 1, 28, 28)
    (tmp_path / "t-idx3-ubyte").write_bytes(b"no idx")
    with pytest.raises(ValueError, match="not an IDX file"):
        read_idx(tmp_path / "t-idx3-ubyte")


def test_the_whole_way_from_the_command_line(digits: RunFolder, tmp_path: Path) -> None:
    draw_one(tmp_path / "a.png", ink=0, paper=255)
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "predict", digits.path, "-", "--json",
         "--python", sys.executable],
        input=f"{tmp_path / 'a.png'}\nmissing.png\n", capture_output=True, text=True, timeout=120,
        env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    first, second = json.loads(done.stdout)["predictions"]
    assert first["label"] in "0123456789"
    assert second["error"]["rule"] == "input-not-readable"
