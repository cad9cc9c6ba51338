"""Builds what is measured: the plain loop, and flatout's loop under any recipe.

Every contestant is built from the experiment's factories with the same seed, so all begin with the
same weights and see the same batches; nothing of the user's is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from flatout.engine.experiment import Experiment
from flatout.engine.feed.cached_feed import CachedFeed
from flatout.engine.feed.datasets import RepeatedSubset
from flatout.engine.model.precision import (
    check_layers,
    check_precision,
    check_repeatable,
    set_matmul_precision,
)
from flatout.engine.recipe.default_recipe import changed_recipe, chosen_recipe
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runtime.allocator import why_not_retained
from flatout.engine.runtime.gpu_memory import free_bytes
from flatout.engine.runtime.lazy_compiler import use_deterministic_algorithms
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.engine.session.session import (
    BuiltExperiment,
    Session,
    build,
    process_settings,
    restored_torch_settings,
)
from flatout.engine.session.step_kinds import shared_step
from flatout.engine.step.compiled_loss import why_not_compiled
from flatout.engine.tuner.ab_timing import RecipeLoop, TimedLoop
from flatout.engine.tuner.baseline_loop import BaselineLoop
from flatout.engine.tuner.cache_key import identity
from flatout.engine.tuner.data_subset import CacheSubset
from flatout.engine.tuner.stored_recipe import saving_fields
from flatout.schema.recipe import Choice, Compiled, Recipe, check_field, recipe_fields
from flatout.schema.tuning import Setting
from flatout.tune.candidates import plain_changes
from flatout.tune.compiling import FIELDS as COMPILED_FIELDS
from flatout.tune.memory import ReservedMemory


@dataclass(frozen=True, kw_only=True)
class TuningTask:
    """The subject of a search: an experiment as it is trained.

    fixed: recipe fields that the user has set.
    baseline: those that the plain loop needs to fit into the memory, where that is known.
    room: what other programs are to have of the device's memory; None where it is not set.
    limit_bytes: what a container lets this process have of the computer's memory.
    pinning_problem: why memory cannot be pinned; None where it can.
    part_size: samples of the part on which a cache is measured; None finds a size.
    """

    experiment: Experiment
    seed: int = 0
    device_name: str | None = None
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    baseline: dict[str, Any] = dataclasses.field(default_factory=dict)
    room: ReservedMemory | None = None
    limit_bytes: int | None = None
    pinning_problem: str | None = None
    part_size: int | None = None


class CandidateBuilder:
    """Builds the candidates of one task, one after another.

    identity: the facts that must be equal for what is found to hold another time.

    Args:
        subject: what is tuned.
    """

    def __init__(self, subject: TuningTask) -> None:
        self.subject = dataclasses.replace(
            subject, experiment=_without_validation(subject.experiment)
        )
        first = build(self.subject.experiment, subject.seed, subject.device_name)
        self.setting = _setting(first, subject)
        self._facts = first.facts
        self.device = first.device
        self.train_data = first.train_data
        self.identity = identity(first, subject.fixed)
        self.setting = msgspec.structs.replace(self.setting, defaults=self._defaults())
        # Report unsupported fixed settings before anything is measured.
        _check(self.plain_recipe(), first)
        # Still unused: the first contestant is built from it.
        self._spare: BuiltExperiment | None = first
        # What samples with an index can be kept as; None where they have none.
        self.cache_subset: CacheSubset | None = None
        if self.setting.data_kind == "map-style":
            self.cache_subset = CacheSubset(
                self.train_data,
                self.subject.experiment.collate,
                batch_size=self.setting.batch_size,
                reserved_bytes=_left_to_others(subject, first.device),
                size=subject.part_size,
            )
            if subject.fixed.get("data_path") == "cached":
                # What cannot be kept is refused before anything is measured.
                _ = self.cache_subset.caching

    def plain(self, *, is_of_part: bool = False, timer: StepTimer | None = None) -> TimedLoop:
        """The plain loop; see `session` for is_of_part, and `contestant` for timer."""
        built = self._built(None, is_of_part)
        threads = self.setting.num_threads
        recipe = self.plain_recipe()
        is_benchmarking = recipe.benchmark.value
        return TimedLoop(
            runner=BaselineLoop(
                built,
                recipe.micro_batch_size.value,
                recomputed=float(recipe.activation_checkpointing.value),
                timer=timer,
                # Else its time may be that of threads that wait for each other, by chance.
                placement=ThreadPlacement(built.device),
            ),
            settings=lambda: _plain_settings(threads, is_benchmarking=is_benchmarking),
            device=built.device,
        )

    def session(self, changes: dict[str, Any], *, is_of_part: bool = False) -> Session:
        """Live objects under the plain loop's settings but for these.

        What keeps samples has a part of them, which are kept already.

        Args:
            changes: recipe fields with their values.
            is_of_part: reads the same part of the samples, where they are not kept.

        Raises:
            UsageError: the recipe cannot be carried out here.
        """
        recipe = self.recipe(changes)
        built = self._built(changes, is_of_part)
        _check(recipe, built)
        with process_settings(recipe):
            session = Session(built, recipe)
            if isinstance(session.feed, CachedFeed):
                session.feed.fill()
        return session

    def contestant(self, session: Session, timer: StepTimer | None = None) -> TimedLoop:
        """flatout's loop over a session; with a timer it measures where time goes."""
        timer = timer or StepTimer(session.device)
        recipe = session.recipe
        num_ahead = recipe.loader_workers.value * recipe.loader_prefetch.value
        return TimedLoop(
            runner=RecipeLoop(session, shared_step(session, timer), timer),
            settings=lambda: process_settings(recipe),
            device=session.device,
            num_ahead=0 if isinstance(session.feed, CachedFeed) else num_ahead,
        )

    def plain_recipe(self) -> Recipe:
        """A plain loop's settings as a recipe, with what the user has fixed."""
        plain = {
            name: Choice(value=value, why="as in a plain loop")
            for name, value in plain_changes(self.setting).items()
        }
        recipe = msgspec.structs.replace(chosen_recipe(self._facts, {}), **plain)
        recipe = changed_recipe(
            msgspec.structs.replace(recipe, **saving_fields(self.setting.baseline)),
            self.subject.fixed,
        )
        # Also where the user wants it: compiling each candidate takes longer than measuring it.
        off: Choice[Compiled] = Choice(value="off", why="as in a plain loop")
        return msgspec.structs.replace(recipe, compiled=off)

    def default_recipe(self) -> Recipe:
        """The recipe of a run that is not searched, with what it needs to fit into the memory."""
        return msgspec.structs.replace(
            chosen_recipe(self._facts, self.subject.fixed),
            **saving_fields(self.setting.baseline),
        )

    def _defaults(self) -> dict[str, Any]:
        """The fields in which the defaults differ from a plain loop's settings.

        `data_path` is always included: another one may be tried.
        """
        plain, defaults = self.plain_recipe(), self.default_recipe()
        is_unpinned = self.setting.pinning_problem is not None
        left_out = {*COMPILED_FIELDS, *({"loader_pin_memory"} if is_unpinned else ())}
        return {
            name: value
            for name in recipe_fields()
            if name not in left_out
            and ((value := getattr(defaults, name).value) != getattr(plain, name).value
                 or name == "data_path")
        }  # fmt: skip

    def recipe(self, changes: dict[str, Any]) -> Recipe:
        """The whole recipe of a candidate."""
        tried = {
            name: Choice(value=check_field(name, value), why="being tried", origin="measured")
            for name, value in changes.items()
        }
        return msgspec.structs.replace(self.plain_recipe(), **tried)

    def _built(self, changes: dict[str, Any] | None, is_of_part: bool) -> BuiltExperiment:
        """The experiment's objects for these changes; None is the plain loop."""
        subject, changed = self.subject, changes or {}
        name = changed.get("device") or subject.device_name
        is_cached = changes is not None and (subject.fixed | changes).get("data_path") == "cached"
        if self.cache_subset is not None and (is_cached or is_of_part):
            part = self.cache_subset.part
            data = part if is_cached else RepeatedSubset(part=part)
            return build(subject.experiment, subject.seed, name, data)
        spare, self._spare = self._spare, None
        if spare is not None and "device" not in changed:
            return spare
        return build(subject.experiment, subject.seed, name, self.train_data)


