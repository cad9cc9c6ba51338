"""Runs read back from a real MLflow server, its files, and Weights & Biases offline."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.busy_machine import wait_until
from support.free_port import free_port

from flatout.monitor.mlflow_tracker import MlflowTracker
from flatout.monitor.tensorboard import sample_scalars, scalars
from flatout.monitor.tracker import Arrived, TrackedRow, TrackedRun
from flatout.schema.run_lines import Metric
from flatout.schema.tracking import TrackerPosition
from flatout.system.atomic_files import read_lines
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.system.store.sample_file import read_samples
from flatout.system.store.tracker_files import positions

pytest.importorskip("torch", reason="needs torch: it trains")
needs_mlflow = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mlflow", "sqlalchemy", "flask")),
    reason="needs mlflow (pip install 'flatout[mlflow]')",
)
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="needs wandb (pip install 'flatout[wandb]')"
)
SRC = Path(__file__).resolve().parents[2] / "src"
LIMIT_S = 180.0
_BLOCK_BYTES = 32768

# (name, step, time in ms, value)
Values = list[tuple[str, int, int, float]]


class Home:
    """`flatout` with a folder for runs of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("MLFLOW_", "WANDB_"))}  # fmt: skip
        self.environment = {
            **kept, "FLATOUT_STATE": str(folder / "state"), "PYTHONPATH": str(SRC),
            "HOME": str(folder), "MLFLOW_ALLOW_FILE_STORE": "true",
        }  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flatout", *words],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str) -> str:
        """Runs a command to its end; gives what it printed."""
        process = self.start(*words)
        printed, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, printed
        return printed

    def run_folder(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "state" / "runs" / name)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def all_sent(folder: RunFolder) -> tuple[TrackerPosition, ...]:
    """The positions of a run's trackers, once all of them have ended."""
    wait_until(lambda: all(one.is_done for one in positions(folder)))
    return positions(folder)


def in_files(folder: RunFolder) -> Values:
    """What a tracker should have: each line once, and each sample."""
    lines = read_lines(folder.metrics, Metric)
    values = [
        (name, line.step, int(line.at * 1000), value)
        for line in lines
        for name, value in scalars(line)
    ]
    for sample in read_samples(folder.samples):
        step = max((line.step for line in lines if line.at <= sample.at), default=0)
        values += [
            (name, step, int(sample.at * 1000), float(value))
            for name, value in sample_scalars(sample)
        ]
    return sorted(values)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real tracking server, started from its package."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    log = open(folder / "log", "wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
         "--backend-store-uri", f"sqlite:///{folder}/db", "--artifacts-destination",
         str(folder / "artifacts"), "--workers", "1"],
        cwd=folder, env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return bool(urllib.request.urlopen(f"{address}/health", timeout=30).read())
        except OSError:
            return False

    try:
        wait_until(answers)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def mlflow_run(uri: str, name: str) -> tuple[Any, Any]:
    """A client, and the one run of that name."""
    client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
    places = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(places, f"attributes.run_name = '{name}'")
    assert len(found) == 1
    return client, found[0]


def in_mlflow(uri: str, name: str) -> Values:
    client, run = mlflow_run(uri, name)
    return sorted(
        (key, metric.step, metric.timestamp, metric.value)
        for key in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, key)
    )


def lines_in(values: Values) -> Values:
    """Those that are not samples of the machine."""
    return [value for value in values if not value[0].startswith("machine/")]


def files_in(client: Any, run_id: str, folder: str | None = None) -> set[str]:
    found = set()
    for file in client.list_artifacts(run_id, folder):
        found |= files_in(client, run_id, file.path) if file.is_dir else {file.path}
    return found


