"""Everything one segment of training works with, built from an experiment under one recipe.

A change of recipe ends a segment: the state is taken out of one session and put into the next.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.cache_check import Caching, caching_of
from flatout.engine.feed.select_feed import FeedOptions, built_data, check_streams_differ
from flatout.engine.model import precision
from flatout.engine.model.activation_checkpointing import ActivationCheckpointing
from flatout.engine.model.ema import WeightAverage
from flatout.engine.model.float8 import Float8Products
from flatout.engine.model.late_buffers import structure_of
from flatout.engine.model.module_attributes import ModuleAttributes
from flatout.engine.optim.lr_schedulers import LrSchedulers
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.progress import TrainState
from flatout.engine.ranks.fsdp import FullySharded, check_can_be_sharded
from flatout.engine.ranks.model_layout import ON_ONE_RANK, ModelLayout
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.ranks.sync_batchnorm import SyncBatchNorms
from flatout.engine.ranks.synced_passes import SyncedPasses
from flatout.engine.recipe.default_recipe import chosen_recipe
from flatout.engine.recipe.experiment_facts import ExperimentFacts, check_model, experiment_facts
from flatout.engine.runtime import rng
from flatout.engine.runtime.allocator import allocator_settings
from flatout.engine.runtime.cpu_affinity import affinity_settings
from flatout.engine.runtime.device import chosen_device, use_device
from flatout.engine.runtime.lazy_compiler import use_deterministic_algorithms
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.engine.runtime.user_code import location_of
from flatout.engine.session.hook_set import HookSet
from flatout.engine.session.optimizer_attributes import OptimizerAttributes
from flatout.engine.step.compiled_loss import StepLoss
from flatout.engine.step.compiled_optimizer import OptimizerSteps
from flatout.engine.step.cuda_graphs import GraphRecorder, graphs_on
from flatout.engine.step.step import StepParts
from flatout.engine.tensors.nested import placer, tensors_in
from flatout.engine.tensors.sharded import local_part
from flatout.errors import UsageError
from flatout.schema.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class BuiltExperiment:
    """An experiment's live objects before a recipe is applied to them.

    hooks: which only a training calls: neither trials nor the gate do.
    graphs: what records work of the device; None where nothing can.
    sharding: what has spread the weights over ranks; None where they are whole.
    num_sharing: ranks of this machine, each with its own cached samples.
    length: epochs and steps in place of the experiment's own; one of them is None.
    file: sha256 of the text that describes the experiment; None where there is no file.
    """

    experiment: Experiment
    seed: int
    device: torch.device
    model: nn.Module
    optimizers: Optimizers
    train_data: Any
    facts: ExperimentFacts
    hooks: HookSet
    graphs: GraphRecorder | None = None
    sharding: FullySharded | None = None
    num_sharing: int = 1
    length: tuple[int | None, int | None] = (None, None)
    file: str | None = None

    @property
    def schedule_steps(self) -> int | None:
        """The number of steps of a schedule in the whole training; None if unknown."""
        own = self.experiment.epochs, self.experiment.steps
        epochs, steps = own if self.length == (None, None) else self.length
        if self.experiment.schedule_every == "step":
            return self.num_updates(epochs, steps)
        if steps is None:
            return epochs
        per_epoch = self.num_updates(1, None)
        return math.ceil(steps / per_epoch) if per_epoch else None

    def recipe(self, fixed: dict[str, Any]) -> Recipe:
        """The recipe for it: what the user fixed, and defaults."""
        return chosen_recipe(self.facts, fixed)

    @cached_property
    def caching(self) -> Caching:
        """The ways of caching its samples; reads some of them.

        Raises:
            UsageError: data-cannot-be-cached.
        """
        collate = self.experiment.collate
        return caching_of(self.train_data, collate, num_sharing=self.num_sharing)

    def caching_for(self, recipe: Recipe) -> Caching | None:
        """The same where the recipe keeps samples; None where they are read again each time."""
        is_cached = recipe.data_path.value == "cached" and self.facts.data_kind == "map-style"
        return self.caching if is_cached else None

    def num_updates(self, epochs: int | None, steps: int | None) -> int | None:
        """Updates in so many epochs or steps; None where the data has no length."""
        if steps is not None or epochs is None:
            return steps
        if self.facts.data_kind == "tensors":
            num_samples = len(next(tensors_in(self.train_data)))
        elif hasattr(self.train_data, "__len__"):
            num_samples = len(self.train_data)
        else:
            return None
        return epochs * math.ceil(num_samples / self.facts.batch_size) or None


def build(
    experiment: Experiment,
    seed: int,
    device_name: str | None,
    train_data: Any = None,
    layout: ModelLayout = ON_ONE_RANK,
) -> BuiltExperiment:
    """Builds model, optimizer and training data, the same ones whenever the seed is the same.

    Args:
        experiment: what is built.
        seed: of the weights.
        device_name: as in a recipe; None takes the best device here.
        train_data: what its factory has given before, where it need not be called again.
        layout: how the weights are laid out.
    """
    device = chosen_device(device_name)
    use_device(device)

    def new_model() -> nn.Module:
        rng.seed_generators(rng.mixed_seed(seed, "model"))
        return check_model(experiment.model(), experiment)

    laid_out = layout.built(new_model, functools.partial(_optimizers, experiment), device)
    model, is_spread = laid_out.model, laid_out.sharding.value == "full"
    if not is_spread:
        model = model.to(device)
    optimizers = _optimizers(experiment, model)
    if train_data is None:
        train_data = built_data(experiment, experiment.train_data)
    hooks = HookSet(experiment)
    facts = experiment_facts(experiment, model, optimizers, train_data, device)
    if hooks.has("on_step"):
        reason = "a hook's on_step runs after every step, and may change what a graph holds"
        facts = replace(facts, has_step_hook=True, forms_to_capture=(), not_captured=reason)
    sharding = None
    if is_spread:
        check_can_be_sharded(model, optimizers)
        # They keep the whole weights, of which each rank is to keep a part.
        del optimizers
        sharding = layout.spread(laid_out, device)
        optimizers = _optimizers(experiment, model)
    return BuiltExperiment(
        experiment=experiment,
        seed=seed,
        device=device,
        model=model,
        optimizers=optimizers,
        train_data=train_data,
        facts=replace(facts, sharding=laid_out.sharding),
        hooks=hooks,
        graphs=graphs_on(device),
        sharding=sharding,
    )


def _optimizers(experiment: Experiment, model: nn.Module) -> Optimizers:
    named = experiment.named_parameters
    made = Optimizers(
        experiment.optimizer(model.named_parameters() if named else model.parameters())
    )
    own = {id(parameter) for parameter in model.parameters()}
    trained = (
        parameter for of in made for group in of.param_groups for parameter in group["params"]
    )
    if own and not any(id(parameter) in own for parameter in trained):
        location = location_of(experiment.optimizer)
        raise UsageError(
            "bad-experiment",
            "`optimizer` trains none of the model's weights.",
            because=location.with_code if location is not None else None,
            fix="pass the parameters that the function receives: "
            "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=...)",
        )
    return made


@contextlib.contextmanager
def process_settings(recipe: Recipe) -> Iterator[None]:
    """Sets process-wide settings and restores them, so that a notebook is unaffected."""
    with (
        allocator_settings(recipe.allocator.value),
        affinity_settings(recipe.cpu_affinity.value),
        _torch_settings(recipe),
    ):
        yield


@contextlib.contextmanager
def restored_torch_settings() -> Iterator[None]:
    """Restores torch's process-wide settings on exit."""
    threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    benchmarks = torch.backends.cudnn.benchmark
    try:
        with precision.restored_fp32_settings():
            yield
    finally:
        torch.set_num_threads(threads)
        use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = benchmarks


