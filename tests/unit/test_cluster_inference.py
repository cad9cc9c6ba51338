"""`flatout predict RUN --on cluster`: a container of the role answers, told by a made-up Docker."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.cluster import predict, serve
from flatout.cluster.files import Folder
from flatout.errors import UsageError
from flatout.schema.serve_request import ModelRequest
from flatout.system.host_system import LocalSystem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the made-up Docker is for sh")

DOCKER = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
    "version --format"*) echo 28.1.1 ;;
    "compose version --short") echo 2.40.0 ;;
    *" config --format json") cat "$here/config.json" ;;
    "image inspect flatout-lab") [ -f "$here/built" ] ;;
    "rm --force flatout-lab-inference-"*) echo "$*" >>"$here/removed" ;;
    *" run --rm -T --no-deps "*" python3 "*)
        echo "$*" >>"$here/calls"
        [ ! -f "$here/broken" ] || { echo "no such device" >&2; exit 1; }
        while [ "$1" != python3 ]; do shift; done
        shift
        exec PYTHON "$@" ;;
    *) echo "not known here: $*" >&2; exit 125 ;;
esac
"""
SETTINGS = (
    "COMPOSE_PROJECT_NAME=flatout-lab\nCLUSTER_ENGINE=ray\nCLUSTER_RUNS={runs}\n"
    "CLUSTER_DATA={data}\n"
)


@pytest.fixture
def lab(cli: Any, trained_once: Any) -> Any:
    """A command line with a run, `one`, and a cluster whose image is built."""
    shutil.copytree(trained_once.runs / "one", cli.runs / "one")
    cli.environment()  # Makes the folder of programs.
    programs = cli.folder / "programs"
    (programs / "docker").write_text(DOCKER.replace("PYTHON", cli.python))
    (programs / "docker").chmod(0o755)
    (programs / "config.json").write_text(json.dumps({"services": {"head": {}, "inference": {}}}))
    (programs / "built").touch()
    made = cli.folder / "cluster"
    made.mkdir()
    (made / "compose.yaml").touch()
    (cli.folder / "data").mkdir()
    (made / ".env").write_text(SETTINGS.format(runs=cli.runs, data=cli.folder / "data"))
    return cli


def calls(lab: Any) -> list[str]:
    return str((lab.folder / "programs/calls").read_text()).splitlines()


def test_role_answers_with_the_names_that_were_typed(lab: Any) -> None:
    (lab.folder / "data/a.png").touch()
    (lab.folder / "data/deep").mkdir()
    (lab.folder / "data/deep/b.png").touch()
    done = lab.run("predict", "one", "data", "To be", "--on", "cluster", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    # Files of this machine by their own names; what is no file here is a text.
    assert [one["input"] for one in document["predictions"]] == [
        "data/a.png", "data/deep/b.png", "To be",
    ]  # fmt: skip
    # The name inside is longer.
    assert document["weights"]["longest_input"] == len("data/deep/b.png")
    # No worker is started, and the container is removed.
    assert all("run --rm -T --no-deps" in call and "inference" in call for call in calls(lab))
    (name,) = re.findall(r"--name (\S+)", "\n".join(calls(lab)))
    # Also where Compose was interrupted, and cannot do it.
    assert (lab.folder / "programs/removed").read_text() == f"rm --force {name}\n"


def test_the_same_input_twice_is_answered_twice(lab: Any) -> None:
    (lab.folder / "data/a.png").touch()
    done = lab.run("predict", "one", "data/a.png", "data/a.png", "--on", "cluster", "--json")
    assert len(json.loads(done.stdout)["predictions"]) == 2


def test_output_is_reported_where_it_lies_here(lab: Any) -> None:
    words = ("--on", "cluster", "--output", "data/out.csv", "--json")
    done = lab.run("predict", "one", "a", *words)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)["predictions"][-1]
    assert written == {"written": str(lab.folder / "data/out.csv")}


