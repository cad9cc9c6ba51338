"""The scripts' pure parts. The scripts themselves have no ending: they are loaded by their path."""

from __future__ import annotations

import ast
import datetime
import subprocess
import sys
import time
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import matrix
import pytest
from bare_venv import pip_ways
from disk import shortages
from environment import requirements_of, work_left
from gpu_accuracy import UNFINISHED
from nvidia import Gpus, parse_gpus
from progress import Done, Problem, bytes_text, pip_environment
from torch_install import torch_ways, visible_gpus

from flatout.compat.torch_builds import TorchPlatform, choose_build, cpu_build
from flatout.schema.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = ("check", "gpu", "quickstart", "test")
LINUX = TorchPlatform(os="linux", machine="x86_64", python=(3, 12))
WINDOWS = TorchPlatform(os="windows", machine="x86_64", python=(3, 12))


def script(name: str) -> ModuleType:
    loader = SourceFileLoader(f"script_{name}", str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_when_python_is_too_old(name: str) -> None:
    path = ROOT / "scripts" / name
    # A syntax that an old Python cannot read would come before the polite refusal.
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))
    code = (
        "import runpy, sys; sys.version_info = (3, 8, 18); "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "exit_code", "expected"),
    [
        (
            "581.42, 8.6, NVIDIA GeForce RTX 3070\n",
            0,
            Gpus(driver="581.42", capabilities=("8.6",), names=("NVIDIA GeForce RTX 3070",)),
        ),
        (
            "580.65.06, 9.0, NVIDIA H200\n580.65.06, 9.0, NVIDIA H200\n",
            0,
            Gpus(driver="580.65.06", capabilities=("9.0", "9.0"), names=("NVIDIA H200",) * 2),
        ),
    ],
)
def test_parse_gpus_when_there_are_some(text: str, exit_code: int, expected: Gpus) -> None:
    assert parse_gpus(text, exit_code) == expected


@pytest.mark.parametrize(
    ("text", "exit_code", "reason"),
    [
        ('Field "compute_cap" is not a valid field to query.\n', 2, "older than 510"),
        ("No devices were found\n", 6, "No devices were found"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "version mismatch"),
        ("", 0, "its output: nothing"),
        ("580.65.06, [N/A], NVIDIA X\n", 0, "no driver and compute capability"),
        ("[N/A], 8.6, NVIDIA X\n", 0, "no driver and compute capability"),
        ("what is this\n", 0, "no driver and compute capability"),
    ],
)
def test_parse_gpus_when_there_are_none(text: str, exit_code: int, reason: str) -> None:
    gpus = parse_gpus(text, exit_code)
    assert gpus.driver is None
    assert gpus.why_none is not None
    assert reason in gpus.why_none


@pytest.mark.parametrize(
    ("has_ensurepip", "version", "ways"),
    [
        (True, (23, 2), ("ensurepip", "own pip", "zipapp")),
        (True, None, ("ensurepip", "zipapp")),
        (False, (22, 3), ("own pip", "zipapp")),
        (False, (22, 2), ("zipapp",)),
        (False, None, ("zipapp",)),
    ],
)
def test_pip_ways_when_something_is_missing(
    has_ensurepip: bool, version: tuple[int, int] | None, ways: tuple[str, ...]
) -> None:
    assert pip_ways(has_ensurepip, version) == ways


def test_torch_ways_when_there_is_no_gpu() -> None:
    linux = torch_ways(cpu_build(LINUX, ""), LINUX)
    assert [arguments[0] for _, arguments in linux] == ["torch==2.13.0+cpu"] * 2
    assert linux[1][1][1].endswith("/whl/cpu")
    # Python's package index has the CPU build for Windows, and gigabytes of CUDA for Linux.
    windows = torch_ways(cpu_build(WINDOWS, ""), WINDOWS)
    assert windows[-1][1] == ["torch==2.13.0"]


@pytest.mark.parametrize(
    ("place", "driver", "last"),
    [
        (LINUX, "580.65.06", "torch==2.13.0"),
        (LINUX, "550.54.14", "torch==2.14.1+cu126"),
        (WINDOWS, "581.42", "torch==2.15.0+cu130"),
    ],
)
def test_torch_ways_when_there_is_a_gpu(place: TorchPlatform, driver: str, last: str) -> None:
    assert torch_ways(choose_build(place, driver, ["8.6"]), place)[-1][1][0] == last


def test_visible_gpus_when_one_cannot_be_used() -> None:
    choice = choose_build(LINUX, "580.65.06", ["6.1", "12.0"])
    hidden = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert visible_gpus(choice, 2, {}) == hidden
    assert visible_gpus(choice, 2, {"CUDA_VISIBLE_DEVICES": "0"}) == {}


