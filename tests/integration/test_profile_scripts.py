"""`flatout profile -- PROGRAM`, `%%flatout` and callbacks: loops that are not flatout's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.busy_machine import first_good

ROOT = Path(__file__).resolve().parents[2]
START = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import flatout.__main__ as m; "
PROFILE = [sys.executable, "-c", START + "m.main()", "profile"]
PLAIN = str(ROOT / "examples" / "watched" / "plain.py")
# A loop whose loader has no workers and reads slowly; it ends with a code of its own.
SLOW_DATA = """
import sys, time
import torch
import torch.optim.optimizer as hooks
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64 * 8
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.randn(16)

torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    for batch in DataLoader(Slow(), batch_size=8):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
# What is attached does not stay.
print(f"{loss.item():.9f}:{len(sys.meta_path)}:{len(hooks._global_optimizer_post_hooks)}")
sys.exit(7)
"""


def profiled(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*PROFILE, *arguments], capture_output=True, text=True, timeout=300, check=False,
        env={**kept, **variables},
    )  # fmt: skip


def profile_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The report in the document."""
    profile = json.loads(done.stdout)["profile"]
    assert profile is not None, done.stderr
    return dict(profile)


def seconds(profile: dict[str, Any], part: str) -> float:
    """The time of a part."""
    return sum(one["seconds"] or 0.0 for one in profile["split"] if one["part"] == part)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last report of each program is kept there."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with the slow loader."""
    path = tmp_path_factory.mktemp("scripts") / "slow_data.py"
    path.write_text(SLOW_DATA)
    return path


def test_a_script_has_the_same_result_and_a_split_that_adds_up(slow: Path) -> None:
    alone = subprocess.run(
        [sys.executable, str(slow)], capture_output=True, text=True, timeout=300, check=False
    )
    done = profiled("--json", "--", sys.executable, str(slow))
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (7, 7)
    assert alone.stdout in done.stderr
    profile = profile_of(done)
    step_s = sum(profile["step_s"]) / len(profile["step_s"])
    assert sum(one["seconds"] or 0.0 for one in profile["split"]) == pytest.approx(step_s, rel=0.01)
    assert seconds(profile, "data") > 0.5 * step_s
    assert profile["samples_per_step"] == pytest.approx(8)
    assert profile["subject"] == "slow_data"
    assert profile["advice"][0]["id"] == "loader-starved"
    assert any(line["text"] == "time.sleep(0.001)" for line in profile["lines"])
    # The training loop itself is no loop to be replaced.
    lines = [line for line in profile["lines"] if line["file"].endswith("slow_data.py")]
    assert not [line for line in lines if line.get("loop") and "loss" in line["text"]]


def test_report_is_on_stderr_and_output_on_stdout(slow: Path) -> None:
    done = profiled("--steps", "3", "--", sys.executable, str(slow))
    assert len(done.stdout.split()) == 1
    assert "where a step's time goes" in done.stderr
    assert "The step waits for data." in done.stderr
    assert done.returncode == 7