@contextlib.contextmanager
def _torch_settings(recipe: Recipe) -> Iterator[None]:
    with restored_torch_settings():
        torch.set_num_threads(recipe.num_threads.value)
        precision.set_matmul_precision(recipe.precision.value)
        use_deterministic_algorithms(recipe.deterministic.value)
        # Filling every new tensor guards code that reads unwritten memory; it costs a pass
        # over memory for each operation, and a model that does so is wrong in any mode.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = recipe.benchmark.value
        yield


class Session:
    """Live objects under one recipe, with the state that goes from session to session.

    Args:
        built: the experiment's objects; they belong to this session from now on.
        recipe: how steps are executed.
        ranks: those that train together.
    """

    def __init__(self, built: BuiltExperiment, recipe: Recipe, ranks: RankGroup = ALONE) -> None:
        self.experiment = built.experiment
        self.recipe = recipe
        self.ranks = ranks
        self.seed, self.file = built.seed, built.file
        self.device = built.device
        self.placement = ThreadPlacement(built.device)
        self.facts = built.facts
        self.train_data, self.hooks = built.train_data, built.hooks
        self.model = built.model
        self.optimizers = built.optimizers
        self.graphs = built.graphs
        precision.check_precision(recipe.precision.value, self.device)
        precision.check_layers(recipe.precision.value, self.model, self.device)
        is_channels_last = recipe.memory_format.value == "channels_last"
        if is_channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            # Some optimizers, Adagrad for one, have made their state by now.
            self.optimizers.match_layout()
        self._float8 = Float8Products(self.model) if recipe.precision.value == "float8" else None
        self.activations = self._checkpointing()
        if isinstance(ranks, MultiRank):
            ranks.connection.tensors.is_awaited = recipe.exchange.value == "agreed"
        self.sharding = built.sharding
        self.passes = self._passes()
        self._norms = None
        if self.passes is not None and recipe.batch_norm.value == "synchronized":
            self._norms = SyncBatchNorms(self.model, self.passes)
        self._set_optimizers()
        self.learning_rates = LrSchedulers(built.experiment, self.optimizers, built.schedule_steps)
        self._num_weights = self.optimizers.num_weights()
        self.attributes = ModuleAttributes(self.model)
        self.optimizer_attributes = OptimizerAttributes(self.optimizers)
        self.scaler = precision.gradient_scaler(recipe.precision.value, self.device)
        decay = built.experiment.ema
        self.average = WeightAverage(self.model, decay) if decay is not None else None
        self.position = TrainState()
        # Rules of warnings given once in a run, not after each validation.
        self.warned_rules: set[str] = set()
        reading = FeedOptions(
            experiment=built.experiment,
            recipe=recipe,
            seed=built.seed,
            caching=built.caching_for(recipe),
            cpus=built.facts.topology.indices,
            share=ranks.share,
        )
        self.feed = reading.training_feed(built.train_data, self.device)
        self.validation_feed = reading.validation_feed(self.device)
        check_streams_differ(self.feed, self.validation_feed)
        loss = built.experiment.loss
        self.loss = StepLoss(loss, recipe) if loss is not None else None
        self.optimizer_steps = OptimizerSteps(recipe, lambda: self.position)
        self.to_device = placer(self.device, is_channels_last)
        self.autocast = precision.forward_settings(
            recipe.precision.value, recipe.attention.value, self.device
        )
        # Of the model as it is built: what comes later, a resume must make room for.
        self.built_forms = structure_of(self.model)
        rng.seed_generators(self.training_seed())

    def training_seed(self, *parts: int) -> int:
        """The seed of what a step draws; dropout leaves other elements out on another rank."""
        rank = self.ranks.rank
        return rng.mixed_seed(self.seed, "training", *((rank, *parts) if rank else ()))

    def _set_optimizers(self) -> None:
        self.optimizers.set_capturable(is_captured=self.recipe.capture.value == "step")
        self.optimizers.set_implementation(self.recipe.optimizer_implementation.value)

    def _passes(self) -> SyncedPasses | None:
        """The object that keeps the ranks together if they exchange something within a pass."""
        if self.sharding is not None:
            return self.sharding.passes
        is_own = self.experiment.step is not None
        is_needed = is_own or self.recipe.batch_norm.value == "synchronized"
        if not is_needed or not isinstance(self.ranks, MultiRank):
            return None
        return SyncedPasses(self.ranks, is_agreed=self.recipe.exchange.value == "agreed")

    def _checkpointing(self) -> ActivationCheckpointing | None:
        share = float(self.recipe.activation_checkpointing.value)
        if not share:
            return None
        kernel = precision.attention_kernel(self.recipe.attention.value)
        return ActivationCheckpointing(self.model, kernel, share)

    def adapt(self, recipe: Recipe) -> None:
        """Continues under a recipe that differs in how a step uses memory, or in how it is made:
        in the size of micro-batches, in whether activations are computed again, in whether the
        step is made in graphs, and in what is compiled.
        """
        self.recipe = recipe
        self._set_optimizers()
        if self.loss is not None:
            self.loss.adapt(recipe)
        self.optimizer_steps.adapt(recipe)
        share = float(recipe.activation_checkpointing.value)
        if share != (self.activations.share if self.activations is not None else 0.0):
            if self.activations is not None:
                self.activations.close()
            self.activations = self._checkpointing()
        for feed in (self.feed, self.validation_feed):
            if feed is not None:
                feed.resize(recipe.micro_batch_size.value)

    def check_groups(self) -> None:
        """Refuses weights that an optimizer was given while training.

        Raises:
            UsageError: parameter-groups-changed.
        """
        if self.optimizers.num_weights() != self._num_weights:
            raise UsageError(
                "parameter-groups-changed",
                f"the optimizer's parameter groups have changed by step {self.position.step:,}.",
                because="a resumed run builds the optimizer as `optimizer` returns it, and could "
                "not restore the state of these weights",
                fix="pass all weights to the optimizer in `optimizer`, and unfreeze them later "
                "with requires_grad_(True)",
            )

    def step_parts(self) -> StepParts:
        """The parts of an update."""
        return StepParts(
            placement=self.placement,
            experiment=self.experiment,
            loss=self.loss,
            step_of=self.optimizer_steps.step_of,
            model=self.model,
            optimizers=self.optimizers,
            position=self.position,
            autocast=self.autocast,
            scaler=self.scaler,
            average=self.average,
            to_device=self.to_device,
            clip_norm=self.recipe.clip_norm.value,
            skips_nonfinite=self.recipe.nonfinite_loss.value == "skip",
            ranks=self.ranks,
            passes=self.passes,
            is_spread=self.sharding is not None,
            is_plain=self.recipe.exchange.value == "plain",
        )

    def close(self) -> None:
        """Ends the processes that read data for it, and leaves the model as it was built."""
        self.placement.release()
        if self._norms is not None:
            self._norms.close()
        if self.activations is not None:
            self.activations.close()
        if self._float8 is not None:
            self._float8.close()
        for feed in (self.feed, self.validation_feed):
            if feed is not None:
                feed.close()

    @torch.no_grad()
    def has_finite_weights(self) -> bool:
        """Whether no weight is NaN or infinite: a gradient may be where the loss is not."""
        own = [local_part(p) for p in self.model.parameters() if p.requires_grad]
        trained: list[Tensor] = [parameter for parameter in own if parameter.numel()]
        is_finite = True
        if trained:
            norms = torch._foreach_norm(trained, float("inf"))
            is_finite = bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
        return (
            is_finite
            if self.sharding is None
            else all(self.ranks.all_gather(is_finite, about="weights"))
        )

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[nn.Module]:
        """The model as it is validated and kept: averaged weights if there are, evaluation mode."""
        was_training = self.model.training
        with self.average.swapped_in() if self.average else contextlib.nullcontext():
            self.model.eval()
            try:
                yield self.model
            finally:
                self.model.train(was_training)
