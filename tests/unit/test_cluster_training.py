"""Which Ray a training goes to, and whether its nodes see the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.cluster import train
from flatout.cluster.files import Folder
from flatout.cluster.ray_jobs import RayHead
from flatout.errors import UsageError
from flatout.schema.placement import parse_placement

SETTINGS = (
    "COMPOSE_PROJECT_NAME=flatout-lab\nCLUSTER_ENGINE={engine}\nCLUSTER_RUNS={runs}\n"
    "CLUSTER_DATA=data\nCLUSTER_DASHBOARD_PORT=9265\n"
)


def cluster(folder: Path, engine: str = "ray") -> Path:
    """A cluster's folder in this one, with its runs beside it."""
    made = folder / "cluster"
    made.mkdir()
    (made / "compose.yaml").touch()
    (made / ".env").write_text(SETTINGS.format(engine=engine, runs=folder / "runs"))
    return made


def test_a_run_is_found_by_the_nodes_where_they_have_it(tmp_path: Path) -> None:
    where = train.ClusterTarget(
        head=RayHead(address="http://127.0.0.1:9265"),
        folder=Folder(
            path=tmp_path, settings={"CLUSTER_RUNS": str(tmp_path / "runs"), "CLUSTER_DATA": "data"}
        ),
    )
    assert where.inside(tmp_path / "runs" / "digits-0001") == "/flatout/runs/digits-0001"
    # Weights to begin with may lie among the data.
    assert where.inside(tmp_path / "data" / "old.safetensors") == "/data/old.safetensors"
    with pytest.raises(UsageError, match="is not visible to the nodes") as reported:
        where.inside(tmp_path / "elsewhere" / "digits-0001")
    assert reported.value.rule == "run-not-shared"
    # Machines with one shared disk see it at one path.
    assert train.ClusterTarget(head=RayHead(address="http://head:8265")).inside(tmp_path) == str(
        tmp_path
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_own_clusters_address_is_known(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = train._where(parse_placement(f"http://{host}:9265"))
    assert found.folder is not None and found.folder.path == made
    assert train._where(parse_placement("http://127.0.0.1:8265")).folder is None
