"""Runs a command where requested: on this machine or in a cluster."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flatout.runs.supervisor import Supervisor
    from flatout.schema.ingest_protocol import AnyIngestReply, IngestRequest
    from flatout.schema.predict_protocol import AnyReply, InferenceRequest, Verb
    from flatout.schema.script_launch import LaunchRequest, NodeEvent
    from flatout.schema.serve_request import ModelRequest
    from flatout.schema.train_request import TrainRequest
    from flatout.serve.replica_plan import ModelSource
    from flatout.system.signals import Interrupts


def begin(request: TrainRequest, interrupts: Interrupts, *, is_attached: bool) -> Supervisor:
    """Starts a training.

    Args:
        request: what to train; its placement names the cluster, if any.
        interrupts: Ctrl-C.
        is_attached: the training ends with this process; a cluster's never does.

    Raises:
        UsageError, RunFailed: as `runs.api.begin` and `cluster.train.begin` have it.
        KeyboardInterrupt: Ctrl-C was pressed before there was a worker.
    """
    if request.placement and request.placement.place:
        from flatout.cluster import train

        return train.begin(request, interrupts)
    from flatout.runs import api as runs_api

    return runs_api.begin(request, interrupts, is_attached=is_attached)


def predict_or_evaluate(
    verb: Verb, request: InferenceRequest, on: Literal["cluster"] | None
) -> Generator[AnyReply]:
    """The answers of `flatout predict` or `flatout evaluate`, as they come.

    Raises:
        UsageError: as `runs.predict` and `cluster.predict` have it.
    """
    if on == "cluster":
        from flatout.cluster import predict as in_cluster

        return in_cluster.predict(request) if verb == "predict" else in_cluster.evaluate(request)
    from flatout.runs import predict

    return predict.predict(request) if verb == "predict" else predict.evaluate(request)


def model_in_cluster(request: ModelRequest) -> ModelSource:
    """A model for `serve.api` whose replicas are containers of a cluster; see `cluster.serve`."""
    from flatout.cluster import serve

    return serve.find_model(request)


def ingest(request: IngestRequest, *, in_cluster: bool) -> Generator[AnyIngestReply]:
    """Makes shards; see `runs.ingest` and `cluster.ingest`."""
    if in_cluster:
        from flatout.cluster import ingest as cluster_ingest

        return cluster_ingest.ingest(request)
    from flatout.runs import ingest as local_ingest

    return local_ingest.ingest(request)


def launch(request: LaunchRequest) -> Generator[NodeEvent]:
    """Starts a script on several nodes; see `local_launch` and `script_launch`."""
    if request.on == "cluster":
        from flatout.cluster import script_launch

        return script_launch.launch(request)
    from flatout.cluster import local_launch

    return local_launch.launch(request)