def kill_in_the_middle(home: Home, name: str, *words: str) -> None:
    """Trains, and kills command line, worker and trackers once something was sent."""
    process = home.start("train", "mlp", "--name", name, "--epochs", "20000", "--tune", "off",
                         "--use", "checkpoint_every=40", *words)  # fmt: skip
    folder = home.run_folder(name)
    wait_until(lambda: len(folder.checkpoint_steps()) > 1
          and any(one.steps or one.target.kind == "wandb" and one.is_sending
                  for one in positions(folder)))  # fmt: skip
    import psutil

    own = [one for one in psutil.process_iter(["pid", "cmdline"])
           if str(folder.path) in (one.info["cmdline"] or [])]  # fmt: skip
    for victim in own:
        victim.kill()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    wait_until(lambda: not folder.is_in_use())
    assert read_run(folder).status == "interrupted"


@needs_mlflow
def test_mlflow_server_has_everything_of_a_run_once(home: Home, server: str) -> None:
    printed = home.run("train", "digits", "--epochs", "3", "--lr", "0.002", "--name", "whole",
                       "--tune", "off", "--use", "checkpoint_every=20",
                       "--track", f"mlflow:{server}")  # fmt: skip
    assert "has not received" not in printed
    folder = home.run_folder("whole")
    (position,) = all_sent(folder)
    assert position.finding is None
    assert in_mlflow(server, "whole") == in_files(folder)
    client, run = mlflow_run(server, "whole")
    assert run.info.status == "FINISHED"
    assert run.data.params["lr"] == "0.002" and run.data.params["seed"] == "0"
    assert run.data.params["recipe.device"] == "cpu" and "batch_size" in run.data.params
    files = files_in(client, run.info.run_id)
    assert {"weights.safetensors", "versions.txt"} <= files
    if importlib.util.find_spec("matplotlib") is not None:
        assert "plots/curves.png" in files
    # Once more, afterwards: nothing is there twice.
    assert "everything sent" in home.run("show", "whole", "--track", f"mlflow:{server}")
    assert in_mlflow(server, "whole") == in_files(folder)
    assert f"{server}/#/experiments" in home.run("show", "whole")


@needs_mlflow
def test_mlflow_server_after_a_kill_and_a_resume(home: Home, server: str) -> None:
    kill_in_the_middle(home, "killed", "--track", f"mlflow:{server}")
    folder = home.run_folder("killed")
    reached = max(folder.checkpoint_steps())
    home.run("train", "--resume", "killed", "--steps", str(reached + 200))
    (position,) = all_sent(folder)
    assert position.finding is None
    sent, kept = in_mlflow(server, "killed"), in_files(folder)
    assert len({(name, step) for name, step, _, _ in lines_in(sent)}) == len(lines_in(sent))
    # Progress comes by time: only what was sent before the kill may be of other steps.
    same = [
        (name, step, value)
        for name, step, _, value in lines_in(kept)
        if step <= reached or not name.startswith("train/") or name == "train/epoch_loss"
    ]
    assert set(same) <= {(name, step, value) for name, step, _, value in sent}
    assert max(step for _, step, _, _ in sent) == max(step for _, step, _, _ in kept)
    samples = [[(name, at, value) for name, _, at, value in values if name[:8] == "machine/"]
               for values in (sent, kept)]  # fmt: skip
    assert sorted(samples[0]) == sorted(samples[1])
    assert mlflow_run(server, "killed")[1].info.status == "FINISHED"


@needs_mlflow
def test_mlflow_has_texts_and_pictures_by_step(server: str, tmp_path: Path) -> None:
    picture = tmp_path / "seen-000003.png"
    picture.write_bytes(b"p")
    tracker = MlflowTracker(server)
    run = TrackedRun(id="hooks", key="hooks 1.0", experiment="hooks", created_at=1.0,
                     parameters={}, recipe={}, folder=tmp_path)  # fmt: skip
    assert tracker.open(run)
    assert tracker.last("logged/norm") == Arrived()
    rows = [TrackedRow(at=2.5, step=3, values={"logged/norm": 2.0, "logged/said": "so"}),
            TrackedRow(at=2.6, step=3, values={"logged/seen": picture})]  # fmt: skip
    # Twice: files replace each other.
    tracker.send(rows)
    tracker.send(rows)
    assert tracker.last("logged/norm") == Arrived(step=3, at_ms=2500)
    client, found = mlflow_run(server, "hooks")
    files = files_in(client, found.info.run_id)
    assert files == {"logged/said/000003.txt", "logged/seen/seen-000003.png"}