def test_layers_and_operators_of_a_script(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = profiled("--json", "--trace", str(trace), "--", sys.executable, PLAIN, "--epochs", "4")
    profile = profile_of(done)
    names = {row["name"] for row in profile["layers"]}
    assert {"Sequential.0", "Sequential.3", "Sequential.7"} <= names
    assert seconds(profile, "convolution") > seconds(profile, "copy")
    assert profile["memory"]["peak_bytes"] > 0
    assert trace.stat().st_size > 1000


def test_too_few_steps_are_reported_and_change_nothing(tmp_path: Path) -> None:
    short = tmp_path / "short.py"
    short.write_text(SLOW_DATA.replace("64 * 8", "2 * 8").replace("range(6)", "range(1)"))
    done = profiled("--json", "--", sys.executable, str(short))
    assert done.returncode == 7
    assert "2 steps: a profile needs" in done.stderr
    assert json.loads(done.stdout)["profile"] is None


def test_a_program_without_training_says_so(tmp_path: Path) -> None:
    done = profiled("--", sys.executable, "-c", "import torch; print(torch.ones(1))")
    assert (done.returncode, done.stdout.strip()) == (0, "tensor([1.])")
    assert "no optimizer" in done.stderr


def test_own_sitecustomize_and_path_are_kept(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.own_mark = 42")
    code = "import sys, sitecustomize; print(own_mark, sitecustomize.__file__, len(sys.path))"
    alone = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    done = profiled("--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout == alone.stdout
    assert done.stdout.startswith("42 ")


def test_an_error_of_the_hook_does_not_reach_the_program(tmp_path: Path) -> None:
    # A package of that name next to the script, which Python finds first.
    script = tmp_path / "slow_data.py"
    script.write_text(SLOW_DATA)
    broken = tmp_path / "msgspec"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('msgspec is broken')")
    done = profiled("--", sys.executable, str(script))
    assert (done.returncode, len(done.stdout.split())) == (7, 1)
    assert "program-not-profiled" in done.stderr
    assert "msgspec is broken" in done.stderr


def test_steps_of_several_processes_have_one_report(slow: Path, tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(
        "import subprocess, sys\n"
        f"sys.exit(max(subprocess.call([sys.executable, {str(slow)!r}]) for _ in range(2)))"
    )
    done = profiled("--json", "--steps", "3", "--", sys.executable, str(script))
    assert done.returncode == 7
    assert profile_of(done)["num_profiled"] == 3


CELL = """
import time, torch
import torch.optim.optimizer as hooks
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 120
# Until there is a report, after which nothing is attached.
while hooks._global_optimizer_post_hooks and time.monotonic() < end:
    for (batch,) in DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_cell_is_run_and_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    testing = pytest.importorskip("IPython.core.interactiveshell")
    shell = testing.InteractiveShell()
    shell.run_line_magic("load_ext", "flatout")
    shell.run_cell_magic("flatout", "3", CELL)
    assert "model" in shell.user_ns
    out = capsys.readouterr().out
    assert "where a step's time goes" in out
    shell.run_cell_magic("flatout", "", "x = 1")
    assert shell.user_ns["x"] == 1
    assert "no profile of 0 steps" in capsys.readouterr().out
    shell.run_cell_magic("flatout", "many", "x = 2")
    assert "usage" in capsys.readouterr().out


def test_nothing_is_attached_after_the_report() -> None:
    import torch
    from torch.optim import optimizer as optimizers
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from flatout.engine.profile.script_steps import ObservedLoop, StepRecorder

    before = _BaseDataLoaderIter.__next__
    num_hooks = len(optimizers._global_optimizer_post_hooks)
    reports: list[Any] = []
    recorder = StepRecorder("it", reports.append, num_steps=2)
    model = torch.nn.Linear(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ObservedLoop(recorder).__enter__()
    loader = DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8)
    while not reports:
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()
    next(iter(loader))
    assert _BaseDataLoaderIter.__next__ is before
    assert len(optimizers._global_optimizer_post_hooks) == num_hooks
    assert not torch.nn.modules.module._global_forward_hooks


def made_steps(recorder: Any, seconds: float, *, validation_s: float = 0.0) -> None:
    """Steps of 5 ms until the recorder is through; a validation after each twenty."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from flatout.engine.profile.script_steps import ObservedLoop

    model = torch.nn.Linear(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(160, 64)), batch_size=8)
    end = time.monotonic() + seconds
    with ObservedLoop(recorder):
        while recorder.phase != "over" and time.monotonic() < end:
            for (batch,) in loader:
                model(batch).sum().backward()
                time.sleep(0.005)
                optimizer.step()
            if validation_s:
                with torch.no_grad():
                    model(next(iter(loader))[0])
                    time.sleep(validation_s)
    recorder.stop()


@pytest.mark.timing
def test_validation_is_no_part_of_a_step() -> None:
    from flatout.engine.profile.script_steps import StepRecorder

    def measured() -> tuple[float, float]:
        """Of a sampled step and of its own pause, per plain step."""
        reports: list[Any] = []
        made_steps(StepRecorder("it", reports.append), 60, validation_s=0.1)
        [report] = reports

        def spent_s(text: str) -> float:
            return sum(line.seconds for line in report.lines if line.text == text)

        mean_s = report.mean_step_s
        # Whatever else computes.
        assert spent_s("time.sleep(validation_s)") < 0.1 * mean_s
        return report.sampled_step_s / mean_s, spent_s("time.sleep(0.005)") / mean_s

    def is_undisturbed(shares: tuple[float, float]) -> bool:
        return shares[0] < 1.5 and shares[1] < 1.1

    # Sampled steps come after plain ones: other programs may have begun in between.
    shares = first_good(measured, is_undisturbed)
    assert is_undisturbed(shares), shares


def test_what_follows_the_last_step_is_no_part_of_it() -> None:
    from flatout.engine.profile.script_steps import StepRecorder

    reports: list[Any] = []
    recorder = StepRecorder("it", reports.append)
    began_s = 0.0
    while recorder.phase != "profiled":
        time.sleep(0.005)
        # The last one begins the steps that count.
        began_s = time.perf_counter()
        recorder.step_ended()
    for _ in range(3):
        time.sleep(0.005)
        recorder.step_ended()
    took_s = time.perf_counter() - began_s
    time.sleep(1)
    recorder.stop()
    [report] = reports
    # However slow the machine is, they cannot have taken longer than that.
    assert 3 * report.profiled_step_s <= took_s


def test_an_error_of_the_recorder_does_not_reach_the_loop() -> None:
    from flatout.engine.profile.script_steps import StepRecorder

    def failing(report: Any) -> None:
        raise OSError("no space")

    recorder = StepRecorder("it", failing)
    made_steps(recorder, 60)
    assert recorder.problem == "OSError: no space"


def test_a_loop_under_torchs_own_profiler_is_given_up() -> None:
    import torch

    from flatout.engine.profile.script_steps import StepRecorder

    recorder = StepRecorder("it", lambda report: None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        made_steps(recorder, 60)
    assert "torch.profiler itself" in str(recorder.too_short_text())
    assert len(profiler.events()) > 100


def test_a_training_that_failed_does_not_stay_observed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from flatout.engine.profile.callbacks import LoopRecording

    before = _BaseDataLoaderIter.__next__
    recording = LoopRecording("it", None)
    recording.begin(is_first_rank=True)
    # The first one has failed, of which Transformers says nothing.
    recording.begin(is_first_rank=True)
    assert "no profile of 0 steps" in capsys.readouterr().out
    assert _BaseDataLoaderIter.__next__ is not before
    recording.end()
    assert _BaseDataLoaderIter.__next__ is before


def is_observed() -> bool:
    """Whether the steps of a loop are still recorded: there is no report yet."""
    from torch.optim import optimizer

    return bool(optimizer._global_optimizer_post_hooks)


def test_lightning_callback_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    lightning = pytest.importorskip("lightning")
    import torch
    from torch.utils.data import DataLoader

    import flatout

    class Small(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(32, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Stop(lightning.Callback):  # type: ignore[name-defined,misc]
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if not is_observed():
                trainer.should_stop = True

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=[flatout.LightningProfiler(num_steps=3), Stop()],
    )  # fmt: skip
    trainer.fit(Small(), DataLoader(torch.randn(40_000, 32), batch_size=8))
    assert "where a step's time goes" in capsys.readouterr().out


def test_transformers_callback_prints_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import torch

    import flatout

    class Stop(transformers.TrainerCallback):  # type: ignore[name-defined,misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if not is_observed():
                control.should_training_stop = True

    # More than some seconds of steps: a report needs about three.
    texts = [torch.randint(0, 64, (16,)) for _ in range(10_000)]
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=1, per_device_train_batch_size=4,
            save_strategy="no", report_to=[], use_cpu=True,
        ),
        train_dataset=[{"input_ids": text, "labels": text} for text in texts],
        callbacks=[flatout.TransformersProfiler(num_steps=3), Stop()],
    )  # fmt: skip
    trainer.train()
    assert "where a step's time goes" in capsys.readouterr().out


def test_steps_are_recorded_in_an_interpreter_that_has_only_torch_and_msgspec() -> None:
    absent = "sys.modules.update(psutil=None, rich=None); "
    code = START.replace("import flatout.__main__ as m; ", absent)
    code += "import flatout.engine.profile.script_steps as s; print(s._Loader(kind='').settings())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "'CPUs': '" in done.stdout
