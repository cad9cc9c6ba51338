"""A replica of `flatout serve` as a process: real runs, and messages as the server writes them."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch
from PIL import Image
from support.busy_machine import first_good

from flatout.engine import load
from flatout.experiments.digits import read_digits
from flatout.schema.serve_protocol import (
    Answered,
    Batch,
    BatchDone,
    BatchItem,
    Cancel,
    FileInput,
    FromReplica,
    ItemRefused,
    Measure,
    Measured,
    Piece,
    ReplicaFailed,
    ReplicaReady,
    ReplicaStart,
    ReplicaStarting,
    TensorInput,
    TextInput,
    ToReplica,
    ValueInput,
    WireTensor,
)
from flatout.system.store import datasets
from flatout.system.store.run_folder import RunFolder


class Replica:
    """The server's end of a replica."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._decoder = msgspec.msgpack.Decoder(FromReplica)

    def send(self, message: ToReplica) -> None:
        body = msgspec.msgpack.encode(message)
        assert self.process.stdin is not None
        self.process.stdin.write(len(body).to_bytes(4, "big") + body)
        self.process.stdin.flush()

    def receive(self) -> FromReplica:
        assert self.process.stdout is not None
        head = self.process.stdout.read(4)
        assert head, "the replica has ended"
        return self._decoder.decode(self.process.stdout.read(int.from_bytes(head, "big")))

    def ready(self) -> ReplicaReady:
        """Its model; what it says before is progress."""
        while isinstance(message := self.receive(), ReplicaStarting):
            assert message.what
        assert isinstance(message, ReplicaReady), message
        return message

    def ask(self, *items: BatchItem) -> dict[int, Answered | ItemRefused]:
        """The answers to a batch, by the items' ids."""
        self.send(Batch(items=items))
        answers: dict[int, Answered | ItemRefused] = {}
        while not isinstance(message := self.receive(), BatchDone):
            assert isinstance(message, Answered | ItemRefused)
            answers[message.id] = message
        assert message.first == items[0].id
        return answers


