"""Ranks started by torch's own launcher (what `torchrun` is), on this machine or on several.

It restarts nothing: flatout alone does that, so that two supervisors never start twice. On several
machines each has this launcher, and that of the first keeps the store by which they meet.
"""

from __future__ import annotations

import os
import uuid

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flatout.engine.launch.job import NodeRendezvous, RankJob, log_refusal, say, thread_variables
from flatout.engine.ranks.rendezvous import is_port_taken, port_taken
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.placement import ending_code
from flatout.system.process_env import loopback_variables, ranks_limit_s, worker_environment


def launch(job: RankJob) -> int:
    """Hands the ranks to torchrun, waits until all have ended, and gives the exit code."""
    os.environ.update(thread_variables(job.num_ranks))
    # torchrun's workers inherit standard input: from here on it is the lifeline's end.
    os.dup2(job.lifeline.reading, 0)
    if job.nodes is None:
        os.environ.update(loopback_variables())
    else:
        # What the command line gives to processes that it starts itself.
        os.environ.update(worker_environment())
    try:
        config = _config(job)
    except UsageError as error:
        return _logged_once(job, error)
    program, *arguments = job.command()
    try:
        elastic_launch(config, program)(*arguments)
    except ChildFailedError as error:
        say(error)
        return _code({rank: failure.exitcode for rank, failure in error.failures.items()})
    except SignalException:
        # An older torch has passed the signal on to the ranks, which have stopped in good order.
        return 0
    except (DistNetworkError, DistStoreError) as error:
        if job.nodes is None:
            raise
        return _logged_once(job, _not_met(job.nodes, error))
    return 0


def _code(codes: dict[int, int]) -> int:
    """The exit code, by those of the ranks that have failed.

    A rank that torchrun has ended itself, because another had failed, is not among them. So rank 0
    may be missing that was about to refuse what the others have refused.
    """
    return 2 if 0 not in codes and set(codes.values()) == {2} else ending_code(codes)


def _config(job: RankJob) -> LaunchConfig:
    """The settings for torchrun.

    Raises:
        UsageError: bad-setting.
    """
    nodes, num_ranks, limit_s = job.nodes, job.num_ranks, int(ranks_limit_s())
    config = _alone(num_ranks) if nodes is None else _among(nodes, num_ranks, max(1, limit_s))
    # Older versions of torch have neither.
    if hasattr(config, "signals_to_handle"):
        # SIGTERM and Ctrl-C stay the lifeline's; a name there must be, or torch complains.
        config.signals_to_handle = "SIGQUIT"
    if hasattr(config, "shutdown_timeout"):
        # Where a rank has failed, rank 0 may be writing a checkpoint.
        config.shutdown_timeout = max(config.shutdown_timeout or 0, limit_s)
    return config


def _alone(num_ranks: int) -> LaunchConfig:
    """The arguments for one machine, which no other has to find."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )


def _among(nodes: NodeRendezvous, num_ranks: int, limit_s: int) -> LaunchConfig:
    """The arguments for one of several machines, all of which know the address of the first."""
    return LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=num_ranks,
        # The same for all. No other job uses this port.
        run_id="flatout",
        rdzv_backend="static",
        rdzv_endpoint=f"{nodes.host}:{nodes.port}",
        rdzv_configs={"rank": nodes.node, "timeout": limit_s},
        max_restarts=0,
        monitor_interval=0.1,
    )


def _not_met(nodes: NodeRendezvous, error: RuntimeError) -> RunFailed:
    if nodes.node == 0 and is_port_taken(error):
        return port_taken("the first node", f"{nodes.host}:{nodes.port}")
    lines = str(error).strip().splitlines()
    return RunFailed(
        "ranks-not-together",
        f"the {nodes.count} nodes did not connect at {nodes.host}:{nodes.port}.",
        because=lines[0][:200] if lines else type(error).__name__,
        fix="flatout cluster status checks names and ports; the run's worker.log has the rest",
    )


def _logged_once(job: RankJob, error: FlatoutError) -> int:
    """Logs it in the run's history, on the first node only."""
    if job.nodes is None or job.nodes.node == 0:
        return log_refusal(job, error)
    say(error)
    return error.exit_code
