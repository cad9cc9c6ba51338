"""`flatout profile -- PROGRAM` without torch: what is refused, warned of, and said of an end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")
START = f"import sys; sys.path.insert(0, {SRC!r}); import flatout.__main__ as m; m.main()"


def profiled(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    return subprocess.run(
        [sys.executable, "-c", START, "profile", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_trace_that_cannot_be_written_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    trace = str(tmp_path / "missing" / "trace.json")
    done = profiled("--trace", trace, "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bench-report-not-writable" in done.stderr


def test_a_script_that_is_no_experiment_is_told_the_other_command(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("print('trained')\n")
    done = profiled(str(script))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no function `experiment`" in done.stderr
    assert "flatout profile -- python '" in done.stderr


def test_order_of_lines_cannot_be_chosen() -> None:
    done = profiled("--by", "line", "--sort", "calls", "--", sys.executable, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "option-without-effect" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX")
def test_a_program_that_is_killed_has_no_profile_for_that_reason() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = profiled("--", sys.executable, "-c", code)
    assert done.returncode == -9
    assert "was killed by SIGKILL before its profile" in done.stderr


def test_keras_without_torch_does_not_get_torch(tmp_path: Path) -> None:
    folder = tmp_path / "keras" / "src" / "optimizers"
    folder.mkdir(parents=True)
    method = "class BaseOptimizer:\n    def apply(self):\n        return 'applied'\n"
    (folder / "base_optimizer.py").write_text(method)
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfrom keras.src.optimizers.base_optimizer import BaseOptimizer\n"
        "print(BaseOptimizer().apply(), 'torch' in sys.modules, 'msgspec' in sys.modules)"
    )
    done = profiled("--", sys.executable, str(script))
    assert done.stdout == "applied False False\n"
