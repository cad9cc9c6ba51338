"""Ranks started by torch's own launcher (what `torchrun` is), on this machine.

It restarts nothing: flatout alone does that, so that two supervisors never start twice.
"""

from __future__ import annotations

import os
import sys
import uuid

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flatout.engine.launch.job import Job, ending_code, loopback_variables, thread_variables


def launch(job: Job) -> int:
    """Hands the ranks to torchrun, waits until all have ended, and gives the exit code."""
    os.environ.update(thread_variables(job.num_ranks) | loopback_variables())
    # torchrun's workers inherit standard input: from here on it is the lifeline's end.
    os.dup2(job.lifeline.reading, 0)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )
    program, *arguments = job.command()
    try:
        elastic_launch(config, program)(*arguments)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        # Those that torchrun has ended itself, because another had failed, are not among them.
        return ending_code({rank: one.exitcode for rank, one in error.failures.items()})
    return 0
