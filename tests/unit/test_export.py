"""Environments as files for other tools: each is read back by what reads its kind."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.errors import UsageError
from flatout.setup.env.export import FORMS, NEXT, EnvironmentExport, exported

GPU = EnvironmentExport(
    name="torch",
    framework="torch",
    python="3.12",
    cuda="cu126",
    index="https://download.pytorch.org/whl/cu126",
    requirements=(
        "torch==2.13.0+cu126 --hash=sha256:" + "a" * 64,
        'numpy==2.3.1 ; python_version >= "3.11"',
    ),
    interpreter="/home/ada/my environments/torch/bin/python",
    is_wsl=True,
    variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
)
CPU = msgspec.structs.replace(GPU, cuda="cpu", index=None, is_wsl=False)


def yaml_of(text: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    return yaml.safe_load(text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blueprint", [GPU, CPU], ids=["gpu", "cpu"])
def test_every_form_is_written_and_reported(form: str, blueprint: EnvironmentExport) -> None:
    files = exported(form, blueprint)
    assert files and NEXT[form]
    for name, text in files.items():
        assert text.endswith("\n") and not name.startswith("/")
        if name.endswith(".json"):
            json.loads(text)


def test_requirements_are_read_by_packaging() -> None:
    requirements = pytest.importorskip("packaging.requirements", reason="needs packaging")
    lines = exported("requirements", GPU)["requirements.txt"].splitlines()
    assert lines[1] == "--extra-index-url https://download.pytorch.org/whl/cu126"
    found = [requirements.Requirement(line.partition(" --hash")[0]) for line in lines[2:]]
    assert [one.name for one in found] == ["torch", "numpy"]
    assert "--extra-index-url" not in exported("requirements", CPU)["requirements.txt"]


def test_conda_file_is_read_as_yaml() -> None:
    found = yaml_of(exported("conda", GPU)["environment.yml"])
    assert found["dependencies"][0] == "python=3.12"
    pip = found["dependencies"][2]["pip"]
    assert pip[:2] == [
        "--extra-index-url https://download.pytorch.org/whl/cu126", "torch==2.13.0+cu126",
    ]  # fmt: skip
    # conda's own channel has terms that not everybody may accept.
    assert "defaults" not in found["channels"] and "nodefaults" in found["channels"]


def test_compose_file_asks_for_the_gpu_only_where_there_is_one() -> None:
    train = yaml_of(exported("compose", GPU)["compose.yaml"])["services"]["train"]
    (device,) = train["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert train["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert "deploy" not in yaml_of(exported("compose", CPU)["compose.yaml"])["services"]["train"]


def test_compose_file_is_accepted_by_docker(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    plugin = docker and subprocess.run([docker, "compose", "version"], capture_output=True)
    if not docker or not plugin or plugin.returncode != 0:
        pytest.skip("needs docker compose: the file is not checked by it")
    for name, text in exported("compose", GPU).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [docker, "compose", "config", "--quiet"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_dockerfile_is_of_known_instructions() -> None:
    text = exported("dockerfile", GPU)["Dockerfile"]
    joined = re.sub(r"\\\n", " ", text)
    words = {line.split()[0] for line in joined.splitlines() if line and not line.startswith("#")}
    assert words == {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR"}
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in text
    assert "NVIDIA" not in exported("dockerfile", CPU)["Dockerfile"]
    # No driver, and no toolkit: the wheels bring what is needed.
    assert "cuda" not in joined.replace("cu126", "").replace("CUDA_DEVICE_ORDER", "").replace(
        "CUDA along", ""
    )


def test_devcontainer_needs_a_gpu_only_where_there_is_one() -> None:
    found = json.loads(exported("devcontainer", GPU)[".devcontainer/devcontainer.json"])
    assert found["hostRequirements"] == {"gpu": True} and "--gpus" in found["runArgs"]
    assert ".devcontainer/requirements.txt" in exported("devcontainer", GPU)
    found = json.loads(exported("devcontainer", CPU)[".devcontainer/devcontainer.json"])
    assert "hostRequirements" not in found and "--gpus" not in found["runArgs"]


def test_vscode_finds_the_interpreter_and_wsl() -> None:
    files = exported("vscode", GPU)
    settings = json.loads(files[".vscode/settings.json"])
    assert settings["python.defaultInterpreterPath"] == GPU.interpreter
    assert "/usr/lib/wsl/lib" in settings["terminal.integrated.env.linux"]["PATH"]
    reported = json.loads(files[".vscode/extensions.json"])["recommendations"]
    assert reported[0] == "ms-vscode-remote.remote-wsl"


def test_kernel_starts_the_interpreter() -> None:
    (text,) = exported("jupyter", GPU).values()
    kernel = json.loads(text)
    assert kernel["argv"][0] == GPU.interpreter and "{connection_file}" in kernel["argv"]


@pytest.mark.parametrize("form", ["vscode", "jupyter"])
def test_export_refuses_without_an_environment(form: str) -> None:
    bare = msgspec.structs.replace(GPU, interpreter=None)
    with pytest.raises(UsageError, match="needs an existing environment"):
        exported(form, bare)


def test_export_refuses_an_unknown_form() -> None:
    with pytest.raises(UsageError, match="unknown export format") as reported:
        exported("dockerfiel", GPU)
    assert "`dockerfile`" in reported.value.fix
