"""Executors for pieces: local processes, Ray or Dask. All run the same function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any

from flatout.engine.ingest.piece import Failure, carry_out
from flatout.engine.launch.ray_cluster import begin, join
from flatout.errors import RunFailed
from flatout.schema.ingest_protocol import Crew, IngestJob, PieceDone, SourcePiece
from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.port_check import check_port
from flatout.system.process_env import head_address
from flatout.system.source_path import library

Done = PieceDone | Failure

# Time limit for Dask's scheduler to respond.
_CONNECT_LIMIT_S = 20
_POLL_EVERY_S = 0.5
# Time limit for a first worker to join.
_WORKER_LIMIT_S = 60


def carry_out_all(
    job: IngestJob,
    pieces: Sequence[SourcePiece],
    on: Crew,
    workers: int | None,
    address: str | None,
) -> Iterator[Done]:
    """The outcome of each piece, in the order in which they finish.

    Raises:
        UsageError: data-package-not-installed, ray-not-installed.
        RunFailed: scheduler-not-reachable, ingest-workers-missing, ingest-worker-died.
    """
    count = max(1, min(workers or os.cpu_count() or 1, len(pieces)))
    if on == "ray":
        return _on_ray(job, pieces, count, address)
    if on == "dask":
        return _on_dask(job, pieces, count, address)
    return _here(job, pieces, count)


def _here(job: IngestJob, pieces: Sequence[SourcePiece], count: int) -> Iterator[Done]:
    if count == 1:
        yield from map(partial(carry_out, job), pieces)
        return
    # A fork would take along the thread that waits for the end of standard input.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(carry_out, job, piece) for piece in pieces]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise _died("local", error) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _on_ray(
    job: IngestJob, pieces: Sequence[SourcePiece], count: int, address: str | None
) -> Iterator[Done]:
    where = address or head_address("ray")
    with join(where) if where else begin(count) as cluster:
        ray = cluster.ray
        _await_worker("Ray", lambda: ray.cluster_resources().get("CPU", 0) >= 1)
        task = ray.remote(num_cpus=1)(carry_out)
        job_ref = ray.put(job)
        waiting = [task.remote(job_ref, piece) for piece in pieces]
        while waiting:
            ready, waiting = ray.wait(waiting)
            for reference in ready:
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    raise _died("ray", error) from error


def _on_dask(
    job: IngestJob, pieces: Sequence[SourcePiece], count: int, address: str | None
) -> Iterator[Done]:
    distributed = library("distributed", package="Dask's distributed")
    where = address or head_address("dask")
    if where:
        client = _join_dask(distributed, where)
    else:
        client = distributed.Client(
            n_workers=count, threads_per_worker=1, dashboard_address=None, silence_logs=40
        )
    with client:
        _await_worker("Dask", lambda: bool(client.scheduler_info()["workers"]))
        (job_future,) = client.scatter([job], broadcast=True)
        futures = [client.submit(carry_out, job_future, piece, pure=False) for piece in pieces]
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # Any failure that a worker could not send back as a value.
                raise _died("dask", error) from error
            finally:
                future.release()


def _join_dask(distributed: Any, address: str) -> Any:
    try:
        check_port(address)
        return distributed.Client(address, timeout=_CONNECT_LIMIT_S)
    except (
        Exception
    ) as error:  # Dask raises different exceptions for an address that does not respond.
        raise RunFailed(
            "scheduler-not-reachable",
            f"Dask does not respond at {address}.",
            because=(str(error).splitlines() or [type(error).__name__])[0],
            fix="check the address (--address) and that its head is running; or use --on local",
        ) from error


def _await_worker(name: str, is_there: Callable[[], bool]) -> None:
    """Waits until the cluster has a worker: without one, both would wait forever."""
    end_s = elapsed_s() + _WORKER_LIMIT_S
    while not is_there():
        if elapsed_s() > end_s:
            raise RunFailed(
                "ingest-workers-missing",
                f"{name} responds, but has no workers.",
                because=f"none has joined within {_WORKER_LIMIT_S} s",
                fix="start workers (flatout cluster up), or ingest on this machine: --on local",
            )
        sleep_s(_POLL_EVERY_S)


def _died(on: Crew, error: Exception) -> RunFailed:
    return RunFailed(
        "ingest-worker-died",
        "an ingest worker died without reporting an error; finished pieces are kept.",
        because=(str(error).strip().splitlines() or [type(error).__name__])[-1],
        fix="check its output; if memory ran out, use fewer --workers; then run it again"
        if on == "local"
        else f"check that every node has this flatout and can read the source; see {on}'s logs",
    )
