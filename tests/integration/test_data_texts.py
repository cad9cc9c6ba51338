"""Texts: windows of bytes and characters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch import Tensor, nn

from flatout.engine import data
from flatout.engine.experiment import Experiment
from flatout.errors import UsageError

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]

LINES = "Größe und Weite 😀\n" * 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text(LINES, encoding="utf-8", newline="\n")
    return path


def test_text_is_windows_of_its_bytes(file: Path) -> None:
    text = data.text(file, context=16)
    content = LINES.encode()
    assert text.vocabulary is None and text[0].dtype == torch.uint8
    assert [bytes(window.tolist()) for window in text.tensors[:3]] == [
        content[0:17], content[16:33], content[32:49],
    ]  # fmt: skip
    # Each byte but the first is predicted once.
    assert len(text) == (len(content) - 1) // 16
    assert len(data.text(file, context=16, stride=1)) == len(content) - 16


def test_text_of_characters_has_a_vocabulary(file: Path) -> None:
    text = data.text(file, context=10, unit="characters")
    assert text.vocabulary == "".join(sorted(set(LINES)))
    window = "".join(text.vocabulary[number] for number in text[1].tolist())
    assert window == LINES[10:21]
    again = data.text(file, context=10, unit="characters", vocabulary="z" + text.vocabulary)
    assert torch.equal(again.tensors, text.tensors + 1)


def test_text_reads_characters_that_lie_across_pieces(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = data.text(file, context=10, unit="characters").tensors
    monkeypatch.setattr("flatout.engine.data.texts._PIECE_BYTES", 3)
    assert torch.equal(data.text(file, context=10, unit="characters").tensors, whole)


def test_text_with_many_characters_takes_larger_numbers(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 400))), encoding="utf-8")
    text = data.text(path, context=399, unit="characters")
    assert text[0].tolist() == list(range(400))


def test_text_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with open(path, "wb") as stream:
        stream.truncate(2**30)
    before = psutil.Process().memory_info().rss
    text = data.text(path, context=255)
    windows = text.tensors.index_select(0, torch.randint(len(text), (64,)))
    assert windows.shape == (64, 256)
    assert psutil.Process().memory_info().rss - before < 2**28


def test_split_cuts_a_text_at_one_place(file: Path) -> None:
    text = data.text(file, context=16)
    train, validation = data.split(text, 0.25)
    assert len(train.content) == int(0.75 * len(text.content))
    assert torch.equal(torch.cat([train.content, validation.content]), text.content)
    assert train[0].tolist() == text[0].tolist()


def loss(model: nn.Module, windows: Tensor) -> Tensor:
    windows = windows.long()
    scores = model(windows[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def test_resumed_run_is_identical_on_a_text(lab: Lab, tell: Tell, plain: Plain, file: Path) -> None:
    experiment = plain(
        model=lambda: nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256)),
        loss=loss,
        train_data=lambda: data.split(data.text(file, context=16))[0],
        validation_data=lambda: data.split(data.text(file, context=16))[1],
    )
    whole = lab.run(experiment)
    parts = lab.new()
    lab.go_on(parts, experiment, stop_after=8)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "needs 5,001": ({"context": 5000}, "text-too-short"),
    "a window needs 701": ({"context": 700, "unit": "characters", "part": 5}, "text-too-short"),
    "context=0": ({"context": 0}, "bad-data-option"),
    "stride=0": ({"context": 4, "stride": 0}, "bad-data-option"),
    "unit=words": ({"context": 4, "unit": "words"}, "bad-data-option"),
    "'ö'": ({"context": 4, "unit": "characters", "vocabulary": "Gr"}, "unknown-category"),
}


@pytest.mark.parametrize("part", list(BAD))
def test_text_is_refused(file: Path, part: str) -> None:
    options, rule = BAD[part]
    # Fewer characters than bytes: too short is told of what is counted.
    if options.pop("part", None):
        file.write_text("ö" * 600, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        data.text(file, **options)
    assert caught.value.rule == rule and part in caught.value.problem


def test_text_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Größe".encode("latin-1") * 20)
    (tmp_path / "cut.txt").write_bytes("Größe".encode() * 20 + "ß".encode()[:1])
    (tmp_path / "empty.txt").write_bytes(b"")
    for name, rule in (
        ("latin.txt", "text-not-readable"),
        ("cut.txt", "text-not-readable"),
        ("empty.txt", "text-too-short"),
        (".", "text-not-readable"),
        ("none.txt", "data-path-not-found"),
    ):
        with pytest.raises(UsageError) as caught:
            data.text(tmp_path / name, context=4, unit="characters")
        assert caught.value.rule == rule