def test_visible_gpus_when_all_can_be_used() -> None:
    assert visible_gpus(choose_build(LINUX, "580.65.06", ["8.6", "8.6"]), 2, {}) == {}
    assert visible_gpus(cpu_build(LINUX, ""), 0, {}) == {}


CPU = {"torch": "torch==2.13.0+cpu", "cuda": None}
CU130 = {"torch": "torch==2.15.0+cu130", "cuda": "cu130"}


@pytest.mark.parametrize(
    ("stamp", "extras", "driver", "todo"),
    [
        (None, [], None, ("venv", "flatout", "torch")),
        ({"own": "a", "extras": [], **CPU}, [], None, ()),
        ({"own": "a", "extras": ["dev"], **CPU}, [], None, ()),
        ({"own": "a", "extras": [], **CPU}, ["dev"], None, ("flatout",)),
        ({"own": "b", "extras": [], **CPU}, [], None, ("flatout",)),
        ({"own": "a", "extras": [], **CPU}, [], "580.65.06", ("torch",)),
        ({"own": "a", "extras": [], **CU130}, [], "580.65.06", ()),
        # The GPU is not seen just now: its build is kept.
        ({"own": "a", "extras": [], **CU130}, [], None, ()),
        ({"own": "a", "extras": [], "torch": "torch==2.1", "cuda": None}, [], None, ("torch",)),
    ],
)  # fmt: skip
def test_work_left_when_something_changed(
    stamp: dict[str, object] | None, extras: list[str], driver: str | None, todo: tuple[str, ...]
) -> None:
    choice = choose_build(LINUX, driver, ["8.6"]) if driver else cpu_build(LINUX, "")
    assert work_left(stamp, {"own": "a", "extras": extras, "peers": []}, choice) == todo


@pytest.mark.parametrize(
    ("stamp", "todo"),
    [
        (None, ("venv", "flatout", "torch", "peers")),
        # They could not be had before: tried again.
        ({"own": "a", "extras": ["dev"], **CPU}, ("peers",)),
        ({"own": "a", "extras": ["dev", "bench"], **CPU}, ()),
    ],
)
def test_work_left_when_peers_are_wanted(
    stamp: dict[str, object] | None, todo: tuple[str, ...]
) -> None:
    wanted = {"own": "a", "extras": ["dev"], "peers": ["bench"]}
    assert work_left(stamp, wanted, cpu_build(LINUX, "")) == todo


def test_requirements_of_when_there_are_two_extras() -> None:
    names = [text.partition(">")[0] for text in requirements_of(["bench", "language"])]
    assert names == ["lightning", "accelerate", "transformers"]


def test_shortages_when_a_disk_is_too_full() -> None:
    assert shortages([("/a", 10, 10), ("/b", 0, 0)]) == []
    (text,) = shortages([("/a", 10, 10), ("/tmp", 2_500_000_000, 1_000_000)])
    assert text == "/tmp has 1 MB free, but needs about 2.5 GB"


def test_bytes_text_when_large() -> None:
    assert (bytes_text(999_000_000), bytes_text(1_000_000_000)) == ("999 MB", "1.0 GB")


def test_pip_environment_when_it_points_elsewhere() -> None:
    kept = pip_environment({"PYTHONPATH": "/x", "PIP_TARGET": "/y", "PIP_FIND_LINKS": "/z"})
    assert "PYTHONPATH" not in kept
    assert "PIP_TARGET" not in kept
    assert kept["PIP_FIND_LINKS"] == "/z"


def test_last_error_when_an_index_cannot_be_reached() -> None:
    output = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('"
        "<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f1e>: Failed to establish a "
        "new connection: [Errno -2] Name or service not known')': /whl/cpu/torch/\n"
        "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
    )
    text = Done(1, output, 1.0).last_error()
    assert text.startswith("no connection: Failed to establish a new connection")
    assert text.endswith("Name or service not known")


def test_last_error_when_pip_tells_it() -> None:
    assert Done(1, "a\nERROR: first\nERROR: last\nb\n", 1.0).last_error() == "ERROR: last"
    assert Done(1, "", 1.0).last_error() == "exit code 1"


def test_problem_text_when_shown() -> None:
    assert Problem("a.", because="b", fix="c").text() == "error: a.\n  because: b\n  fix: c"


