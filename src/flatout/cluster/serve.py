"""A model for replicas in a cluster: each is a container of its role `inference`.

The server itself stays on this machine, and is the one address in front of them. A container ends
with its standard input, so that none is left if the server is killed.
"""

from __future__ import annotations

from pathlib import Path

from flatout.cluster.files import open_folder
from flatout.cluster.predict import ROLE, job_inside, python_words, require_role, without_effect
from flatout.schema.serve_protocol import ReplicaStart
from flatout.schema.serve_request import ModelRequest
from flatout.serve.replica_plan import ModelSource, is_exported
from flatout.system.host_system import LocalSystem
from flatout.system.replica_process import replica_command
from flatout.system.store import run_folder


def find_model(request: ModelRequest) -> ModelSource:
    """Finds a run or a file, as the role sees it.

    Raises:
        UsageError: unknown-run, run-from-elsewhere, no-cluster-here, run-not-shared,
            data-not-shared, cluster-cannot-predict, cluster-not-up, cluster-versions-differ.
    """
    folder = open_folder(None)
    if is_exported(request.model):
        name = Path(request.model).name
        inside = folder.data_inside(request.model, "leave out --on to serve it on this machine")
        start = ReplicaStart(model=inside, fixed=request.fixed)
    else:
        run = run_folder.find_run(request.model)
        run_folder.require_trust(run, is_trusted=request.is_trusted)
        job = job_inside(request.inference, "predict", run, folder)
        name = run.path.name
        start = ReplicaStart(
            model=job.folder,
            experiment=job.experiment,
            parameters=dict(job.parameters),
            fixed=job.fixed,
        )
    program = require_role(folder, LocalSystem())
    return ModelSource(
        name=name,
        place=f"{ROLE} of cluster {folder.name}",
        command=replica_command(*python_words(program, folder)),
        start=start,
        has_own_cores=True,
        findings=tuple(without_effect(request.inference)),
    )
