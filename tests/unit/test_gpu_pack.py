"""What is carried to a machine with a GPU: unpacked where it is missing, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gpu_pack
import pytest
from progress import Problem


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of two packages, of which this Python has one."""
    monkeypatch.setattr(gpu_pack, "PACK", tmp_path)
    for name in ("never_made", "pytest"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "version = 'of the pack'")
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="the machines that it is for run Linux")
def test_only_what_is_missing_is_unpacked(pack: Path) -> None:
    python = gpu_pack.prepared(sys.executable)
    assert python != sys.executable
    reported = subprocess.run(
        [python, "-c", "import never_made, pytest; print(never_made.version, pytest.__version__)"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert reported.stdout.strip() == f"of the pack {pytest.__version__}"
    assert not (pack / "unpacked" / "pytest").exists()
    assert gpu_pack.prepared(sys.executable) == python


def test_python_is_taken_as_it_is_without_a_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_pack, "PACK", tmp_path / "none")
    assert gpu_pack.prepared(sys.executable) == sys.executable


def test_what_is_too_old_is_lacking() -> None:
    wheels = [
        Path(f"{name}-9.0-py3-none-any.whl") for name in ("click", "msgspec", "regex", "tqdm")
    ]
    held = {"click": "7.1.2", "msgspec": "0.21.0", "Regex": "1.0"}
    lacking = [path.name.partition("-")[0] for path in gpu_pack.lacking(wheels, held)]
    # click is asked for as 8.1 or newer; regex comes with another, which has its own word.
    assert lacking == ["click", "tqdm"]


def test_models_of_the_goals_and_their_data_are_packed() -> None:
    names = {line.partition(">=")[0] for line in gpu_pack._requirements()}
    assert {"transformers", "msgspec", "pytest", "hypothesis", "numpy"} <= names
    assert "torch" not in names


def test_data_is_looked_for_where_it_is_named_first(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    given = {"FLATOUT_DATA": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "none")}
    assert gpu_pack._data_set("mnist", given) == tmp_path / "mnist"
    with pytest.raises(Problem, match="the data set never_made is missing"):
        gpu_pack._data_set("never_made", given)
