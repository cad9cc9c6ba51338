"""Over how many processes a training is spread, and who starts them: `--on local:4`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.machine import Gpu, Machine
from flatout.schema.units import counted_text

# What the process that starts the ranks ends with when one of them died without a word: flatout
# starts them again.
RANK_DIED = 10
# What stands for its exit code where no one can be asked any more how it has ended.
LAUNCHER_LOST = 11
# What a job of another machine ends with that does not see the run's folder.
NOT_SHARED = 12
# In good order, or reported by rank 0 in the run's folder: 1 could not continue, 2 wrong use, 3 our
# fault.
_TOLD = (1, 2, 3)

# How long ranks wait for each other, unless the variable says otherwise: a straggler is waited for,
# a rank that hangs is not waited for all night.
RANKS_LIMIT_NAME = "FLATOUT_RANKS_LIMIT_S"
RANKS_LIMIT_S = 600.0

# Those that start their ranks on this machine: they need a number, and its GPUs are counted.
LOCAL = ("local", "torchrun")
# Each is a module of `engine/launch`; how to add one is said there.
LAUNCHERS = (*LOCAL, "ray")
# A cluster of containers: its Ray is handed the training as a job; else its nodes start the ranks.
CLUSTER = "cluster"
# A machine has no more sensible use for them; a mistyped number is not to start a thousand.
_MOST_RANKS = 1024


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher of a training's ranks, and their number.

    launcher: a module of `engine/launch`. num_ranks: processes that train together; 0 for as many
    as Ray has room for. place: to whom the training is handed: `cluster`, or the address of a
    Ray's dashboard; None starts the launcher here.
    """

    launcher: str
    num_ranks: int
    place: str | None = None

    def __str__(self) -> str:
        """As it is passed to the process that starts the ranks."""
        return f"{self.launcher}:{self.num_ranks}" if self.num_ranks else self.launcher

    def check(self, num_gpus: int, device: str) -> None:
        """Refuses more ranks than GPUs, where each rank needs one of this machine's.

        Args:
            num_gpus: that torch can use here.
            device: as asked for: `auto`, `cpu`, `cuda` or `cuda:N`.

        Raises:
            UsageError: ranks-share-a-gpu, ranks-do-not-fit.
        """
        if self.launcher not in LOCAL or self.num_ranks == 1:
            return
        if device.startswith("cuda:"):
            raise UsageError(
                "ranks-do-not-fit",
                f"`--device {device}` names one GPU for {self.num_ranks} ranks.",
                because="each rank uses the GPU with its own number",
                fix="use --device cuda, and CUDA_VISIBLE_DEVICES to choose among the GPUs",
            )
        if device == "cpu" or num_gpus == 0 or num_gpus >= self.num_ranks:
            return
        gpus = counted_text(num_gpus, "GPU")
        raise UsageError(
            "ranks-share-a-gpu",
            f"`--on {self}`: there are {self.num_ranks} ranks for {gpus}.",
            because="NCCL, which carries gradients between GPUs, refuses two ranks on one GPU; "
            "one rank uses the whole GPU anyway",
            fix=f"use --on {self.launcher}:{num_gpus}, or train on the CPU: --device cpu",
        )


def num_gpus_for(machine: Machine, chosen: str | None) -> int:
    """GPUs of a machine that its torch can use, where CUDA_VISIBLE_DEVICES has that value."""
    num_gpus, torch = len(machine.gpus), machine.framework("torch")
    if torch is not None and torch.build == "cpu":
        return 0
    if chosen is None:
        return num_gpus
    names = [name.strip() for name in chosen.split(",")]
    # CUDA stops at the first name that it cannot use.
    end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
    return min(end, num_gpus)


def visible_gpu(
    machine: Machine, number: int, chosen: str | None, *, is_bus_order: bool = True
) -> Gpu | None:
    """The GPU `cuda:number` where CUDA_VISIBLE_DEVICES has that value; None if unknown.

    is_bus_order: CUDA counts in PCI bus order. In its own order the fastest GPU is the first one;
    of several, a number then says nothing here.
    """
    names = [str(gpu.index) for gpu in machine.gpus]
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
    if number >= len(names) or not (name := names[number]) or "-1" in names[: number + 1]:
        return None
    if not is_bus_order and len(machine.gpus) > 1 and not name.startswith("GPU-"):
        return None
    for gpu in machine.gpus:
        # CUDA takes the beginning of a UUID as well.
        if name == str(gpu.index) or (
            name.startswith("GPU-") and (gpu.uuid or "").startswith(name)
        ):
            return gpu
    return None


