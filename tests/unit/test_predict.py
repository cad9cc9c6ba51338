"""`flatout predict` and `flatout evaluate` from outside, with an engine that only says lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout.cli.render.predictions import PredictionTable, agreement_text
from flatout.errors import UsageError
from flatout.runs import predict_inputs
from flatout.schema.predict_protocol import Evaluated, Loaded, Predicted, check_output
from flatout.system.store.row_files import CsvRows, JsonRows, NpyRows


@pytest.fixture
def trained(cli: Any, trained_once: Any) -> Any:
    """A command line with a run, `one`."""
    shutil.copytree(trained_once.runs / "one", cli.runs / "one")
    return cli


def test_predict_prints_a_row_for_each_input(trained: Any) -> None:
    done = trained.run("predict", "one", "a.png", "longer.png")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "input            label  probability",
        "a.png                0       87.5 %",
        "longer.png           1       87.5 %",
    ]
    assert done.stderr.startswith("one · weights of step 6 · accuracy 50.0 %")


def test_predict_tells_of_what_cannot_be_read_and_predicts_the_others(trained: Any) -> None:
    done = trained.run("predict", "one", "a", "refuse", "b")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["input", "a", "b"]
    assert "explain input-not-readable" in done.stderr


def test_predict_as_json(trained: Any) -> None:
    done = trained.run("predict", "one", "a", "refuse", "--json")
    document = json.loads(done.stdout)
    assert (document["run"], document["weights"]["step"]) == ("one", 6)
    first, second = document["predictions"]
    assert first == {"input": "a", "row": None, "label": "0", "probability": 0.875}
    assert second["error"]["rule"] == "input-not-readable"


def test_predict_when_the_process_dies(trained: Any) -> None:
    done = trained.run("predict", "one", "a", "die", "--output", "out.csv")
    assert done.returncode == 1
    assert "explain prediction-died" in done.stderr and "exit code 7" in done.stderr
    assert "about to die" in done.stderr
    assert not list(trained.folder.glob("out.csv*"))


def test_predict_when_the_experiment_raises_keeps_the_traceback(trained: Any) -> None:
    done = trained.run("predict", "one", "raise", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["predictions"][0]["error"]["rule"] == "experiment-raised"
    [file] = (trained.state / "crashes").iterdir()
    assert file.read_text() == "Traceback: line 7\n" and str(file) in done.stderr


def test_predict_ends_with_all_it_started_on_ctrl_c(trained: Any) -> None:
    process = trained.start("predict", "one", "slow")
    mark = trained.runs / "one" / "pid"
    while not mark.exists() or not mark.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr.splitlines()[-1]) == (130, "interrupted")
    assert not psutil.pid_exists(int(mark.read_text()))


@pytest.mark.parametrize(
    ("output", "part"),
    [("out", "out/predictions.jsonl.part"), ("rows.csv", "rows.csv.part")],
)
def test_predict_that_dies_leaves_no_half_of_a_file(
    trained: Any, tmp_path: Path, output: str, part: str
) -> None:
    # As the engine would have begun it.
    half = tmp_path / part
    half.parent.mkdir(exist_ok=True)
    half.touch()
    trained.run("predict", "one", "die", "--output", str(tmp_path / output))
    assert not half.exists()


def test_predict_reads_inputs_from_standard_input(trained: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flatout", "predict", "one", "-"],
        env={**trained.environment(), "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        input="a\n\nb c\n", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # PYTHONPATH puts the real engine in the place of the fake one: only the reading is tried here.
    assert "no-input" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["predict", "one"], "no-input"),
        (["predict", "nothing", "a"], "unknown-run"),
        (["predict", "one", "a", "--output", "a.xlsx"], "unknown-output-format"),
        (["predict", "one", "a", "--device", "gpu"], "bad-recipe-value"),
        (["predict", "one", "a", "--python", "no/python"], "python-not-found"),
        (["predict", "one", "a", "--top", "0"], "wrong-usage"),
        (["evaluate", "one", "-s", "step=3"], "unknown-parameter"),
        (["evaluate", "one", "--batch-size", "x"], "wrong-usage"),
    ],
)
def test_wrong_use(trained: Any, arguments: list[str], rule: str) -> None:
    done = trained.run(*arguments)
    assert (done.returncode, f"explain {rule}" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="names are always Unicode on Windows")
def test_an_argument_that_is_not_utf_8(trained: Any) -> None:
    done = trained.run("predict", "one", os.fsdecode(b"\xff.png"), "--json")
    assert (done.returncode, "explain wrong-usage" in done.stderr) == (2, True)


def test_evaluate_shows_both_sides(trained: Any) -> None:
    done = trained.run("evaluate", "one")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["recorded", "now"],
        ["accuracy", "50.0", "%", "50.0", "%"],
        ["validation", "loss", "0.25", "0.25"],
    ]
    assert "identical to the recorded metrics, digit for digit" in done.stderr


def test_evaluate_with_another_parameter_as_json(trained: Any) -> None:
    done = trained.run("evaluate", "one", "-s", "steps=4", "--json")
    document = json.loads(done.stdout)
    assert document["differences"] == ["steps=4"]
    assert (document["is_equal"], document["metrics"]["accuracy"]) == (False, 0.25)


LOADED = Loaded(step=1, recorded={"loss": 0.5}, device="cpu", precision="fp32", unit="rows")


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"loss": 0.5}, "identical to the recorded metrics, digit for digit"),
        ({"loss": 0.75}, "different from the recorded metrics by at most 0.25: "
         "changed since the run: precision=bf16"),
        ({"loss": None}, "different from the recorded metrics: "
         "changed since the run: precision=bf16"),
        ({"other": 1.0}, "the run recorded no metrics for these weights"),
    ],
)  # fmt: skip
def test_agreement_text(metrics: dict[str, float | None], text: str) -> None:
    evaluated = Evaluated(metrics=metrics, differences=("precision=bf16",))
    assert agreement_text(LOADED, evaluated) == text


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"prediction": 0.123456}, ["input  prediction", "a          0.1235"]),
        ({"prediction": [1.0, 2.0]}, ["input  prediction", "a            1, 2"]),
        ({"prediction": [0] * 9}, ["input  prediction", "a      0, 0, 0, 0, 0, ... (9)"]),
        ({"x": None}, ["input           x", "a            none"]),
        ({"text": "one\ntwo"}, ["a", "    one", "    two"]),
    ],
)
def test_lines_of_a_table(values: dict[str, Any], lines: list[str]) -> None:
    assert list(PredictionTable(1).lines(Predicted(input="a", values=values))) == lines


def test_long_inputs_are_shortened_and_rows_numbered() -> None:
    table = PredictionTable(500)
    *_, line = table.lines(Predicted(input="x" * 500, row=2, values={"y": 1}))
    assert line.startswith("x" * 21 + " ... ") and " 3 " in line and len(line) < 80


@pytest.mark.parametrize("output", [None, "a.csv", "b/c.jsonl", "x.npy", "dir", "./dir/", "."])
def test_check_output_when_it_can_be_written(output: str | None) -> None:
    check_output(output)


@pytest.mark.parametrize("output", ["a.txt", "b/c.PNG", "a.b.xlsx"])
def test_check_output_when_it_cannot(output: str) -> None:
    with pytest.raises(UsageError):
        check_output(output)


def test_expand_inputs_of_folders_and_texts(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "inner").mkdir()
    folder = str(tmp_path)
    found = predict_inputs.expand_inputs([folder, "To be?", "a.png"])
    inside = tuple(os.path.join(folder, name) for name in ("a.png", "b.png"))
    assert found == (*inside, "To be?", "a.png")


def test_expand_inputs_of_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        predict_inputs.expand_inputs([str(tmp_path)])
    assert refused.value.rule == "no-input"


@pytest.mark.skipif(sys.platform == "win32", reason="names are always Unicode on Windows")
def test_expand_inputs_of_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.png")).touch()
    with pytest.raises(UsageError) as refused:
        predict_inputs.expand_inputs([str(tmp_path)])
    assert refused.value.rule == "input-not-readable"


READING = """
import sys
{begin}
from flatout.errors import UsageError
from flatout.runs.predict_inputs import expand_inputs
try:
    expand_inputs(["-"])