@needs_mlflow
def test_mlflow_files_have_everything_of_a_run_afterwards(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    home.run("train", "digits", "--epochs", "2", "--tune", "off", "--name", "after")
    assert positions(home.run_folder("after")) == ()
    store = home.folder / "store"
    home.run("show", "after", "--track", f"mlflow:{store}")
    assert in_mlflow(store.as_uri(), "after") == in_files(home.run_folder("after"))


@needs_mlflow
@pytest.mark.parametrize("kind", ["refuses", "hangs"])
def test_training_is_as_it_was_where_the_server_is_not(home: Home, kind: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "hangs":
            listener.listen(16)
        address = f"http://ann:secret@127.0.0.1:{listener.getsockname()[1]}"
        began_s = time.monotonic()
        printed = home.run("train", "digits", "--epochs", "2", "--tune", "off", "--name", "alone",
                           "--track", f"mlflow:{address}")  # fmt: skip
        assert time.monotonic() - began_s < 120
        folder = home.run_folder("alone")
        assert read_run(folder).status == "finished"
        assert "tracker-not-reached" in printed
        (position,) = all_sent(folder)
    assert position.finding is not None
    shown = home.run("show", "alone")
    assert "incomplete" in shown and "flatout show alone --track" in shown
    kept = b"".join(path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
    assert "secret" not in printed + shown and b"secret" not in kept


@needs_mlflow
def test_folder_without_space_is_no_reason_to_fail(home: Home) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full: a file on which nothing can be written")
    database = home.folder / "full.db"
    database.symlink_to("/dev/full")
    printed = home.run("train", "digits", "--epochs", "1", "--tune", "off", "--name", "full",
                       "--track", f"mlflow:sqlite:///{database}")  # fmt: skip
    assert read_run(home.run_folder("full")).status == "finished"
    assert "tracker-not-reached" in printed


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a file of wandb: a header, then a log as LevelDB writes it.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    at, whole = 7, b""
    while at < len(content):
        if _BLOCK_BYTES - at % _BLOCK_BYTES < 7:
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        # A whole record, or the last part of one.
        if kind in (1, 4):
            yield whole
            whole = b""


def in_wandb(folder: RunFolder) -> Values:
    """The history in the one offline run of a run's folder, which `wandb sync` sends."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (file,) = (folder.path / "trackers" / "wandb").glob("offline-run-*/run-*.wandb")
    values: Values = []
    for data in records_of(file.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        if "step" in row:
            names = [name for name in row if name != "step" and name[0] != "_"]
            at = int(row["_timestamp"] * 1000)
            values += [(name, row["step"], at, float(row[name])) for name in names]
    return sorted(values)


@needs_wandb
def test_wandb_offline_has_everything_of_a_run_once(home: Home) -> None:
    home.run("train", "digits", "--epochs", "3", "--tune", "off", "--name", "whole",
             "--track", "wandb:offline")  # fmt: skip
    folder = home.run_folder("whole")
    (position,) = all_sent(folder)
    assert position.finding is None, position
    assert in_wandb(folder) == in_files(folder)
    (place,) = (folder.path / "trackers" / "wandb").glob("offline-run-*")
    assert (place / "files" / "weights.safetensors").exists()


@needs_wandb
def test_wandb_offline_after_a_kill_and_a_resume(home: Home) -> None:
    kill_in_the_middle(home, "killed", "--track", "wandb:offline")
    folder = home.run_folder("killed")
    home.run("train", "--resume", "killed", "--steps", str(max(folder.checkpoint_steps()) + 200))
    (position,) = all_sent(folder)
    assert position.finding is None, position
    assert in_wandb(folder) == in_files(folder)