def _left_to_others(subject: TuningTask, device: torch.device) -> int:
    """The computer's memory to leave free."""
    return subject.room.leave_bytes if subject.room is not None and device.type == "cpu" else 0


def _check(recipe: Recipe, built: BuiltExperiment) -> None:
    """Refuses a recipe that cannot be carried out on what was built.

    Raises:
        UsageError: precision-not-here, recipe-does-not-fit.
    """
    check_precision(recipe.precision.value, built.device)
    check_repeatable(recipe, built.device)
    check_layers(recipe.precision.value, built.model, built.device)
    implementation = recipe.optimizer_implementation.value
    built.optimizers.check_implementation(implementation, can_be_fused=built.facts.can_be_fused)
    check_recipe(recipe, built.facts)


def _without_validation(experiment: Experiment) -> Experiment:
    """The experiment with what belongs to its step alone."""
    return dataclasses.replace(
        experiment,
        validation_data=None,
        early_stop=None,
        schedule=experiment.schedule if experiment.schedule_every == "step" else None,
    )


@contextlib.contextmanager
def _plain_settings(num_threads: int, *, is_benchmarking: bool = False) -> Iterator[None]:
    """The settings of an untuned process, with the fp32 precision that recipes begin with.

    torch by itself lets cuDNN round the inputs of convolutions (tf32): the loops would not compute
    the same, and one would be faster for that alone.
    """
    with restored_torch_settings():
        torch.set_num_threads(num_threads)
        set_matmul_precision("fp32")
        torch.backends.cudnn.benchmark = is_benchmarking
        use_deterministic_algorithms(False)
        yield


def _setting(built: BuiltExperiment, subject: TuningTask) -> Setting:
    facts, device, room = built.facts, built.device, subject.room
    return Setting(
        device=device.type,
        data_kind=facts.data_kind,
        batch_size=facts.batch_size,
        num_cores=facts.num_cores,
        num_threads=facts.num_threads,
        has_batch_norm=facts.has_batch_norm,
        has_volumes=facts.has_volumes,
        has_bf16=_has_bf16(device),
        has_tf32=device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0),
        can_be_fused=facts.can_be_fused,
        has_foreach="foreach" in built.optimizers.only.defaults,
        forms_to_capture=facts.forms_to_capture,
        not_captured=facts.not_captured,
        has_blocks=facts.num_blocks > 0,
        fixed=subject.fixed,
        baseline=subject.baseline,
        data_bytes=facts.data_bytes,
        pinning_problem=subject.pinning_problem,
        free_bytes=free_bytes(device, subject.limit_bytes) - (room.leave_bytes if room else 0),
        not_retained=why_not_retained(),
        not_compiled=why_not_compiled(device),
        is_deterministic=bool(subject.fixed.get("deterministic", device.type == "cpu")),
        topology=facts.topology,
    )


def _has_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 faster than fp32; without such units it is slower."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