def parse_placement(text: str) -> Placement:
    """Parses `--on`: `local:4`, `torchrun:2`, `ray`, `cluster:2`, `http://HOST:8265`.

    Raises:
        UsageError: bad-placement.
    """
    text = text.strip()
    if text.startswith(("http://", "https://")):
        address, _, number = text.partition("#")
        return Placement(launcher="ray", num_ranks=_number(text, number or "0"), place=address)
    name, colon, number = text.partition(":")
    if name not in (*LAUNCHERS, CLUSTER):
        raise UsageError(
            "bad-placement",
            f"`--on {text}`: unknown launcher.",
            fix=nearest(name, (*LAUNCHERS, CLUSTER)) + "; such as --on local:2",
        )
    if name in LOCAL:
        return Placement(launcher=name, num_ranks=_number(text, number, least=1))
    num_ranks = _number(text, number, least=1) if colon else 0
    if name == CLUSTER:
        return Placement(launcher="ray", num_ranks=num_ranks, place=CLUSTER)
    return Placement(launcher=name, num_ranks=num_ranks)


def _number(text: str, number: str, *, least: int = 0) -> int:
    num_ranks = int(number) if re.fullmatch("[0-9]{1,9}", number) else -1
    if not least <= num_ranks <= _MOST_RANKS:
        name = re.split("[:#]", text)[0]
        raise UsageError(
            "bad-placement",
            f"`--on {text}` needs the number of ranks.",
            because=f"it takes a number from 1 to {_MOST_RANKS}",
            fix="--on http://HOST:8265#2" if name.startswith("http") else f"--on {name}:2",
        )
    return num_ranks


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of a cluster's node for ranks; each rank takes a GPU, or else a CPU."""

    num_cpus: int
    num_gpus: int = 0


def take_gpus(nodes: Sequence[NodeCapacity], num_ranks: int, device: str) -> bool:
    """Whether each rank of a training over a cluster takes a GPU; else it takes a CPU.

    Args:
        nodes: all that compute.
        num_ranks: over all of them; 0 for as many as there are GPUs, or else nodes.
        device: as asked for: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    num_cpus = sum(node.num_cpus for node in nodes)
    num_gpus = sum(node.num_gpus for node in nodes)
    on_gpus = device.startswith("cuda") or (device != "cpu" and num_gpus > 0)
    room, name = (num_gpus, "GPU") if on_gpus else (num_cpus, "CPU")
    if max(num_ranks, 1) <= room:
        return on_gpus
    fixes = [f"use --on with at most {counted_text(room, 'rank')}"] if room else []
    if on_gpus and num_cpus >= num_ranks:
        fixes.append("train on CPUs: --device cpu")
    ranks = counted_text(max(num_ranks, 1), "rank")
    raise UsageError(
        "ranks-do-not-fit",
        f"the cluster has too few {name}s for {ranks}.",
        because=f"each needs one {name}, and the nodes have {room}",
        fix="; or ".join(fixes) or "flatout cluster status shows what the nodes have",
    )


def spread(num_ranks: int, num_nodes: int) -> list[int]:
    """The number of ranks on each node: as even as can be, the first nodes the more."""
    share, more = divmod(num_ranks, num_nodes)
    return [share + (node < more) for node in range(num_nodes)]


def ending_code(codes: Mapping[int, int]) -> int:
    """The exit code of a launcher whose ranks ended with these, by their numbers.

    The report of rank 0 counts. If a rank was killed, rank 0 has reported that another is lost; if
    it was rank 0 itself, there is no report, and RANK_DIED makes the ranks restart. The same holds
    of the nodes of several launchers, the first with rank 0.
    """
    first = codes.get(0, RANK_DIED)
    if first in _TOLD or (first == 0 and not any(codes.values())):
        return first
    return RANK_DIED if any(codes.values()) else first
