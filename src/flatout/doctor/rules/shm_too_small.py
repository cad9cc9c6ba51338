"""Shared memory, /dev/shm, is too small.

**Checks.** Bus errors of data loaders, shared-memory errors of NCCL, Ray, Paddle, MPI and Triton,
and a full `/dev/shm` in `df`. On the machine: a `/dev/shm` of 128 MiB or less, if there is a GPU.

**Why it matters.** Loader workers and NCCL exchange data through `/dev/shm`, which Docker and
Kubernetes limit to 64 MB by default. A worker that exceeds it is killed.

**Example.** `Unexpected bus error encountered in worker. This might be caused by insufficient
shared memory (shm).`

**Fix.** Start the container with `--shm-size=8g` or `--ipc=host`; by hand.

**Source.** docs.pytorch.org/docs/stable/data.html;
docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; NVIDIA/nccl#342,
pytorch/pytorch#16979.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

_DECISIVE = (
    "shm-worker-bus-error",
    "shm-nccl",
    "shm-file-too-large",
    "shm-ray",
    "shm-full",
    "shm-mpi-or-triton",
)
_AMBIGUOUS = ("shm-bus-error",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_DECISIVE, *_AMBIGUOUS):
        return None
    return Finding(
        rule="shm-too-small",
        severity="error",
        certainty=case.certainty(*_DECISIVE),
        problem="Shared memory, /dev/shm, is too small.",
        because="containers get 64 MB of it by default",
        evidence=case.evidence(*_DECISIVE, *_AMBIGUOUS),
        fixes=(
            Fix(
                text=(
                    "start the container with more shared memory, or share the host's "
                    "(`--ipc=host`)"
                ),
                commands=(
                    "df -h /dev/shm",
                    "docker run --shm-size=8g ...",
                ),
                where="host",
                changes=(
                    "the container is restarted; in Kubernetes, mount an emptyDir of "
                    "medium Memory on /dev/shm"
                ),
            ),
        ),
        confirm=("df -h /dev/shm",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Shared memory is as small as containers' default."""
    shm = next((one for one in machine.disks or () if one.role == "shm"), None)
    if shm is None or shm.total_bytes is None or shm.total_bytes > 128 * 2**20 or not machine.gpus:
        return ()
    return fact(f"/dev/shm has {bytes_text(shm.total_bytes)}", "/dev/shm")


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="shm-full", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "shm-worker-bus-error",
            "insufficient shared memory",
            "killed by signal: Bus error",
            "insufficient shared storage space",
            "Access to an undefined portion of a memory object",
            "ncclShmOpen",
            "SHMEM: Bus error",
        ),
        signature(
            "shm-nccl",
            "posix_fallocate failed",
            "shared memory segment",
            "failed to extend /dev/shm",
            "ftruncate failed",
            pattern=r"posix_fallocate failed\s?(?::|$)\s?(?:No space left|$)|"
            r"failed to extend /dev/shm/nccl|"
            r"creating shared memory segment \S{0,80}nccl-|"
            r"NCCL WARN.{0,40}ftruncate failed : No space",
        ),
        signature(
            "shm-file-too-large",
            "shared memory object",
            "unable to write to file",
            "unable to resize file",
            "allocate shared memory(shm)",
            "No space left on device",
            "unable to mmap",
            pattern=r"(?:unable to (?:open shared memory object|write to file|resize file|"
            r"allocate shared memory|mmap)|/dev/shm|psm_\w{4}|sem_|"
            r"shared_memory\.py)[^\n]{0,160}(?:No space left|not enough space|"
            r"\(28\))|No space left on device:? ?.{0,4}/?(?:dev/shm|psm_|torch_)|"
            r"unable to (?:write to file|"
            r"allocate shared memory\(shm\) for file) </torch_\d",
        ),
        signature(
            "shm-ray",
            "/dev/shm",
            pattern=r"exceeds /dev/shm size|instead of /dev/shm because /dev/shm has only",
        ),
        signature(
            "shm-full",
            "/dev/shm",
            pattern=r"^\s*(?:shm|tmpfs)\s+\S+\s+\S+\s+\S+\s+(?:9[5-9]|100)%\s+/dev/shm",
        ),
        signature(
            "shm-mpi-or-triton",
            "vader_segment",
            "shared memory region",
            "shared memory pool",
            "shared memory key",
            "not enough space for",
            pattern=r"not enough space for[^\n]{0,30}\n?[^\n]{0,80}(?:vader|sm_segment|"
            r"/dev/shm)|(?:increase the shared memory pool|"
            r"initialize shared memory key|"
            r"shared memory region)[^\n]{0,200}(?:No space|Bus error|requested size)",
            lines=3,
        ),
        signature(
            "shm-bus-error",
            "Bus error",
            "SIGBUS",
            pattern=r"(?:^|[\s:])Bus error(?: ?\(core dumped\))?\s*$|"
            r"Signal(?: code)?: ?(?:Bus error|7\b)|SIGBUS|signal 7\b.{0,20}Bus",
        ),
    ),
    explains=("host-oom-killer",),
)
