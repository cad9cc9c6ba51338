"""NCCL, torchrun, Ray and Dask."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    collective_timed_out,
    collectives_differ_between_ranks,
    dask_scheduler_unreachable,
    dask_version_mismatch,
    ddp_unused_parameters,
    distributed_backend_not_in_build,
    distributed_hostname_resolution,
    distributed_worker_failed,
    infiniband_peer_unreachable,
    mpi_no_slots,
    mpi_refuses_root,
    nccl_duplicate_gpu,
    nccl_p2p_broken_by_acs_iommu,
    nccl_socket_interface,
    nccl_version_or_cuda_mismatch,
    ray_head_unreachable,
    ray_python_version_mismatch,
    ray_resources_unavailable,
    ray_version_mismatch,
    rendezvous_port_in_use,
    rendezvous_unreachable,
)

RULES: tuple[Rule, ...] = (
    nccl_socket_interface.RULE,
    nccl_p2p_broken_by_acs_iommu.RULE,
    nccl_version_or_cuda_mismatch.RULE,
    nccl_duplicate_gpu.RULE,
    rendezvous_port_in_use.RULE,
    distributed_hostname_resolution.RULE,
    rendezvous_unreachable.RULE,
    collective_timed_out.RULE,
    collectives_differ_between_ranks.RULE,
    ddp_unused_parameters.RULE,
    distributed_backend_not_in_build.RULE,
    distributed_worker_failed.RULE,
    infiniband_peer_unreachable.RULE,
    ray_version_mismatch.RULE,
    ray_python_version_mismatch.RULE,
    ray_head_unreachable.RULE,
    ray_resources_unavailable.RULE,
    dask_version_mismatch.RULE,
    dask_scheduler_unreachable.RULE,
    mpi_refuses_root.RULE,
    mpi_no_slots.RULE,
)
