"""Preprocessing that is computed from the training data: kept with the run, and read from it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flatout.engine import data, load
from flatout.engine.data.fitted import fitted_for
from flatout.errors import RunFailed, UsageError
from flatout.system.store.run_folder import RunFolder

# A model over characters, whose vocabulary is that of the text; and a mean of inputs.
CHARACTERS = """
from pathlib import Path
import torch
from torch import nn
import flatout
from flatout.engine import data

TEXT = Path(__file__).parent / "book.txt"


@data.fitted
def vocabulary() -> str:
    return "".join(sorted(set(TEXT.read_text())))


@data.fitted
def shares() -> torch.Tensor:
    text = TEXT.read_text()
    return torch.tensor([text.count(one) / len(text) for one in vocabulary()])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Embedding(len(vocabulary()), 4)
        self.scores = nn.Linear(4, len(vocabulary()))

    def forward(self, seen):
        return self.scores(self.look(seen.long())) + shares()


def samples():
    return data.text(TEXT, context=4, unit="characters", vocabulary=vocabulary())


def read(text):
    return torch.tensor([[vocabulary().index(one) for one in text]])


def experiment(rate: float = 0.01):
    return flatout.Experiment(
        model=Net,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        loss=lambda model, batch: nn.functional.cross_entropy(
            model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].long().flatten()
        ),
        train_data=samples,
        steps=2,
        batch_size=2,
        PREDICT
    )
"""
READER = "predict_data=read, predict=lambda model, batch: model(batch)[:, -1].argmax(1),"


@pytest.fixture
def characters(
    run_of: Callable[..., RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunFolder:
    """A run of three steps whose file has no reader yet."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "book.txt").write_text("a dark and stormy night " * 9)
    name = f"characters_{abs(hash(tmp_path))}"
    file = tmp_path / f"{name}.py"
    file.write_text(CHARACTERS.replace("PREDICT", ""))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return run_of(name=name, file=str(file), sha256=sha256, parameters={"rate": 0.02})


def predict(folder: RunFolder, *words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "predict", str(folder.path), "and", "--json",
         "--python", sys.executable, *words],
        capture_output=True, text=True, timeout=120, env=os.environ, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_reader_added_later_is_given_by_its_file(characters: RunFolder, tmp_path: Path) -> None:
    code, document, _ = predict(characters)
    [refused] = document["predictions"]
    assert code == 1 and "--experiment FILE" in refused["error"]["fixes"][0]["text"]
    mended = tmp_path / "elsewhere" / "mended.py"
    mended.parent.mkdir()
    mended.write_text(CHARACTERS.replace("PREDICT", READER))
    # There is no book beside it: what is known of the text is the run's.
    code, document, said = predict(characters, "--experiment", str(mended))
    assert code == 0, said
    [reported] = document["predictions"]
    assert isinstance(reported["prediction"], int)
    other = load(characters.path, experiment=mended)
    assert other.experiment.predict_data is not None
    assert other.model.look.num_embeddings == len(set("a dark and stormy night "))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no-experiment-function"),
        ("def experiment(): ...", "unknown-parameter"),
        ("def experiment(", "experiment-syntax-error"),
        (None, "experiment-file-not-found"),
    ],
)
def test_a_file_that_does_not_fit_the_run_is_refused(
    characters: RunFolder, tmp_path: Path, text: str | None, rule: str
) -> None:
    if text is not None:
        (tmp_path / "other.py").write_text(text)
    code, document, said = predict(characters, "--experiment", str(tmp_path / "other.py"))
    assert (code, document["error"]["rule"]) == (2, rule) and "Traceback" not in said


def test_evaluating_takes_the_vocabulary_of_the_run(characters: RunFolder, tmp_path: Path) -> None:
    before = json.loads(characters.preprocessing.read_text())
    assert before["vocabulary"] == "".join(sorted(set("a dark and stormy night ")))
    (tmp_path / "book.txt").write_text("zebras " * 30)
    predictor = load(characters.path)
    assert predictor.model.look.num_embeddings == len(before["vocabulary"])
    assert json.loads(characters.preprocessing.read_text()) == before


@dataclass(frozen=True)
class Scale:
    mean: Tensor
    names: tuple[str, ...]


def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_values_come_back_as_what_they_were(tmp_path: Path) -> None:
    calls = []
    kinds = [torch.float64, torch.bfloat16, torch.int64, torch.bool]

    def scale() -> Scale:
        calls.append("scale")
        return Scale(torch.tensor([0.1, 1e-30]), ("a", "b"))

    def many() -> Any:
        return {"each": [torch.tensor([[1, 0]], dtype=kind) for kind in kinds],
                "none": torch.empty(0, 3), "one": torch.tensor(0.1), "text": "x"}  # fmt: skip

    for is_written in (True, False):
        with fitted_for(run_folder(tmp_path), is_written=is_written):
            found, others = data.fitted(scale)(), data.fitted(many)()
        assert torch.equal(found.mean, torch.tensor([0.1, 1e-30])) and found.names == ("a", "b")
        for one, other in zip(others["each"], many()["each"], strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)
        assert others["none"].shape == (0, 3) and others["one"].shape == ()
    assert calls == ["scale"]


def test_a_run_is_only_read_where_it_is_not_trained(tmp_path: Path) -> None:
    with fitted_for(run_folder(tmp_path)):
        assert data.fitted(lambda: 3)() == 3
    assert list(tmp_path.iterdir()) == []


def test_each_run_has_values_of_its_own(tmp_path: Path) -> None:
    given = iter(range(9))

    @data.fitted
    def number() -> int:
        return next(given)

    @data.fitted
    def of(path: str, *, times: int = 1) -> str:
        return path * times

    assert (number(), number()) == (0, 0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with fitted_for(run_folder(tmp_path / name), is_written=True):
            number()
            assert (of("a"), of("b"), of("a", times=2)) == ("a", "b", "aa")
    found = [json.loads((tmp_path / name / "preprocessing.json").read_text())["number"]
             for name in ("one", "two")]  # fmt: skip
    assert found == [1, 2]


class Scaler:
    pass


@pytest.mark.parametrize("value", [Scaler(), {"mean": Scaler()}, [object]])
def test_what_a_run_cannot_keep_is_refused_when_it_starts(tmp_path: Path, value: Any) -> None:
    def scaler() -> Any:
        return value

    with fitted_for(run_folder(tmp_path), is_written=True), pytest.raises(UsageError) as refused:
        data.fitted(scaler)()
    assert refused.value.rule == "preprocessing-not-kept"
    assert "`scaler`" in refused.value.problem and not list(tmp_path.iterdir())


def test_a_value_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessing.json").write_text('{"mean": "x"}')

    def mean() -> float:
        return 1.0

    with fitted_for(run_folder(tmp_path)), pytest.raises(UsageError) as refused:
        data.fitted(mean)()
    assert refused.value.rule == "preprocessing-does-not-fit"
    (tmp_path / "preprocessing.json").write_text("{")
    with pytest.raises(RunFailed) as damaged, fitted_for(run_folder(tmp_path)):
        pass
    assert damaged.value.rule == "damaged-file"


def test_two_functions_of_one_name_are_refused(tmp_path: Path) -> None:
    def mean() -> float:
        return 1.0

    def other() -> float:
        return 2.0

    other.__name__, other.__module__ = "mean", "helper"
    with fitted_for(run_folder(tmp_path), is_written=True):
        data.fitted(mean)()
        with pytest.raises(UsageError) as refused:
            data.fitted(other)()
    assert refused.value.rule == "preprocessing-not-kept" and "helper" in str(refused.value.because)
