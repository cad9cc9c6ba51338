"""An environment as files for Docker, Compose, dev containers, conda, pip, VS Code and Jupyter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from flatout.errors import UsageError, nearest

_WRITTEN = "Written by `flatout setup export`"
# Workers of a DataLoader pass batches through it; Docker's default is 64 MB.
_SHARED_MEMORY = "8gb"
_GPU = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


class EnvironmentExport(msgspec.Struct, frozen=True, kw_only=True):
    """The packages of an environment, and their platform.

    name: of the environment. python: like "3.12". cuda: like "cu126", or "cpu".
    index: where the framework's builds are; None for the package index.
    requirements: lines as pip reads them, with hashes if they come from a lock.
    interpreter: the Python of an existing environment.
    is_wsl: it is inside WSL. variables: environment variables for processes in it.
    """

    name: str
    framework: str
    python: str
    cuda: str
    index: str | None = None
    requirements: tuple[str, ...] = ()
    interpreter: str | None = None
    is_wsl: bool = False
    variables: dict[str, str] = {}

    @property
    def has_gpu(self) -> bool:
        """Whether its build uses a GPU."""
        return self.cuda != "cpu"


def exported(form: str, blueprint: EnvironmentExport) -> dict[str, str]:
    """Files by name, relative to a folder, with their text.

    Raises:
        UsageError: unknown-export, no-environment-to-export.
    """
    if form not in FORMS:
        raise UsageError("unknown-export", f"unknown export format `{form}`.",
                         fix=nearest(form, FORMS))  # fmt: skip
    if form in ("vscode", "jupyter") and blueprint.interpreter is None:
        raise UsageError(
            "no-environment-to-export",
            f"`{form}` needs an existing environment.",
            because="its files contain the path of the interpreter",
            fix="create one: flatout setup; then name it: --env NAME",
        )
    return FORMS[form](blueprint)


def requirements_text(blueprint: EnvironmentExport) -> str:
    """A file for `pip install -r`."""
    lines = [f"# {_WRITTEN}: Python {blueprint.python}, {blueprint.cuda}"]
    if blueprint.index:
        lines.append(f"--extra-index-url {blueprint.index}")
    return "\n".join([*lines, *blueprint.requirements]) + "\n"


def _requirements(blueprint: EnvironmentExport) -> dict[str, str]:
    return {"requirements.txt": requirements_text(blueprint)}


def _dockerfile(blueprint: EnvironmentExport) -> dict[str, str]:
    """A plain Python image: the wheels include CUDA, the host provides its driver."""
    gpu = (
        "# NVIDIA's container toolkit provides the driver's libraries and nvidia-smi.\n"
        "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n"
        if blueprint.has_gpu
        else ""
    )
    variables = "".join(f"ENV {name}={json.dumps(value)}\n"
                        for name, value in blueprint.variables.items())  # fmt: skip
    start = "docker run --rm -it --gpus all" if blueprint.has_gpu else "docker run --rm -it"
    text = f"""# {_WRITTEN}: {blueprint.framework}, {blueprint.cuda}.
#   docker build -t {blueprint.name} .
#   {start} --shm-size={_SHARED_MEMORY} -v "$PWD":/work {blueprint.name} python train.py
FROM python:{blueprint.python}-slim-bookworm

