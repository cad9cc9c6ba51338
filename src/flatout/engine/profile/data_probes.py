"""What a batch wastes, and what reading its samples costs: more of what predictions are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from flatout.engine.feed.cache_check import caching_of
from flatout.engine.feed.collate import stacked
from flatout.engine.profile.lines import LineSampler
from flatout.engine.session.session import Session
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.errors import UsageError
from flatout.schema.step_profile import LineTime, OperatorProbe
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text
from flatout.system.clock import elapsed_s

_LEAST_LENGTH = 8
_READING_S, _LONGEST_READING_S = 0.6, 2.0


def repeated(batch: Any, size: int, times: int) -> Any:
    """A batch several times over.

    Raises:
        ValueError: a tensor has another number of rows than there are samples.
    """
    tensors = list(tensors_in(batch))
    if not tensors or any(one.dim() == 0 or len(one) != size for one in tensors):
        raise ValueError("a tensor of the batch does not have a row for each sample")
    return with_tensors(batch, iter([torch.cat([one] * times) for one in tensors]))


def padding_of(batch: Any) -> float | None:
    """The share of a batch's positions that only fill up its rows; None where there are no rows.

    Of whole numbers in two dimensions: those at the end of rows that all are the same number.
    """
    shares = [_padding(one) for one in tensors_in(batch) if _has_rows(one)]
    return min(shares) if shares else None


def _has_rows(tensor: Tensor) -> bool:
    is_whole = tensor.dtype in (torch.int64, torch.int32)
    return is_whole and tensor.dim() == 2 and tensor.shape[1] >= _LEAST_LENGTH


def _padding(tensor: Tensor) -> float:
    rows = tensor.cpu()
    value = rows[:, -1].mode().values
    # From the end, the first position that is something else.
    is_other = (rows != value).flip(1)
    length = rows.shape[1]
    num_filled = torch.where(is_other.any(1), is_other.int().argmax(1), length)
    # One at the end may be the end of a text.
    return float((num_filled - 1).clamp(min=0).float().mean()) / length


def cut(batch: Any, share: float) -> Any:
    """A batch whose rows are that much shorter; what has other rows stays."""
    length = next(one.shape[1] for one in tensors_in(batch) if _has_rows(one))
    kept = max(1, round(length * (1 - share)))
    return with_tensors(
        batch,
        iter([one[:, :kept] if one.dim() >= 2 and one.shape[1] == length else one
              for one in tensors_in(batch)]),
    )  # fmt: skip


def data_probes(
    session: Session, data_s: float, num_samples: int
) -> tuple[list[OperatorProbe], tuple[LineTime, ...], str | None]:
    """What would make reading samples faster, for map-style data that a loader reads.

    Args:
        session: that has been profiled.
        data_s: for which a step waits for its data.
        num_samples: of a step.

    Returns:
        The probes, the lines in which the time for a step's samples goes, and why samples cannot
        be kept in memory, if they cannot.
    """
    data, workers = session.train_data, session.recipe.loader_workers.value
    collate = session.experiment.collate or stacked
    sampler = LineSampler(part="data")
    # No more than a batch is kept: samples may be large.
    samples: list[Any] = []
    num_read = 0
    began_s = elapsed_s()
    with sampler.running():
        while num_read < num_samples or elapsed_s() - began_s < _READING_S:
            sample = data[num_read % len(data)]
            num_read += 1
            if num_read <= num_samples:
                samples.append(sample)
            if elapsed_s() - began_s > _LONGEST_READING_S:
                break
    read_s = (elapsed_s() - began_s) / num_read
    collate_s = _seconds_of(lambda: collate(samples)) / len(samples) * num_samples
    not_cached, is_stacked = _caching(session)
    cached_s = _selecting_s(samples, num_samples) if is_stacked else collate_s
    lines = sampler.lines(1)
    lines = tuple(_per_step(line, num_samples / num_read) for line in lines)
    whole_s = read_s * num_samples + collate_s
    found = [
        _fixed_ratio(
            "loader-starved", data_s, min(1.0, cached_s / data_s),
            {"data_path": "cached"}, "samples kept in memory, which are only put together",
        ),
    ]  # fmt: skip
    num_cores = session.facts.num_cores
    if workers < num_cores:
        # On a GPU the cores are free; on a CPU the step needs them, too.
        others_s = whole_s / num_cores
        if session.device.type == "cuda":
            others_s = max(0.0, whole_s / num_cores - data_s)
        found.append(
            _fixed_ratio(
                "loader-starved", data_s, min(1.0, others_s / data_s),
                {"loader_workers": num_cores},
                f"{counted_text(num_cores, 'worker')} reading at the same time",
            )
        )  # fmt: skip
    return found, lines, not_cached


def _fixed_ratio(
    advice: str, affected_s: float, ratio: float, changes: dict[str, Any], note: str
) -> OperatorProbe:
    return OperatorProbe(
        advice=advice,
        affected_s=affected_s,
        ratio=Interval(middle=ratio, low=0.7 * ratio, high=min(1.0, 1.3 * ratio + 0.05)),
        changes=changes,
        note=note,
    )


def _per_step(line: LineTime, factor: float) -> LineTime:
    return msgspec.structs.replace(line, seconds=line.seconds * factor)


def _selecting_s(samples: list[Any], num_samples: int) -> float:
    """Seconds for a batch of samples that are kept as rows of tensors."""
    rows, order = stacked(samples), torch.randperm(len(samples))
    took_s = _seconds_of(lambda: [one.index_select(0, order) for one in tensors_in(rows)])
    return took_s / len(samples) * num_samples


def _seconds_of(act: Callable[[], object]) -> float:
    """Seconds of the second call: the first one makes memory ready."""
    act()
    began_s = elapsed_s()
    act()
    return elapsed_s() - began_s


def _caching(session: Session) -> tuple[str | None, bool]:
    """Why samples cannot be kept in memory, if they cannot; whether as rows of tensors."""
    try:
        caching = caching_of(session.train_data, session.experiment.collate)
    except UsageError as error:
        return error.because or error.problem, False
    return None, caching.is_stacked