@pytest.mark.parametrize(
    ("arguments", "is_cpu", "job"),
    [
        ([], False, ["train", "digits"]),
        (["--epochs", "3"], False, ["train", "digits", "--epochs", "3"]),
        (["--cpu", "--seed=1"], True, ["train", "digits", "--seed=1"]),
        (["--", "-s", "lr=0.1"], False, ["train", "digits", "-s", "lr=0.1"]),
        (["--cpu", "--", "--device", "cpu"], True, ["train", "digits", "--device", "cpu"]),
    ],
)
def test_quickstart_parse_when_arguments_are_for_train(
    arguments: list[str], is_cpu: bool, job: list[str]
) -> None:
    options, found = script("quickstart").parse(arguments)
    assert options.cpu is is_cpu
    assert found == job


REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase classname="tests.unit.test_c" name="c">
<failure message="assert 1 == 2&#10; why">...</failure></testcase>
<testcase name="d"><error message="no">...</error></testcase>
<testcase name="e"><skipped message="needs a GPU"/></testcase>
<testcase name="f"><skipped message="needs a GPU"/></testcase>
</testsuite></testsuites>"""


def test_read_report_when_all_kinds_are_there() -> None:
    stage = script("test").read_report("unit", REPORT, 1, 2.0)
    assert (stage.passed, stage.failed, dict(stage.reasons)) == (2, 2, {"needs a GPU": 2})


@pytest.mark.parametrize(("exit_code", "failed"), [(0, 0), (5, 0), (2, 1), (-9, 1)])
def test_read_report_when_there_is_none(exit_code: int, failed: int) -> None:
    stage = script("test").read_report("unit", "", exit_code, 2.0)
    assert (stage.passed, stage.failed) == (0, failed)


def test_timing_files_are_those_with_a_marked_test() -> None:
    timing_files = script("test").timing_files
    found = timing_files(["tests/unit", "tests/integration"])
    assert {"tests/unit/test_serving_soak.py", "tests/integration/test_loadtest.py"} <= set(found)
    assert "tests/unit/test_scripts.py" not in found
    # As the ends of the range name them: files, and single tests.
    names = ["tests/integration/test_loadtest.py::test_one", "tests/integration/test_gate.py"]
    assert timing_files(names) == names[:1]


def test_joined_has_all_of_both() -> None:
    test = script("test")
    first = test.read_report("unit", REPORT, 1, 2.0)
    other = REPORT.replace("tests.unit.test_c", "tests.unit.test_other")
    both = test.joined(first, test.read_report("timing-unit", other, 1, 3.0))
    assert (both.name, both.passed, both.failed, both.duration_s) == ("unit", 4, 4, 5.0)
    assert dict(both.reasons) == {"needs a GPU": 4}
    assert {"tests.unit.test_c::c", "tests.unit.test_other::c"} <= set(both.failures)
    assert test.joined(first, None) == first


def test_sum_up_when_something_failed(capsys: pytest.CaptureFixture[str]) -> None:
    test = script("test")
    good = test.read_report("docs", "", 0, 1.0)
    bad = test.read_report("unit", REPORT, 1, 1.0)
    assert test.sum_up([], [good]) == 0
    assert test.sum_up(["lint"], [good]) == 1
    capsys.readouterr()
    assert test.sum_up([], [bad, good, bad]) == 1
    shown = capsys.readouterr().out
    assert "4: needs a GPU" in shown
    assert "FAILED    tests.unit.test_c::c\n          assert 1 == 2\n           why\n" in shown
    assert shown.splitlines()[-1] == "4 passed, 4 failed, 4 skipped"


def test_test_variables_when_set_by_the_person() -> None:
    variables = script("test").test_variables
    own = {"FLATOUT_DATA": "/mine", "OMP_NUM_THREADS": "7"}
    assert variables(own, num_threads=1) == own
    assert variables({}, num_threads=2)["OMP_NUM_THREADS"] == "2"


def test_matrix_lines_when_an_end_is_skipped() -> None:
    test = script("test")
    here = matrix.End(python="3.12", torch="2.11.0")
    there = matrix.End(python="3.14", torch="2.15.0")
    stage = test.Stage(name="", passed=7, failed=1, reasons=Counter({"a GPU": 2}), duration_s=61.4)
    missing = Problem("there is no Python 3.14.", fix="install it")
    lines = test.matrix_lines({here: stage, there: missing}, {here: "2.11.0+cu130"})
    assert lines == [
        "skipped   2: a GPU",
        "",
        "python  torch           passed  failed  skipped  seconds",
        "3.12    2.11.0+cu130         7       1        2       61",
        "3.14    2.15.0          skipped: there is no Python 3.14.",
        "  fix: install it",
    ]


def test_gpu_folder_name_when_the_name_has_spaces() -> None:
    gpus = Gpus(driver="581.42", capabilities=("8.6",), names=("NVIDIA GeForce RTX 3070",))
    name = script("gpu").folder_name(gpus, datetime.date(2026, 11, 21))
    assert name == "2026-11-21-nvidia-geforce-rtx-3070"


def test_gpu_jobs_when_a_benchmark_has_parts() -> None:
    jobs = script("gpu").jobs(Path("out"))
    assert jobs["gpu_goals-resnet50"].argv[-2:] == ["--part", "resnet50"]
    assert "gpu_goals" not in jobs and {"gpu_accuracy", "unpadding"} <= set(jobs)
    # What decides most comes first.
    names = list(jobs)
    assert names[:3] == ["tests-step", "tests-settings", "tests-out_of_memory"]
    assert names.index("gpu_goals-mlp") < names.index("gpu_accuracy") < names.index("unpadding")
    # The time is short: a test file that nobody has put in its turn would come last.
    tests = [name for name in names if name.startswith("tests-")]
    assert names[: len(tests)] == tests


def test_gpu_jobs_of_bench() -> None:
    jobs = script("gpu").jobs(Path("out"))
    names = [name for name in jobs if name.startswith("bench-")]
    assert names == ["bench-limits", *(f"bench-run-{name}" for name in WORKLOADS)]
    assert jobs["bench-run-mlp"].argv[3:7] == ["run", "mlp", "--devices", "cpu,cuda"]
    assert jobs["bench-limits"].argv[-2:] == ["cuda", f"--out={Path('out', 'bench-limits.json')}"]
    quick = jobs["bench-run-mlp"].quick
    assert quick is not None and quick[-1] == "--quick" and "cpu" in quick
    assert not any("cuda" in word for word in quick)


def test_gpu_jobs_when_a_benchmark_hands_the_device_on() -> None:
    jobs = script("gpu").jobs(Path("out"))
    for name, job in jobs.items():
        if job.argv[0] != "-m":
            text = Path(job.argv[0]).read_text(encoding="utf-8")
            assert 'add_argument("--device"' in text, name


def test_gpu_jobs_that_cannot_be_rehearsed_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = script("gpu")
    wanted = {"tiny": gpu.Job(argv=["a"], quick=["b"]), "whole": gpu.Job(argv=["a"])}
    assert list(gpu.can_be_rehearsed(wanted)) == ["tiny"]
    assert "left out  whole: there is no tiny size" in capsys.readouterr().out


def in_folder(folder: Path, minutes: float, source: str) -> tuple[int, dict[str, Any]]:
    """What scripts/gpu makes of two jobs, of which the first does what is written there."""
    gpu = script("gpu")
    wanted = {"first": gpu.Job(argv=["-c", source]), "second": gpu.Job(argv=["-c", "print(2)"])}
    exit_code = gpu.run_jobs(wanted, folder, sys.executable, 60 * minutes, is_rehearsal=False)
    return exit_code, gpu.results(folder)


def test_gpu_job_that_fails_leaves_the_others(tmp_path: Path) -> None:
    exit_code, ended = in_folder(tmp_path, 9.5, "print('so far', flush=True); 1 / 0")
    assert exit_code == 1
    assert [one.is_fine for one in ended.values()] == [False, True]
    assert (
        "so far" in (tmp_path / "first.txt").read_text()
        and "ZeroDivisionError" in (tmp_path / "first.txt").read_text()
    )


def test_gpu_job_whose_time_is_over_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    gpu = script("gpu")
    child = "import time; time.sleep(600)"
    source = f"import subprocess, sys; print('begun', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"  # noqa: E501
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    # By then it has started the other one, however busy the machine is.
    limit_s = max(3.0, 20 * (time.perf_counter() - began_s))
    ended = gpu.run_job("slow", ["-c", source], tmp_path, sys.executable, limit_s)
    assert ended.is_fine is None and not ended.goes_on and ended.took_s < limit_s + 60
    assert (tmp_path / "slow.txt").read_text() == "begun\n"
    # With more time it is tried again, with as much it is not.
    assert gpu.is_left(ended, 570.0) and not gpu.is_left(ended, limit_s)


def test_gpu_job_that_goes_on_is_run_again(tmp_path: Path) -> None:
    gpu = script("gpu")
    assert gpu._UNFINISHED == UNFINISHED
    exit_code, ended = in_folder(tmp_path, 9.5, f"raise SystemExit({UNFINISHED})")
    assert exit_code == 0
    assert [gpu.is_left(one, 570.0) for one in ended.values()] == [True, False]
    assert gpu.is_left(None, 570.0)


def test_gpu_job_is_not_begun_without_the_time_for_it(tmp_path: Path) -> None:
    _, ended = in_folder(tmp_path, 2.0, "print(1)")
    assert ended == {}
