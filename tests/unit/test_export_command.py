"""`flatout export` from outside, with an engine that only says lines."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest


@pytest.fixture
def trained(cli: Any, trained_once: Any) -> Any:
    """A command line with a run, `one`."""
    shutil.copytree(trained_once.runs / "one", cli.runs / "one")
    return cli


def test_export_says_what_was_written_and_how_it_was_checked(trained: Any) -> None:
    done = trained.run("export", "one", "--to", "onnx", "--opset", "20")
    assert done.returncode == 0, done.stderr
    path, takes, gives, note, checked, following = done.stdout.splitlines()
    assert path.startswith("written   ") and path.endswith("one.onnx (2.0 KiB, fp32, opset 20)")
    assert takes == "takes     input float32 [n, 1, any]"
    assert gives == "gives     prediction float32 [n, 10]"
    assert note == "note      none"
    assert checked == (
        "checked   same answers as the run: 64 validation samples in batches of 1, 3, 64, "
        "differing by 1.2e-05 of the largest number (0.0001 allowed)"
    )
    assert following.startswith("next      flatout serve ")


def test_export_of_int8_says_what_it_costs(trained: Any) -> None:
    done = trained.run("export", "one", "--to", "onnx", "--int8")
    assert "accuracy 0.9800 before, 0.9750 in int8 (64 validation samples" in done.stdout


def test_export_as_json(trained: Any) -> None:
    done = trained.run("export", "one", "--to", "safetensors", "--json")
    document = json.loads(done.stdout)
    assert document["form"] == "safetensors" and document["facts"]["run"] == "one"
    assert document["path"].endswith("one.safetensors")


def test_export_that_is_refused_says_why(trained: Any) -> None:
    done = trained.run("export", "one", "--to", "pt2", "--output", "raise.pt2", "--json")
    assert done.returncode == 2 and "explain model-not-exportable" in done.stderr
    assert json.loads(done.stdout)["error"]["rule"] == "model-not-exportable"


def test_export_whose_process_dies(trained: Any) -> None:
    done = trained.run("export", "one", "--to", "pt2", "--output", "die.pt2")
    assert done.returncode == 1 and "explain export-died" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "pt2", "--int8"), "--int8 cannot be combined with --to pt2"),
        (("--to", "hf", "--opset", "18"), "--opset cannot be combined with --to hf"),
        (("--to", "onnx", "--output", "model.bin"), "unknown-output-format"),
        (("--to", "onnx", "--output", "nowhere/model.onnx"), "file-not-accessible"),
        (("--to", "onnx", "--output", "there.onnx"), "file-exists"),
        ((), "--to"),
    ],
)
def test_wrong_words_are_refused(trained: Any, words: tuple[str, ...], said: str) -> None:
    (trained.folder / "there.onnx").touch()
    done = trained.run("export", "one", *words)
    assert done.returncode == 2 and said in done.stderr
