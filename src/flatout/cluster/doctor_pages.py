"""Rules of the doctor that the checks of a cluster find, too: their pages tell more of them."""

from __future__ import annotations

CLUSTER_HEADS = {"ray": "ray-head-unreachable", "dask": "dask-scheduler-unreachable"}
VERSIONS = {
    "ray": "ray-version-mismatch",
    "dask": "dask-version-mismatch",
    "distributed": "dask-version-mismatch",
}
DUPLICATE_GPU = "nccl-duplicate-gpu"
HOST_NAMES = "distributed-hostname-resolution"
INTERFACE = "nccl-socket-interface"
PORT_IN_USE = "port-in-use"
RAY_PYTHONS = "ray-python-version-mismatch"
RENDEZVOUS = "rendezvous-unreachable"
SHARED_MEMORY = "shm-too-small"
