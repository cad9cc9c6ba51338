"""How a training in this process tells how it goes: in a script, and in a real Jupyter kernel."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flatout

PROGRAM = """
import torch
import flatout
from torch import nn

def rows():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)

def step(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

described = flatout.Experiment(
    model=lambda: nn.Linear(3, 1),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    loss=step, train_data=rows, batch_size=20, epochs=2,
)
"""
TRAIN = "trained = flatout.train(described, epochs=3, device='cpu')\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs; what a process started here finds is this checkout."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(flatout.__file__).parents[1]))
    return tmp_path


def test_names_at_the_top_are_lazy_and_few() -> None:
    program = (
        "import sys, flatout\n"
        "assert 'torch' not in sys.modules\n"
        "names = ['Experiment', 'LightningProfiler', 'TransformersProfiler', '__version__']\n"
        "known = [*names, 'load', 'lr_range', 'sweep', 'train']\n"
        "assert dir(flatout) == known, dir(flatout)\n"
        "flatout.Experiment, flatout.sweep\n"
        "assert 'torch' not in sys.modules\n"
        "from flatout.engine import load, lr_range, train\n"
        "assert flatout.train is train and flatout.load is load\n"
        "assert flatout.lr_range is lr_range\n"
        "from flatout import *\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


def test_a_script_prints_each_epoch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + TRAIN], check=True, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["epoch 1", "step 10"], ["epoch 2", "step 20"], ["epoch 3", "step 30"],
    ]  # fmt: skip
    assert "train loss" in lines[0] and "<" not in done.stdout


def test_length_and_device_of_a_training() -> None:
    space: dict[str, Any] = {}
    exec(PROGRAM, space)
    described = space["described"]
    by_steps = flatout.train(described, steps=5, device="cpu", is_quiet=True)
    assert by_steps.run.step == 5
    longer = flatout.train(described, resume=by_steps.run.id, epochs=2, is_quiet=True)
    assert longer.run.step == 20
    assert flatout.load(longer.run.id, experiment=described, device="cpu").step == 20
    twice = {"device": "cpu", "use": {"device": "cuda"}}
    again = {"steps": 3, "resume": longer.run.id}
    for wrong in ({"epochs": 1, "steps": 1}, {"epochs": 0}, twice, again):
        with pytest.raises(flatout.errors.UsageError):
            flatout.train(described, is_quiet=True, **wrong)


def test_a_kernel_shows_a_bar_in_place() -> None:
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        messages = run_cell(client, PROGRAM + TRAIN)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert [text for kind, text in messages if kind == "error"] == []
    shown = [content for kind, content in messages if kind == "display_data"]
    moved = [content for kind, content in messages if kind == "update_display_data"]
    # One bar, drawn over.
    assert len(shown) == 1 and moved
    names = {content["transient"]["display_id"] for content in [*shown, *moved]}
    assert len(names) == 1
    assert "<progress" in shown[0]["data"]["text/html"]
    assert moved[-1]["data"]["text/plain"].startswith("finished at step 30")
    assert 'value="1.0000"' in moved[-1]["data"]["text/html"]
    printed = "".join(content["text"] for kind, content in messages if kind == "stream")
    assert "epoch 3  step 30  train loss" in printed


def run_cell(client: Any, code: str) -> list[tuple[str, Any]]:
    """What a kernel says of a cell, until it is idle again."""
    asked = client.execute(code)
    found = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=600)
        except queue.Empty:
            pytest.fail("the kernel says nothing")
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return found
        found.append((kind, content))
