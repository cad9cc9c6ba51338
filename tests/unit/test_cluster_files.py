"""The files of a cluster, for machines of every kind: what is shared out, and what is written."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.cli.commands import serve
from flatout.cli.main import run
from flatout.cli.render import show
from flatout.cluster import files
from flatout.cluster.compose import cluster_folder, layout
from flatout.cluster.compose.compose_file import HEADS, TOKEN_FILE, compose_files
from flatout.cluster.compose.env_file import (
    address_in,
    engine_in,
    parse_settings,
    user_in,
    with_setting,
)
from flatout.cluster.compose.image import image_files, requirements_text
from flatout.cluster.model.cluster import (
    SHARED_GPU,
    ClusterLayout,
    ClusterRequest,
    ContainerLimits,
    Engine,
    WrittenFiles,
)
from flatout.errors import UsageError
from flatout.schema.environment_facts import ContainerEngine
from flatout.schema.machine import Cpu, Gpu, Host, Machine, Memory

GIB = 2**30
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
ENGINES: tuple[Engine, ...] = ("ray", "dask", "torchrun")
NONE = Machine(
    host=Host(os="linux"),
    cpu=Cpu(num_threads=8),
    memory=Memory(total_bytes=32 * GIB),
    engines=(ContainerEngine(name="docker", is_running=True, runtimes=("runc",)),),
)
ONE_GPU = msgspec.structs.replace(
    NONE,
    gpus=(Gpu(index=0, name="NVIDIA GeForce RTX 3070"),),
    engines=(ContainerEngine(name="docker", is_running=True, runtimes=("nvidia", "runc")),),
)
TWO_GPUS = msgspec.structs.replace(ONE_GPU, gpus=(Gpu(index=0), Gpu(index=1)))
DESKTOP = msgspec.structs.replace(
    ONE_GPU,
    host=Host(os="linux", wsl=2),
    engines=(ContainerEngine(name="docker-desktop", is_running=True),),
)
WSL_ENGINE = msgspec.structs.replace(ONE_GPU, host=Host(os="linux", wsl=2))
CDI = msgspec.structs.replace(
    TWO_GPUS,
    engines=(
        ContainerEngine(
            name="docker", is_running=True, runtimes=("runc",),
            cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all"),
        ),
    ),
)  # fmt: skip
CDI_OF_ALL = msgspec.structs.replace(
    ONE_GPU,
    host=Host(os="linux", wsl=2),
    engines=(ContainerEngine(name="docker", is_running=True, cdi_devices=("nvidia.com/gpu=all",)),),
)


def laid(machine: Machine, engine: Engine = "ray", **asked: Any) -> ClusterLayout:
    request = ClusterRequest(engine=engine, **asked)
    gpus, _ = layout.chosen_gpus(request, machine)
    form = layout.gpu_form(machine)[0] if gpus else "none"
    return ClusterLayout(
        name="flatout-lab",
        engine=engine,
        num_workers=request.workers,
        share=layout.share_of(machine, request.workers),
        base_image="python:3.12-slim-bookworm",
        requirements=("torch==2.13.0",),
        runs="/home/ada/runs",
        data="/home/ada/data",
        gpus=gpus,
        gpu_form=form,
        is_gpu_shared=request.is_gpu_shared and bool(gpus),
        is_by_variable=layout.is_by_variable(machine, form),
    )


def services_of(made: ClusterLayout) -> dict[str, Any]:
    """As Compose reads them, with what .env says filled in."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    files = compose_files(made)
    settings = parse_settings(files[".env"])
    text = re.sub(r"\$\{(\w+)\}", lambda found: settings[found[1]], files["compose.yaml"])
    services = yaml.safe_load(text)["services"]
    assert isinstance(services, dict)
    return services