@contextmanager
def replica(model: Path, **fields: Any) -> Iterator[Replica]:
    command = [sys.executable, "-P", "-m", "flatout.engine.serve.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            found = Replica(process)
            found.send(ReplicaStart(model=str(model), num_threads=1, **fields))
            yield found
        finally:
            process.kill()


def tensors(array: Any, name: str = "input") -> TensorInput:
    array = numpy.ascontiguousarray(array)
    return TensorInput((WireTensor(name, array.dtype.name, array.shape, array.tobytes()),))


def png(image: torch.Tensor) -> bytes:
    content = io.BytesIO()
    pixels = (image * 255).round().byte().flatten().tolist()
    Image.frombytes("L", (image.shape[-1], image.shape[-2]), bytes(pixels)).save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def digits(run_of: Callable[..., RunFolder]) -> RunFolder:
    return run_of(name="digits", parameters={"epochs": 2})


def test_a_batch_of_all_kinds_of_input_is_answered_as_predict_does(digits: RunFolder) -> None:
    images, _ = read_digits(is_test=True)
    expected = load(digits.path).predict(images[:40])
    with replica(digits.path, max_samples=16) as served:
        model = served.ready().model
        assert (model.format, model.unit, model.device) == ("run", "images", "cpu")
        assert model.accepts == ("tensors", "file", "value")
        assert [spec.shape for spec in model.inputs] == [(None, 1, 8, 8)]
        assert [spec.shape for spec in model.outputs] == [(None, 10)]
        assert model.labels == tuple("0123456789") and not model.can_stream
        assert model.max_samples == 16 and set(model.batch_s) == {1, 2, 4, 8, 16}
        answers = served.ask(
            BatchItem(id=1, input=ValueInput(images[0, 0].tolist())),
            BatchItem(id=2, input=FileInput(b"no picture", ".png")),
            BatchItem(id=3, input=FileInput(png(images[1]), ".png"), top=2),
            # More than fit into a batch.
            BatchItem(id=4, input=tensors(images[:40].numpy()), is_raw=True),
            BatchItem(id=5, input=ValueInput([[1, 2], [3]])),
            BatchItem(id=6, input=ValueInput(model.example)),
        )
    found = answers[4]
    assert isinstance(found, Answered)
    [raw] = found.tensors
    assert (raw.name, raw.dtype, raw.shape) == ("prediction", "float32", (40, 10))
    torch.testing.assert_close(
        torch.frombuffer(bytearray(raw.data), dtype=torch.float32).view(40, 10), expected
    )
    label = int(expected[0].argmax())
    first, third, sixth = answers[1], answers[3], answers[6]
    assert isinstance(first, Answered) and isinstance(third, Answered)
    assert isinstance(sixth, Answered)
    assert first.rows[0]["label"] == str(label) == sixth.rows[0]["label"]
    assert first.rows[0]["probability"] == pytest.approx(float(expected[0, label]), abs=1e-5)
    assert list(third.rows[0]) == ["label", "probability", "label_2", "probability_2"]
    for number in (2, 5):
        refused = answers[number]
        assert isinstance(refused, ItemRefused) and refused.is_input
        assert refused.finding.rule == "input-not-accepted"


def test_batches_are_measured_again_while_requests_are_answered(digits: RunFolder) -> None:
    with replica(digits.path) as served:
        model = served.ready().model
        item = BatchItem(id=1, input=ValueInput(model.example))

        def asked() -> list[FromReplica]:
            served.send(Measure())
            served.send(Batch(items=(item,), max_samples=4))
            return [served.receive() for _ in range(3)]

        # Unless other programs keep the request from being sent in time.
        messages = first_good(asked, lambda found: isinstance(found[0], Answered))
    # Not after all sizes, but between two of them.
    assert [type(message) for message in messages] == [Answered, BatchDone, Measured]
    measured = messages[-1]
    assert isinstance(measured, Measured) and measured.max_samples in measured.batch_s
    assert all(measured.batch_s[size] <= seconds for size, seconds in model.batch_s.items())


def test_wrong_tensors_are_refused_and_the_replica_goes_on(digits: RunFolder) -> None:
    image = numpy.zeros((1, 1, 8, 8), "float32")
    lying = TensorInput((WireTensor("input", "float32", (1 << 40, 1, 8, 8), b"1234"),))
    with replica(digits.path, max_samples=1) as served:
        served.ready()
        answers = served.ask(
            BatchItem(id=1, input=lying),
            BatchItem(id=2, input=tensors(image.astype("int64"))),
            BatchItem(id=3, input=tensors(image[:, :, :5])),
            BatchItem(id=4, input=tensors(image[0])),
            BatchItem(id=5, input=TensorInput(())),
            BatchItem(id=6, input=tensors(image.astype("float64"))),
        )
        assert {number for number, one in answers.items() if isinstance(one, Answered)} == {6}
        assert all(one.is_input for one in answers.values() if isinstance(one, ItemRefused))
        # What the experiment prints, and the end of the pipe.
        assert served.process.stdin is not None
        served.process.stdin.close()
        assert served.process.wait(120) == 0


GUILTY = """
import torch
from torch import nn
import flatout


def predict(model, rows):
    print("a line that is no message")
    if (rows > 90).any():
        raise RuntimeError("too large")
    if (rows < -90).any():
        raise MemoryError
    return model(rows)


def experiment() -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Linear(2, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, rows: model(rows).square().mean(),
        train_data=lambda: torch.rand(40, 2),
        batch_size=20,
        epochs=1,
        predict=predict,
        encode=lambda value: {"sum": float(value)},
    )
"""


def test_only_the_guilty_item_of_a_batch_fails(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    (tmp_path / "guilty.py").write_text(GUILTY)
    folder = run_of(name="guilty", file=str(tmp_path / "guilty.py"))
    rows = numpy.float32([[1, 2], [95, 0], [3, 4], [-95, 0], [5, 6]])
    with replica(folder.path, max_samples=8) as served:
        assert served.ready().model.accepts == ("tensors", "value")
        items = [BatchItem(id=n, input=tensors(rows[n : n + 1])) for n in range(5)]
        answers = served.ask(*items)
        again = served.ask(BatchItem(id=7, input=tensors(rows[:1])))
    good = {number for number, one in answers.items() if isinstance(one, Answered)}
    assert good == {0, 2, 4}
    raised, memory = answers[1], answers[3]
    assert isinstance(raised, ItemRefused) and isinstance(memory, ItemRefused)
    assert (raised.finding.rule, raised.is_input) == ("model-failed", False)
    assert "too large" in raised.finding.problem
    assert (memory.finding.rule, memory.is_input) == ("out-of-memory", False)
    first, second = answers[0], again[7]
    assert isinstance(first, Answered) and isinstance(second, Answered)
    assert list(first.rows[0]) == ["sum"] and first.rows == second.rows


def test_what_encode_returns_is_written_or_refused_and_the_replica_stays(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    encode = "lambda value: {'sum': value} if value < 50 else 2**70 if value < 90 else object()"
    code = GUILTY.replace('lambda value: {"sum": float(value)}', encode).replace(
        "rows > 90", "rows > 990"
    )
    (tmp_path / "odd.py").write_text(code.replace("return model(rows)", "return rows.sum(dim=1)"))
    folder = run_of(name="odd", file=str(tmp_path / "odd.py"))
    rows = numpy.float32([[1, 2], [60, 0], [95, 0], [3, 4]])
    with replica(folder.path, max_samples=1) as served:
        assert served.ready().findings == ()
        answers = served.ask(*(BatchItem(id=n, input=tensors(rows[n : n + 1])) for n in range(4)))
    first, last = answers[0], answers[3]
    assert isinstance(first, Answered) and first.rows == ({"sum": 3.0},)
    assert isinstance(last, Answered) and last.rows == ({"sum": 7.0},)
    large, strange = answers[1], answers[2]
    assert isinstance(large, ItemRefused) and large.finding.rule == "model-failed"
    assert isinstance(strange, ItemRefused) and strange.finding.rule == "bad-prediction"


def test_a_client_reads_no_file_of_the_server(
    run_of: Callable[..., RunFolder], tmp_path: Path
) -> None:
    reading = GUILTY.replace("encode=", "predict_data=read, encode=").replace(
        "def experiment",
        "def read(text):\n    return torch.tensor([[float(len(text)), 0]])\n\n\ndef experiment",
    )
    (tmp_path / "reading.py").write_text(reading)
    folder = run_of(name="reading", file=str(tmp_path / "reading.py"))
    secret = tmp_path / "secret.txt"
    secret.write_text("words")
    with replica(folder.path, max_samples=1) as served:
        assert "text" in served.ready().model.accepts
        answers = served.ask(
            BatchItem(id=1, input=TextInput(str(secret))), BatchItem(id=2, input=TextInput("abc"))
        )
    refused = answers[1]
    assert isinstance(refused, ItemRefused) and "name of a file" in refused.finding.problem
    assert isinstance(answers[2], Answered)


def test_a_picture_comes_as_png(run_of: Callable[..., RunFolder]) -> None:
    if datasets.find("mnist") is None:
        pytest.skip("needs the data set mnist (flatout data get mnist)")
    sizes = {"size": "tiny", "samples": 8, "batch_size": 4, "epochs": 1}
    folder = run_of(name="unet-denoise", parameters=sizes)
    with replica(folder.path, max_samples=1) as served:
        example = served.ready().model.example
        answer = served.ask(BatchItem(id=1, input=ValueInput(example)))[1]
    assert isinstance(answer, Answered)
    with Image.open(io.BytesIO(base64.b64decode(answer.rows[0]["prediction"]))) as image:
        assert image.size == (28, 28)


def test_a_stream_gives_the_prediction_in_pieces_while_others_are_answered(
    run_of: Callable[..., RunFolder],
) -> None:
    if datasets.find("tinyshakespeare") is None:
        pytest.skip("needs the data set tinyshakespeare (flatout data get tinyshakespeare)")
    sizes = {"size": "tiny", "steps": 3, "samples": 40, "batch_size": 4}
    folder = run_of(name="charlm", parameters=sizes)
    [expected] = load(folder.path).predict(["ROMEO:"])
    with replica(folder.path, max_samples=1) as served:
        model = served.ready().model
        assert model.can_stream and "text" in model.accepts and not model.inputs
        served.send(Batch(items=(BatchItem(id=1, input=TextInput("ROMEO:"), is_stream=True),)))
        served.send(Batch(items=(BatchItem(id=2, input=TextInput("naïve")),)))
        pieces: list[str] = []
        order: list[Any] = []
        while len([one for one in order if isinstance(one, BatchDone)]) < 2:
            message = served.receive()
            if isinstance(message, Piece):
                pieces.append(message.text)
            else:
                order.append(message)
        assert "".join(pieces) == expected and len(pieces) > 100
        # The other batch did not wait for the stream.
        assert [type(one) for one in order] == [ItemRefused, BatchDone, Answered, BatchDone]
        assert [one.first for one in order if isinstance(one, BatchDone)] == [2, 1]
        served.send(Batch(items=(BatchItem(id=3, input=TextInput("O"), is_stream=True),)))
        served.receive()
        served.send(Cancel(id=3))
        num_pieces = 1
        while isinstance(served.receive(), Piece):
            num_pieces += 1
        assert num_pieces < len(pieces)
        assert isinstance(served.receive(), BatchDone)


def test_a_run_without_weights_is_reported(tmp_path: Path) -> None:
    with replica(tmp_path / "nothing") as served:
        while isinstance(message := served.receive(), ReplicaStarting):
            pass
        assert isinstance(message, ReplicaFailed)
        assert (message.finding.rule, message.exit_code) == ("unknown-run", 2)
        assert served.process.wait(120) == 2