# torch.compile and Triton call a C compiler at run time.
RUN apt-get update \\
    && apt-get install --yes --no-install-recommends gcc g++ \\
    && rm -rf /var/lib/apt/lists/*

COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --requirement /tmp/requirements.txt

{gpu}{variables}RUN useradd --create-home --uid 1000 trainer
USER trainer
WORKDIR /work
"""
    return {"Dockerfile": text, **_requirements(blueprint)}


def _compose(blueprint: EnvironmentExport) -> dict[str, str]:
    service: dict[str, Any] = {
        "build": ".",
        "image": blueprint.name,
        "volumes": [".:/work"],
        "working_dir": "/work",
        "shm_size": _SHARED_MEMORY,
        # Pinned memory must not be limited, nor the stacks of many threads.
        "ulimits": {"memlock": -1, "stack": 67108864},
        "command": ["python", "train.py"],
    }
    if blueprint.has_gpu:
        service["deploy"] = {"resources": {"reservations": {"devices": [_GPU]}}}
    text = f"# {_WRITTEN}: docker compose run train\n" + _yaml({"services": {"train": service}})
    return {"compose.yaml": text, **_dockerfile(blueprint)}


def _devcontainer(blueprint: EnvironmentExport) -> dict[str, str]:
    run = [f"--shm-size={_SHARED_MEMORY}"]
    document: dict[str, Any] = {
        "name": blueprint.name,
        "build": {"dockerfile": "Dockerfile", "context": "."},
        "remoteUser": "trainer",
        "runArgs": [*run, "--gpus", "all"] if blueprint.has_gpu else run,
        "customizations": {
            "vscode": {
                "extensions": ["ms-python.python", "ms-toolsai.jupyter"],
                "settings": {"python.defaultInterpreterPath": "/usr/local/bin/python"},
            }
        },
    }
    if blueprint.has_gpu:
        document["hostRequirements"] = {"gpu": True}
    files = {".devcontainer/devcontainer.json": _json(document)}
    return files | {f".devcontainer/{name}": text
                    for name, text in _dockerfile(blueprint).items()}  # fmt: skip


def _conda(blueprint: EnvironmentExport) -> dict[str, str]:
    """Python from conda-forge, the framework by pip: these are the builds that were verified."""
    index = [f"--extra-index-url {blueprint.index}"] if blueprint.index else []
    document = {
        "name": blueprint.name,
        "channels": ["conda-forge", "nodefaults"],
        "dependencies": [
            f"python={blueprint.python}",
            "pip",
            {"pip": [*index, *(_without_hashes(line) for line in blueprint.requirements)]},
        ],
    }
    head = f"# {_WRITTEN}: conda env create --file environment.yml\n"
    return {"environment.yml": head + _yaml(document)}


def _vscode(blueprint: EnvironmentExport) -> dict[str, str]:
    settings: dict[str, Any] = {
        "python.defaultInterpreterPath": blueprint.interpreter,
        "python.terminal.activateEnvironment": True,
    }
    variables = dict(blueprint.variables)
    if blueprint.is_wsl:
        # Terminals of the remote side do not read a login shell's profile.
        variables["PATH"] = "${env:PATH}:/usr/lib/wsl/lib"
    if variables:
        settings["terminal.integrated.env.linux"] = variables
    extensions = ["ms-python.python", "ms-toolsai.jupyter"]
    if blueprint.is_wsl:
        extensions.insert(0, "ms-vscode-remote.remote-wsl")
    return {
        ".vscode/settings.json": _json(settings),
        ".vscode/extensions.json": _json({"recommendations": extensions}),
    }


def _jupyter(blueprint: EnvironmentExport) -> dict[str, str]:
    document = {
        "argv": [blueprint.interpreter, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"{blueprint.framework} ({blueprint.name})",
        "language": "python",
        "env": blueprint.variables,
        "metadata": {"debugger": True},
    }
    return {f"kernels/{blueprint.name}/kernel.json": _json(document)}


FORMS: Mapping[str, Callable[[EnvironmentExport], dict[str, str]]] = MappingProxyType({
    "dockerfile": _dockerfile, "compose": _compose, "devcontainer": _devcontainer,
    "conda": _conda, "requirements": _requirements, "vscode": _vscode, "jupyter": _jupyter,
})  # fmt: skip

# What to do with the files.
NEXT: Mapping[str, str] = MappingProxyType({
    "dockerfile": "docker build -t NAME .",
    "compose": "docker compose run train",
    "devcontainer": "open the folder in VS Code, then: Dev Containers: Reopen in Container",
    "conda": "conda env create --file environment.yml",
    "requirements": "pip install -r requirements.txt",
    "vscode": "open the folder in VS Code",
    "jupyter": "jupyter kernelspec install --user kernels/NAME (the environment needs ipykernel)",
})  # fmt: skip


def _without_hashes(line: str) -> str:
    """conda passes these lines to pip in one file, in which not all lines have hashes."""
    return line.partition(" --hash=")[0].rstrip(" \\")


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _yaml(value: Any, indent: int = 0) -> str:
    """Dictionaries and lists on separate lines; the rest as JSON, which is valid YAML."""
    space = "  " * indent
    text = ""
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in items:
        head = f"{space}- " if key is None else f"{space}{key}: "
        if isinstance(item, dict) and key is None:
            # The first entry follows the dash.
            text += f"{space}- {_yaml(item, indent + 1).lstrip()}"
        elif isinstance(item, (dict, list)) and item:
            text += f"{head.rstrip()}\n{_yaml(item, indent + 1)}"
        else:
            text += f"{head}{json.dumps(item, ensure_ascii=False)}\n"
    return text
