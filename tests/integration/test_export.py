"""Exported files: each form answers as the run does, is refused where it cannot, and is served."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch

from flatout.engine import load
from flatout.engine.serve.answering import Answers
from flatout.engine.serve.export_worker import export
from flatout.engine.serve.program_check import check_archive
from flatout.engine.serve.program_model import open_program
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.experiments.digits import read_digits
from flatout.schema.export_protocol import Exported, ExportJob
from flatout.schema.serve_protocol import (
    Answered,
    BatchItem,
    ItemRefused,
    ReplicaStart,
    TensorInput,
    TextInput,
    ValueInput,
    WireTensor,
)
from flatout.system.store import datasets
from flatout.system.store.run_folder import RunFolder


@pytest.fixture
def digits(run_of: Callable[..., RunFolder]) -> RunFolder:
    return run_of(name="digits", parameters={"epochs": 2})


def exported(folder: RunFolder, output: Path, form: str, **fields: Any) -> Exported:
    values = {"folder": str(folder.path), "form": form, "output": str(output), **fields}
    job = msgspec.convert(values, ExportJob)
    *_, last = export(job)
    assert isinstance(last, Exported)
    assert last.size_bytes > 0
    # Nothing else is left.
    assert [path.name for path in output.parent.iterdir() if path.name[0] == "."] == []
    return last


def refused(folder: RunFolder, output: Path, form: str, **fields: Any) -> FlatoutError:
    with pytest.raises(FlatoutError) as error:
        exported(folder, output, form, **fields)
    assert {path.name for path in output.parent.iterdir()} <= {"state"}
    return error.value


def test_onnx_answers_as_the_run_and_is_served_without_torch(
    digits: RunFolder, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    from flatout.engine.serve.onnx_model import open_onnx

    file = tmp_path / "digits.onnx"
    written = exported(digits, file, "onnx", opset=20)
    assert (written.opset, written.facts.labels) == (20, tuple("0123456789"))
    assert written.checked.batch_sizes == (1, 3, 64) and written.checked.data == "validation"
    assert written.checked.difference <= written.checked.tolerance
    assert_served(open_onnx(ReplicaStart(model=str(file), num_threads=1)), digits)


def test_an_onnx_file_is_served_without_torch() -> None:
    modules = "flatout.engine.serve.worker, flatout.engine.serve.onnx_model"
    check = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_pt2_answers_as_the_run_and_is_served(digits: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "digits.pt2"
    written = exported(digits, file, "pt2")
    assert [spec.shape for spec in written.facts.inputs] == [(None, 1, 8, 8)]
    assert_served(open_program(ReplicaStart(model=str(file), num_threads=1)), digits)


def assert_served(model: Any, digits: RunFolder) -> None:
    steps = model.warm_up(ReplicaStart(model="", max_samples=4))
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            described = ended.value
            break
    assert described.accepts == ("tensors", "value") and described.unit == "images"
    assert described.example is not None and described.labels is not None
    images, _ = read_digits(is_test=True)
    expected = load(digits.path).predict(images[:10])
    array = images[:10].numpy()
    given = TensorInput((WireTensor("input", "float32", array.shape, array.tobytes()),))
    answers = Answers(model, 4, model.usual_keys).of([
        BatchItem(id=1, input=given, is_raw=True),
        BatchItem(id=2, input=ValueInput(images[0].tolist()), top=3),
        BatchItem(id=3, input=TextInput("3")),
        BatchItem(id=4, input=ValueInput([[[1.0]]])),
    ])  # fmt: skip
    by_id = {answer.id: answer for answer in answers}
    raw, row = by_id[1], by_id[2]
    assert isinstance(raw, Answered) and isinstance(row, Answered)
    found = torch.frombuffer(bytearray(raw.tensors[0].data), dtype=torch.float32).view(10, 10)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert row.rows[0]["label"] == str(int(expected[0].argmax())) and "label_3" in row.rows[0]
    for number in (3, 4):
        answer = by_id[number]
        assert isinstance(answer, ItemRefused) and answer.is_input


def with_pickles(name: str, content: bytes) -> bytes:
    if not name.endswith("_weights_config.json"):
        return content
    config = json.loads(content)
    next(iter(config["config"].values()))["use_pickle"] = True
    return json.dumps(config).encode()


def unchanged(name: str, content: bytes) -> bytes:
    return content


def with_texts(key: str, text: str) -> Callable[[str, bytes], bytes]:
    """Each text of that name in the graph is another one."""

    def replaced(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {name: replaced(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [replaced(part, name) for part in value]
        return text if isinstance(value, str) and name == key else value

    def change(name: str, content: bytes) -> bytes:
        if "/models/" not in name:
            return content
        changed = json.dumps(replaced(json.loads(content))).encode()
        assert changed != json.dumps(json.loads(content)).encode()
        return changed

    return change


def test_code_in_a_program_is_refused_before_it_is_loaded(
    digits: RunFolder, tmp_path: Path
) -> None:
    file, bad = tmp_path / "digits.pt2", tmp_path / "bad.pt2"
    exported(digits, file, "pt2")
    check_archive(file)
    harmful = pickle.dumps(Harmful(tmp_path / "harm"))

    def rewritten(change: Callable[[str, bytes], bytes], extra: dict[str, bytes]) -> None:
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(bad, "w") as new:
            for name in old.namelist():
                new.writestr(name, change(name, old.read(name)))
            for name, content in extra.items():
                new.writestr(name, content)

    def with_inputs(name: str, content: bytes) -> bytes:
        return harmful if "/sample_inputs/" in name else content

    def with_guards(name: str, content: bytes) -> bytes:
        if "/models/" not in name:
            return content
        return json.dumps({**json.loads(content), "guards_code": [code]}).encode()

    code = f"__import__('pathlib').Path({str(tmp_path / 'harm')!r}).touch()"
    with zipfile.ZipFile(file) as archive:
        root = archive.namelist()[0].partition("/")[0]
    for change, extra in (
        (with_pickles, {}),
        (unchanged, {f"{root}/data/constants/model.pt": harmful}),
        (unchanged, {f"{root}/data/aotinductor/model/x.so": b"code"}),
        (unchanged, {f"{root}/DATA/weights/model_weights_config.json": b"{}"}),
        (with_texts("expr_str", code), {}),
        (with_texts("expr_str", f"Integer({code!r})"), {}),
        (with_texts("target", "torch.os.system"), {}),
        (with_texts("target", "torch.ops.aten.from_file.default"), {}),
        (with_texts("name", f"x={code}"), {}),
        (with_texts("in_spec", '[1, {"__enum__": true, "fqn": "this:that"}]'), {}),
    ):
        rewritten(change, extra)
        with pytest.raises(RunFailed) as error:
            open_program(ReplicaStart(model=str(bad)))
        assert error.value.rule == "exported-file-not-safe"
    rewritten(with_inputs, {})
    with pytest.raises(RunFailed) as error:
        open_program(ReplicaStart(model=str(bad)))
    assert error.value.rule == "exported-file-not-readable"
    rewritten(with_guards, {})
    open_program(ReplicaStart(model=str(bad)))
    assert not (tmp_path / "harm").exists()


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_int8_keeps_the_accuracy_or_is_refused(
    digits: RunFolder, run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    file = tmp_path / "digits.onnx"
    try:
        written = exported(digits, file, "onnx", is_int8=True)
    except RunFailed as error:
        assert error.rule == "quantized-model-is-worse"
    else:
        check = written.checked
        assert (check.metric, written.facts.precision) == ("accuracy", "int8")
        assert check.after is not None and check.before is not None
        assert check.after >= check.before - 0.01


def test_int8_of_products_needs_no_calibration(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    folder = run_of(name="mlp", parameters={"rows": 400, "epochs": 2})
    file = tmp_path / "mlp.onnx"
    full = exported(folder, file, "onnx")
    file.unlink()
    small = exported(folder, file, "onnx", is_int8=True)
    assert small.checked.metric == "explained variance"
    assert small.size_bytes < full.size_bytes


def test_weights_alone_answer_as_the_run(digits: RunFolder, tmp_path: Path) -> None:
    import safetensors

    file = tmp_path / "digits.safetensors"
    written = exported(digits, file, "safetensors")
    assert written.checked.difference == 0 and written.facts.inputs == ()
    with safetensors.safe_open(file, framework="pt") as opened:
        facts = msgspec.json.decode(opened.metadata()["flatout"])
        assert facts["run"] == digits.path.name and facts["unit"] == "images"
        kept = load(digits.path).model.state_dict()
        names = list(opened.keys())
        assert all(torch.equal(opened.get_tensor(name), kept[name]) for name in names)


def test_what_has_no_such_form_is_refused(
    digits: RunFolder, run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    error = refused(digits, tmp_path / "folder", "hf")
    assert isinstance(error, UsageError) and error.rule == "model-is-not-of-transformers"
    if datasets.find("tinyshakespeare") is not None:
        sizes = {"size": "tiny", "steps": 3, "samples": 40, "batch_size": 4}
        folder = run_of(name="charlm", parameters=sizes)
        error = refused(folder, tmp_path / "charlm.pt2", "pt2")
        assert error.rule == "model-not-exportable"
        written = exported(folder, tmp_path / "charlm.safetensors", "safetensors")
        assert written.checked.num_samples == 2


DEPENDS = """
import torch
from torch import nn
import flatout


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, rows):
        return self.layer(rows) if float(rows.sum()) > 0 else rows