def devices_of(service: dict[str, Any]) -> list[dict[str, Any]]:
    found = service["deploy"]["resources"]["reservations"]["devices"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("machine", [NONE, ONE_GPU, DESKTOP, CDI], ids=["none", "1", "wsl", "cdi"])
def test_every_service_is_shut_in_and_limited(engine: Engine, machine: Machine) -> None:
    services = services_of(laid(machine, engine))
    assert {HEADS[engine], "ingestion", "training", "inference"} <= services.keys()
    for name, service in services.items():
        assert service["user"] == "1000:1000" and service["cap_drop"] == ["ALL"], name
        assert service["mem_limit"] and service["cpus"] and service["shm_size"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        # Only flatout starts a training again.
        assert service["restart"] == "no"
        is_role = name in ("ingestion", "training", "inference")
        assert ("healthcheck" in service) != is_role and ("profiles" in service) == is_role


def test_each_engine_publishes_what_people_open_and_no_more() -> None:
    published = {engine: services_of(laid(NONE, engine))[HEADS[engine]].get("ports", [])
                 for engine in ENGINES}  # fmt: skip
    assert published == {
        "ray": ["127.0.0.1:8265:8265"],
        "dask": ["127.0.0.1:8786:8786", "127.0.0.1:8787:8787"],
        "torchrun": [],
    }


@pytest.mark.skipif(sys.platform == "win32", reason="files have other rights there")
def test_ray_asks_for_a_token_that_stays_on_this_machine(tmp_path: Path) -> None:
    made = laid(NONE)
    for name, service in services_of(made).items():
        own = service["environment"]
        assert (own["RAY_AUTH_MODE"], own["RAY_AUTH_TOKEN_PATH"]) == (
            "token", "/run/flatout/ray-token",
        ), name  # fmt: skip
        assert "./secrets/ray-token:/run/flatout/ray-token:ro" in service["volumes"]
    files = compose_files(made)
    assert "secrets/" in files[".gitignore"].splitlines() and ".dockerignore" in files
    assert not any("token" in text for text in compose_files(laid(NONE, "dask")).values())
    path = tmp_path / TOKEN_FILE
    assert cluster_folder.ensure_secret(path, os.getuid(), os.getgid())
    token = cluster_folder.read_secret(path)
    assert token is not None and len(token) == 64
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    # It stays: what runs knows this one.
    assert not cluster_folder.ensure_secret(path, os.getuid(), os.getgid())
    assert cluster_folder.read_secret(path) == token


def test_shares_leave_the_machine_room() -> None:
    share = layout.share_of(NONE, 3)
    assert share.cpus == 2 and share.shared_bytes < share.memory_bytes
    assert 3 * share.memory_bytes + share.head_bytes <= 0.8 * 32 * GIB
    limited = msgspec.structs.replace(
        NONE, memory=Memory(total_bytes=32 * GIB, limit_bytes=8 * GIB)
    )
    assert layout.share_of(limited, 3).memory_bytes < share.memory_bytes / 2


def test_more_workers_than_memory_are_refused_with_how_many_fit() -> None:
    small = msgspec.structs.replace(NONE, memory=Memory(total_bytes=4 * GIB))
    with pytest.raises(UsageError, match="8 workers would have") as reported:
        layout.share_of(small, 8)
    assert reported.value.fix == "--workers 2"
    assert layout.share_of(small, 2).memory_bytes >= GIB


def test_a_gpu_is_one_workers_own_and_the_others_have_none() -> None:
    services = services_of(laid(ONE_GPU, workers=3))
    assert devices_of(services["gpu-0"])[0]["device_ids"] == ["0"]
    assert services["worker"]["scale"] == 2 and "deploy" not in services["worker"]
    # Docker's own default may be NVIDIA's runtime, which lends all of them.
    assert services["worker"]["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "--num-gpus=1" in services["gpu-0"]["command"]
    assert "--num-gpus=0" in services["worker"]["command"]


def test_ingestion_and_inference_share_the_gpu_with_one_rank() -> None:
    services = services_of(laid(ONE_GPU))
    assert devices_of(services["ingestion"]) == devices_of(services["gpu-0"])
    assert devices_of(services["inference"]) == devices_of(services["gpu-0"])


def test_inference_serves_the_last_run_with_what_the_image_has() -> None:
    made = laid(NONE)
    service = services_of(made)["inference"]
    words = service["command"].split()
    assert words[:3] == ["flatout", "serve", "last"]
    context = serve.command.make_context("serve", words[2:])
    assert context.params["host"] == "0.0.0.0" and not service.get("ports")
    assert service["environment"]["FLATOUT_SERVE_TOKEN"] == "${FLATOUT_SERVE_TOKEN:-}"
    in_image = {line.partition("==")[0] for line in requirements_text(made).splitlines()}
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert {one.partition(">")[0] for one in extras["serve"]} <= in_image


def test_no_worker_is_left_where_each_has_a_gpu() -> None:
    services = services_of(laid(TWO_GPUS, workers=2))
    assert "worker" not in services and {"gpu-0", "gpu-1"} <= services.keys()
    # Where it is of no use it is not asked for: some engines may not raise it.
    assert services["gpu-0"]["ulimits"]["memlock"] == -1
    assert "memlock" not in services_of(laid(NONE))["worker"]["ulimits"]


@pytest.mark.parametrize("machine", [DESKTOP, WSL_ENGINE], ids=["desktop", "engine-in-wsl"])
def test_inside_wsl_a_variable_tells_whose_the_gpu_is(machine: Machine) -> None:
    service = services_of(laid(machine))["gpu-0"]
    assert devices_of(service) == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert service["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_cdi_names_the_device_or_all_where_there_is_no_other() -> None:
    services = services_of(laid(CDI))
    assert devices_of(services["gpu-1"])[0] == {
        "driver": "cdi", "device_ids": ["nvidia.com/gpu=1"], "capabilities": ["gpu"],
    }  # fmt: skip
    service = services_of(laid(CDI_OF_ALL))["gpu-0"]
    assert devices_of(service)[0]["device_ids"] == ["nvidia.com/gpu=all"]
    assert service["environment"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_two_workers_on_one_gpu_are_asked_about() -> None:
    with pytest.raises(UsageError, match="2 workers would share 1 GPU") as reported:
        laid(ONE_GPU, gpus="2")
    assert reported.value.rule == "gpu-would-be-shared" and "NCCL" in str(reported.value)
    assert "--gpus 1" in reported.value.fix and "--share-gpu" in reported.value.fix


@pytest.mark.parametrize("is_agreed", [True, False])
def test_a_person_is_asked_before_a_gpu_is_shared(
    is_agreed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    init, questions = files.init, []

    def here(request: ClusterRequest, text: str, *, is_forced: bool) -> WrittenFiles:
        return init(request, text, is_forced=is_forced, machine=ONE_GPU)

    def answer(question: str) -> bool:
        questions.append(question)
        return is_agreed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "init", here)
    monkeypatch.setattr(show, "confirm", answer)
    assert run(["cluster", "init", "--gpus", "2"]) == (0 if is_agreed else 2)
    assert questions == ["Share it?"] and "NCCL" in capsys.readouterr().err
    written = tmp_path / "cluster" / "compose.yaml"
    assert written.exists() == is_agreed
    assert not is_agreed or "gpu-0-2:" in written.read_text()
    # Programs are not asked; they give the option.
    questions.clear()
    assert run(["cluster", "init", "other", "--gpus", "2", "--json"]) == 2 and not questions
    assert run(["cluster", "init", "other", "--gpus", "2", "--share-gpu", "--json"]) == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpus", ["all", "3"])
def test_workers_and_head_share_a_gpu_where_that_is_asked_for(engine: Engine, gpus: str) -> None:
    made = laid(ONE_GPU, engine, workers=3, gpus=gpus, is_gpu_shared=True)
    services = services_of(made)
    sharing = [HEADS[engine], "gpu-0", "gpu-0-2", "gpu-0-3"]
    for name in sharing:
        assert devices_of(services[name])[0]["device_ids"] == ["0"], name
        assert services[name]["environment"][SHARED_GPU] == "0"
    assert "worker" not in services and set(sharing) < set(services)
    # The head's own programs compute on it; Ray places nothing there.
    assert engine != "ray" or "--num-gpus=0" in services["head"]["command"]


def test_shared_gpus_are_given_in_turn_and_the_rest_have_none() -> None:
    assert laid(TWO_GPUS, workers=4, gpus="3", is_gpu_shared=True).gpus == (0, 1, 0)
    assert laid(TWO_GPUS, workers=5, is_gpu_shared=True).gpus == (0, 1, 0, 1, 0)
    assert laid(NONE, is_gpu_shared=True).gpus == ()
    assert laid(NONE, gpus="0").gpus == () and laid(TWO_GPUS, gpus="0").gpus == ()
    with pytest.raises(UsageError, match="3 GPUs for 2 workers"):
        laid(TWO_GPUS, workers=2, gpus="3", is_gpu_shared=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_being_asked_nothing_is_shared(engine: Engine) -> None:
    services = services_of(laid(ONE_GPU, engine))
    assert not [name for name, one in services.items() if SHARED_GPU in one["environment"]]
    assert "deploy" not in services[HEADS[engine]]


def test_gpus_that_containers_cannot_have_are_refused_with_why() -> None:
    bare = msgspec.structs.replace(ONE_GPU, engines=NONE.engines)
    with pytest.raises(UsageError, match="cannot have a GPU") as reported:
        laid(bare, gpus="1")
    assert "neither NVIDIA's runtime nor a CDI" in str(reported.value)
    assert "flatout setup --docker" in reported.value.fix
    # Nothing was asked for, so nothing is refused.
    assert layout.chosen_gpus(ClusterRequest(), bare)[0] == ()


@pytest.mark.parametrize("text", ["two", "-1", "1.5", ""])
def test_gpus_that_are_no_number_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not `all`, `none` or a number"):
        laid(TWO_GPUS, gpus=text)


@pytest.mark.parametrize("engine", ENGINES)
def test_image_is_not_root_and_keeps_its_secrets_in_a_stage(engine: Engine) -> None:
    files = image_files(laid(NONE, engine))
    last = files["Dockerfile"].rpartition("\nFROM ")[2]
    assert "USER trainer" in last
    assert "PIP_INDEX_URL" not in last and "CA_BUNDLE" not in last
    pinned = [line for line in files["requirements.txt"].splitlines() if line[:1].isalpha()]
    assert pinned and all("==" in line for line in pinned)
    joined = re.sub(r"\\\n", " ", files["Dockerfile"])
    words = {line.split()[0] for line in joined.splitlines() if line[:1].isalpha()}
    assert words == {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR"}


def test_only_an_image_for_a_gpu_asks_for_the_driver() -> None:
    assert "NVIDIA_DRIVER_CAPABILITIES" in image_files(laid(ONE_GPU))["Dockerfile"]
    assert "NVIDIA" not in image_files(laid(NONE))["Dockerfile"]


def test_settings_are_read_as_compose_reads_them() -> None:
    text = "# A=1\nA=2\nexport B = 'x # y'\nC=\"q\"  # note\nD=a b # c\nE=\n"
    found = parse_settings(text)
    assert found == {"A": "2", "B": "x # y", "C": "q", "D": "a b", "E": ""}
    changed = with_setting(text, "A", "3")
    assert parse_settings(changed) == {**found, "A": "3"} and changed.startswith("# A=1\n")
    assert parse_settings(with_setting(text, "F", "4"))["F"] == "4"


def test_settings_are_filled_in_as_compose_does_it() -> None:
    text = (
        "CLUSTER_RUNS=~/runs\nCLUSTER_DATA=\"${DISK:-/mnt}/data\"\nA=$CLUSTER_RUNS x\nB='$A'\n"
        "C=\\$5\n"
    )
    shell = {"HOME": "/home/ada", "COMPOSE_PROJECT_NAME": "lab", "A": "of the shell", "SHELL": "sh"}
    found = parse_settings(text, shell)
    # Compose itself prefers the shell, and fills in whatever is not in single quotes.
    assert found == {
        "CLUSTER_RUNS": "/home/ada/runs", "CLUSTER_DATA": "/mnt/data", "A": "of the shell",
        "B": "$A", "C": "$5", "COMPOSE_PROJECT_NAME": "lab",
    }  # fmt: skip
    assert parse_settings("A=${B-x}${C:-y}${C-z}", {"C": ""})["A"] == "xy"


def test_owner_is_a_number() -> None:
    assert user_in({"CLUSTER_UID": "1001"}) == (1001, 1000)
    problem = "CLUSTER_UID=me in .env is not a user or group ID"
    with pytest.raises(UsageError, match=problem) as reported:
        user_in({"CLUSTER_UID": "me"})
    assert reported.value.rule == "bad-cluster-setting" and "id -u" in reported.value.fix


def test_address_is_one_that_this_machine_reaches() -> None:
    settings = {"CLUSTER_ENGINE": "ray", "CLUSTER_DASHBOARD_PORT": "9000",
                "CLUSTER_PUBLISHED_ON": "0.0.0.0"}  # fmt: skip
    assert address_in(settings, "CLUSTER_DASHBOARD_PORT") == "127.0.0.1:9000"
    settings["CLUSTER_DASHBOARD_PORT"] = "90000"
    with pytest.raises(UsageError, match="is not a port"):
        address_in(settings, "CLUSTER_DASHBOARD_PORT")
    with pytest.raises(UsageError, match="is not a known engine"):
        engine_in({"CLUSTER_ENGINE": "rya"})


@pytest.mark.parametrize(
    ("path", "name"),
    [("/home/ada/Lab 1/cluster", "flatout-lab-1"), ("/home/ada/GPUs", "flatout-gpus"),
     ("/", "flatout")],
)  # fmt: skip
def test_project_is_named_like_its_folder(path: str, name: str) -> None:
    assert layout.project_name(Path(path).parts[1:]) == name


@pytest.mark.parametrize(
    "asked",
    [{"base_image": "python:3.12\nCLUSTER_UID=0"}, {"base_image": "a\rb"},
     {"packages": ("numpy\nRUN id",)}, {"packages": ("numpy\x85",)}],
)  # fmt: skip
def test_values_of_several_lines_are_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with pytest.raises(UsageError, match="cannot be written to a cluster's files") as reported:
        files.init(ClusterRequest(**asked), str(folder), is_forced=False, machine=NONE)
    assert reported.value.rule == "bad-cluster-setting" and not folder.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sudo")
@pytest.mark.parametrize(
    ("uid", "of_sudo", "owner"),
    [
        (1001, {}, (1001, 1001)),
        (1001, {"SUDO_UID": "1002", "SUDO_GID": "1003"}, (1001, 1001)),
        (0, {"SUDO_UID": "1002", "SUDO_GID": "1003"}, (1002, 1003)),
        (0, {"SUDO_UID": "0", "SUDO_GID": "0"}, (1000, 1000)),
        (0, {"SUDO_UID": "1002 "}, (1000, 1000)),
        (0, {}, (1000, 1000)),
    ],
)
def test_token_is_of_the_user_who_typed_sudo(
    uid: int, of_sudo: dict[str, str], owner: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in of_sudo.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: uid)
    assert cluster_folder.owner() == owner


def test_edited_files_are_not_overwritten_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cluster"
    written = cluster_folder.write(folder, {"a": "1\n", "b": "1\n"}, is_forced=False)
    assert [name for name in written if name.startswith("own/flatout-")]
    # What is as flatout wrote it is written anew.
    cluster_folder.write(folder, {"a": "2\n", "b": "2\n"}, is_forced=False)
    (folder / "b").write_text("mine\n")
    with pytest.raises(
        UsageError, match="b in .* would be overwritten, but was edited"
    ) as reported:
        cluster_folder.write(folder, {"a": "3\n", "b": "3\n"}, is_forced=False)
    assert reported.value.rule == "file-exists"
    assert (folder / "a").read_text() == "2\n" and (folder / "b").read_text() == "mine\n"
    cluster_folder.write(folder, {"a": "3\n", "b": "3\n"}, is_forced=True)
    assert (folder / "b").read_text() == "3\n"
    assert cluster_folder.refresh_wheel(folder) is False


def test_no_cluster_here_is_said_with_what_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no cluster found in") as reported:
        cluster_folder.find(None)
    assert "flatout cluster init" in reported.value.fix
    (tmp_path / "cluster").mkdir()
    for name in ("compose.yaml", ".env"):
        (tmp_path / "cluster" / name).touch()
    assert cluster_folder.find(None) == tmp_path / "cluster"


def test_share_is_of_whole_units() -> None:
    share: ContainerLimits = layout.share_of(NONE, 2)
    assert share.memory_bytes % (256 * 2**20) == 0 and share.shared_bytes % (64 * 2**20) == 0
