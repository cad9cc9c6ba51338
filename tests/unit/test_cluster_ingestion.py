"""What the head of a cluster is asked when it is to make shards, and where data is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.cluster.files import Folder
from flatout.cluster.ingest import request_inside
from flatout.errors import UsageError
from flatout.schema.ingest_protocol import IngestRequest
from flatout.system.source_path import existing


def cluster(tmp_path: Path, engine: str) -> Folder:
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    settings = {"CLUSTER_ENGINE": engine, "CLUSTER_RUNS": "runs", "CLUSTER_DATA": str(data)}
    return Folder(path=tmp_path, settings=settings)


def request(tmp_path: Path, source: str, dest: str) -> IngestRequest:
    return IngestRequest(source=str(tmp_path / source), dest=str(tmp_path / dest), env="torch")


@pytest.mark.parametrize(("engine", "address"), [("ray", "head:6379"), ("dask", "scheduler:8786")])
def test_a_head_is_asked_for_folders_as_it_sees_them(
    tmp_path: Path, engine: str, address: str
) -> None:
    asked = request_inside(
        request(tmp_path, "data/raw/mnist", "data/shards"), cluster(tmp_path, engine)
    )
    assert (asked.source, asked.dest) == ("/data/raw/mnist", "/data/shards")
    # The environments of this machine are not there.
    assert (asked.on, asked.address, asked.env) == (engine, address, None)


def test_a_relative_source_that_is_not_here_is_left_to_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cluster(tmp_path, "ray")
    monkeypatch.chdir(tmp_path)
    wanted = IngestRequest(source="mnist", dest="data/shards")
    assert request_inside(wanted, folder).source == "mnist"
    (tmp_path / "mnist").mkdir()
    with pytest.raises(UsageError, match="is not visible to the nodes"):
        request_inside(wanted, folder)


def test_what_the_nodes_do_not_see_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/link").symlink_to(tmp_path)
    for source in ("elsewhere", "data/../elsewhere", "data/link"):
        with pytest.raises(UsageError) as reported:
            request_inside(request(tmp_path, source, "data/shards"), cluster(tmp_path, "ray"))
        assert reported.value.rule == "data-not-shared"
    with pytest.raises(UsageError) as reported:
        request_inside(request(tmp_path, "data/a", "data/b"), cluster(tmp_path, "torchrun"))
    assert reported.value.rule == "cluster-cannot-ingest"


def test_a_relative_path_of_data_is_found_here_first_then_among_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/shards").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("FLATOUT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "here")
    assert existing("shards") == tmp_path / "data/shards"
    with pytest.raises(UsageError) as reported:
        existing("chards")
    assert str(tmp_path / "data") in str(reported.value.because)
    (tmp_path / "here/shards").mkdir()
    assert existing("shards") == tmp_path / "here/shards"