def experiment() -> flatout.Experiment:
    return flatout.Experiment(
        model=Net,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, rows: model(rows).square().mean(),
        train_data=lambda: torch.rand(40, 2),
        batch_size=20,
        epochs=1,
    )
"""


def test_a_model_whose_path_depends_on_numbers_is_refused(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "code" / "depends.py").write_text(DEPENDS)
    folder = run_of(name="depends", file=str(tmp_path / "code" / "depends.py"))
    error = refused(folder, tmp_path / "out" / "depends.pt2", "pt2")
    assert error.rule == "model-not-exportable" and "torch.export" in str(error.because)


def test_transformers_model_is_exported_as_a_folder(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    if datasets.find("tinyshakespeare") is None:
        pytest.skip("needs the data set tinyshakespeare (flatout data get tinyshakespeare)")
    folder = run_of(
        name="gpt3-small", parameters={"size": "tiny", "steps": 2, "samples": 8, "batch_size": 4}
    )
    written = exported(folder, tmp_path / "gpt", "hf")
    assert (tmp_path / "gpt" / "config.json").is_file() and written.checked.difference == 0


def test_a_foreign_onnx_file_is_served(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from flatout.engine.serve.onnx_model import open_onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["sum"])],
        "add",
        [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in ("a", "b")],
        [helper.make_tensor_value_info("sum", kind, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(tmp_path / "add.onnx"))
    with ExitStack():
        served = open_onnx(ReplicaStart(model=str(tmp_path / "add.onnx")))
        rows = {"a": [[1, 2, 3]], "b": [[10, 20, 30]]}
        [answer] = Answers(served, 8).of([BatchItem(id=1, input=ValueInput(rows))])
    assert isinstance(answer, Answered) and answer.rows == ({"sum": [11.0, 22.0, 33.0]},)
    (tmp_path / "bad.onnx").write_bytes(numpy.arange(9).tobytes())
    with pytest.raises(RunFailed) as error:
        open_onnx(ReplicaStart(model=str(tmp_path / "bad.onnx")))
    assert error.value.rule == "exported-file-not-readable"