except UsageError as error:
    print(error.rule)
"""


@pytest.mark.parametrize(
    ("given", "begin", "rule"),
    [(b"a\n\xff\n", "", "input-not-readable"), (b"", "sys.stdin = None", "no-input")],
)
def test_standard_input_without_lines_of_text(given: bytes, begin: str, rule: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READING.format(begin=begin)],
        env=os.environ | {"PYTHONIOENCODING": "utf-8"}, input=given, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.decode().strip() == rule


def test_csv_rows_have_a_column_for_each_number(tmp_path: Path) -> None:
    rows = CsvRows(tmp_path / "a.csv")
    rows.append({"input": "a, b", "row": None, "prediction": [0.5, [1, 2]]})
    rows.append({"input": "c", "row": 1, "prediction": [1.5, [3, 4]]})
    assert not (tmp_path / "a.csv").exists()
    rows.close(is_whole=True)
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "input,row,prediction_1,prediction_2_1,prediction_2_2",
        '"a, b",,0.5,1,2',
        "c,1,1.5,3,4",
    ]


def test_csv_rows_refuse_a_value_that_has_no_column(tmp_path: Path) -> None:
    rows = CsvRows(tmp_path / "a.csv")
    rows.append({"input": "a", "prediction": [1, 2]})
    rows.append({"input": "b", "prediction": [3]})
    with pytest.raises(UsageError) as refused:
        rows.append({"input": "c", "prediction": [4, 5, 6]})
    rows.close(is_whole=False)
    assert refused.value.rule == "output-cannot-hold-it"
    assert "`prediction_3`" in str(refused.value.because)


def test_rows_that_are_not_whole_leave_nothing(tmp_path: Path) -> None:
    rows = JsonRows(tmp_path / "a.jsonl")
    rows.append({"input": "a"})
    rows.close(is_whole=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row_shape", [(), (3,), (2, 3)])
def test_npy_rows_are_read_by_numpy(tmp_path: Path, row_shape: tuple[int, ...]) -> None:
    numpy = pytest.importorskip("numpy")
    expected = numpy.arange(5 * 6, dtype="<f4")[: 5 * int(numpy.prod(row_shape))]
    expected = expected.reshape(5, *row_shape)
    rows = NpyRows(tmp_path / "a.npy", "<f4", row_shape)
    rows.append_bytes(expected[:3].tobytes(), 3)
    rows.append_bytes(expected[3:].tobytes(), 2)
    rows.close(is_whole=True)
    assert numpy.array_equal(numpy.load(tmp_path / "a.npy"), expected)
