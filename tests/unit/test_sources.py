from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from flatout.errors import UsageError
from flatout.runs import experiment_source
from flatout.runs.experiment_params import parse_parameters


def test_built_in_names_are_the_files_of_the_folder() -> None:
    assert {"digits", "mlp", "mnist"} <= set(experiment_source.built_in_names())


def test_a_built_in_whose_file_has_underscores_is_named_with_dashes() -> None:
    names = experiment_source.built_in_names()
    assert "mnist-large" in names
    assert not [name for name in names if "_" in name]
    assert "Adadelta" in experiment_source.find_source("mnist-large").text
    with pytest.raises(UsageError) as caught:
        experiment_source.find_source("mnist_large")
    assert "did you mean `mnist-large`?" in caught.value.fix


def test_find_source_of_every_built_in_has_an_experiment() -> None:
    for name in experiment_source.built_in_names():
        source = experiment_source.find_source(name)
        assert source.file is None
        assert parse_parameters(source.text, source.place) is not None


def test_find_source_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(b"\xef\xbb\xbfx = 1\n")
    source = experiment_source.find_source(str(path))
    assert (source.name, source.file, source.text) == ("mine", str(path), "x = 1\n")
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("text", "rule", "hint"),
    [
        ("digit", "unknown-experiment", "did you mean `digits`?"),
        ("mine", "unknown-experiment", "flatout train mine.py"),
        ("", "experiment-missing", "flatout train digits"),
        ("mnie.py", "experiment-file-not-found", "did you mean `mine.py`?"),
        ("mnist_large.py", "experiment-file-not-found", "flatout train mnist-large"),
        ("folder/notes.txt", "experiment-file-not-found", "give the path of a .py file"),
        ("folder/inner", "experiment-file-not-found", "give the path of a .py file"),
        ("latin.py", "experiment-not-text", "save it as UTF-8"),
    ],
)
def test_find_source_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, rule: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("x = 1")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "notes.txt").write_text("x")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    with pytest.raises(UsageError) as caught:
        experiment_source.find_source(text)
    assert caught.value.rule == rule
    assert hint in caught.value.fix


def test_find_weights_of_a_file_and_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    run = tmp_path / "runs" / "digits-0001"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="has no weights yet"):
        experiment_source.find_weights("digits-0001")
    weights = run / "weights.safetensors"
    weights.write_bytes(b"")
    assert experiment_source.find_weights("last") == str(weights)
    assert experiment_source.find_weights(str(weights)) == str(weights)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("no.safetensors", "file not found"), ("old.pt", "is not a safetensors file")],
)
def test_find_weights_when_it_cannot_be(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "old.pt").write_bytes(b"")
    with pytest.raises(UsageError, match=problem):
        experiment_source.find_weights(str(tmp_path / name))