def test_evaluation_in_the_role(lab: Any) -> None:
    done = lab.run("evaluate", "one", "--on", "cluster", "--env", "torch")
    assert done.returncode == 0, done.stderr
    assert "identical to the recorded metrics, digit for digit" in done.stderr
    # The image's own interpreter computes.
    assert "`--env` has no effect" in done.stderr
    changed = lab.run("evaluate", "one", "--on", "cluster", "-s", "steps=7", "--json")
    assert json.loads(changed.stdout)["differences"] == ["steps=7"]


def refused(done: Any) -> str:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    return str(done.stderr.rpartition("  see: ")[2].split()[-1])


def test_what_the_nodes_do_not_see_is_refused(lab: Any) -> None:
    (lab.folder / "elsewhere.png").touch()
    done = lab.run("predict", "one", "elsewhere.png", "--on", "cluster")
    assert refused(done) == "data-not-shared"
    done = lab.run("predict", "one", "a", "--on", "cluster", "--output", "out.csv")
    assert refused(done) == "data-not-shared"
    settings = lab.folder / "cluster/.env"
    settings.write_text(SETTINGS.format(runs=lab.folder / "others", data="data"))
    assert refused(lab.run("predict", "one", "a", "--on", "cluster")) == "run-not-shared"


def test_cluster_that_cannot_answer_is_refused_with_what_to_do(lab: Any) -> None:
    programs = lab.folder / "programs"
    (programs / "broken").touch()
    done = lab.run("predict", "one", "a", "--on", "cluster")
    assert refused(done) == "cluster-cannot-predict" and "no such device" in done.stderr
    (programs / "built").unlink()
    done = lab.run("predict", "one", "a", "--on", "cluster")
    assert refused(done) == "cluster-not-up" and "flatout cluster up" in done.stderr
    (programs / "config.json").write_text(json.dumps({"services": {"head": {}}}))
    assert refused(lab.run("predict", "one", "a", "--on", "cluster")) == "cluster-cannot-predict"
    shutil.rmtree(lab.folder / "cluster")
    assert refused(lab.run("predict", "one", "a", "--on", "cluster")) == "no-cluster-here"


def test_image_of_another_version_is_refused(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", lab.environment()["PATH"])
    monkeypatch.setattr(predict, "__version__", "99.0")
    folder = Folder(
        path=lab.folder / "cluster",
        settings={"COMPOSE_PROJECT_NAME": "flatout-lab", "CLUSTER_ENGINE": "ray"},
    )
    with pytest.raises(UsageError, match="here is 99.0") as reported:
        predict.require_role(folder, LocalSystem())
    assert reported.value.rule == "cluster-versions-differ"


def test_replicas_of_a_server_are_containers_of_the_role(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lab.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(lab.folder)
    found = serve.find_model(ModelRequest(model="one", device="cpu", env="torch"))
    assert (found.name, found.place) == ("one", "inference of cluster flatout-lab")
    assert found.start.model == "/flatout/runs/one" and found.start.fixed == {"device": "cpu"}
    text = " ".join(found.command)
    assert re.search(r" run --rm -T --no-deps inference python3 -P .*engine\.serve\.worker$", text)
    assert [finding.rule for finding in found.findings] == ["option-without-effect"]
    (lab.folder / "data/reader.onnx").touch()
    exported = serve.find_model(ModelRequest(model="data/reader.onnx"))
    assert exported.start.model == "/data/reader.onnx"


def test_server_with_a_cluster_that_has_no_image_is_refused(lab: Any) -> None:
    (lab.folder / "programs/built").unlink()
    assert refused(lab.run("serve", "one", "--on", "cluster")) == "cluster-not-up"
    (lab.folder / "model.onnx").touch()
    assert refused(lab.run("serve", "model.onnx", "--on", "cluster")) == "data-not-shared"


def test_names_too_long_for_a_file_are_texts(tmp_path: Path) -> None:
    folder = Folder(path=tmp_path, settings={"CLUSTER_RUNS": "runs", "CLUSTER_DATA": "data"})
    assert predict._inside(folder, "word " * 2000) == "word " * 2000
    assert predict._inside(folder, "a\0b") == "a\0b"
