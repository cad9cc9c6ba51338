"""The request of `flatout train`, checked as far as it can be without looking anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import SweepRun, UsedConfig
from flatout.schema.finding import Finding, Fix, option_without_effect
from flatout.schema.key_values import split_pairs
from flatout.schema.placement import Placement, parse_placement
from flatout.schema.recipe import OutOfMemory, parse_field
from flatout.schema.tracking import parse_trackers
from flatout.schema.tuning import Emit, Mode, Numerics, TuneRequest
from flatout.schema.units import parse_bytes


class TrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout train` as data.

    experiment: a built-in's name or a file; None where `resume` names a run.
    settings, uses: `key=value` texts for the experiment's parameters and for recipe fields.
    recipe: a file with a recipe, whose fields are then fixed as if by `uses`.
    device: `auto`, or the recipe's device. run_id: the name of a new run; None finds a free one.
    steps: as epochs, at most one of them. is_changed: the run that is resumed takes its file
    as it is now. is_dry_run: one batch of each kind is tried, and nothing kept.
    tune, numerics, budget: the search for a recipe (schema/tuning.py); budget in seconds.
    emit: what `flatout tune` writes of the recipe it has found.
    leave_free: a size as text: what other programs are to have of the device's memory.
    env: name of an environment of `flatout setup`, in place of `python`.
    on_oom: the recipe's `out_of_memory`; None leaves it as it is.
    on: how many ranks train together, and who starts them, as text; None trains on one.
    is_trusted: a run outside of the runs' folder may run its code.
    track: trackers that the run is sent to, as text; none leaves it to the site file.
    config: what was taken from a configuration file; the other fields have it already.
    sweep: of which it is a trial. gpus: what CUDA sees of this machine's (CUDA_VISIBLE_DEVICES);
    None leaves it as it is.
    """

    experiment: str | None = None
    settings: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    recipe: str | None = None
    device: str = "auto"
    epochs: int | None = None
    steps: int | None = None
    seed: int | None = None
    init: str | None = None
    run_id: str | None = None
    resume: str | None = None
    is_changed: bool = False
    is_dry_run: bool = False
    python: str | None = None
    env: str | None = None
    tune: Mode = "off"
    numerics: Numerics = "default"
    budget: float | None = None
    is_only_tuned: bool = False
    emit: Emit | None = None
    leave_free: str | None = None
    on_oom: OutOfMemory | None = None
    on: str | None = None
    is_trusted: bool = False
    track: tuple[str, ...] = ()
    config: UsedConfig | None = None
    sweep: SweepRun | None = None
    gpus: str | None = None

    @property
    def fixed(self) -> dict[str, Any]:
        """The recipe fields that the user fixed, by their types.

        Raises:
            UsageError: bad-setting, set-twice, unknown-recipe-field, bad-recipe-value.
        """
        device = () if self.device == "auto" else (f"device={self.device}",)
        on_oom = () if self.on_oom is None else (f"out_of_memory={self.on_oom}",)
        pairs = split_pairs([*self.uses, *device, *on_oom], "--use")
        return {name: parse_field(name, text) for name, text in pairs}

    @property
    def change(self) -> Change:
        """The changes of a resume, as the worker reads them."""
        return Change(
            fixed=self.fixed,
            epochs=self.epochs,
            steps=self.steps,
            leave_free_bytes=self.leave_free_bytes,
            on=self.on,
            python=self.python,
        )

    @property
    def leave_free_bytes(self) -> int | None:
        """Memory to leave to other programs; None lets flatout choose.

        Raises:
            UsageError: bad-size.
        """
        return None if self.leave_free is None else parse_bytes(self.leave_free, "--leave-free")

    @property
    def placement(self) -> Placement | None:
        """The number of ranks that train together, and their launcher; None for a single worker.

        Raises:
            UsageError: bad-placement.
        """
        return None if self.on is None else parse_placement(self.on)

    @property
    def tune_request(self) -> TuneRequest:
        """The limits of the search for a recipe."""
        # Where every field is given there is nothing to search, and several ranks do not search.
        is_off = self.tune == "auto" and (self.recipe is not None or self.on is not None)
        return TuneRequest(
            mode="off" if is_off else self.tune,
            numerics=self.numerics,
            budget_s=self.budget,
            is_only=self.is_only_tuned,
            emit=self.emit,
        )

    def warnings(self) -> Iterator[Finding]:
        """Warns about options that have no effect.

        Raises:
            UsageError: bad-placement.
        """
        yield from self._overridden()
        yield from self._unsearched()
        if self.is_trusted and self.resume is None:
            yield option_without_effect(
                "--trust", "it applies only to resuming a run from outside your runs folder",
                "leave it out",
            )  # fmt: skip
        for option, value in (("--python", self.python), ("--env", self.env)):
            if value is not None and self.placement is not None and self.placement.place:
                yield option_without_effect(
                    option,
                    "training uses what is installed on the cluster's nodes",
                    "add packages to the image: flatout cluster init --with",
                )

    def _unsearched(self) -> Iterator[Finding]:
        """Options of a search where none is made."""
        because = None
        if self.is_dry_run:
            because = "a dry run does not search"
        elif self.resume is not None:
            because = "a resumed run keeps its recipe"
        options = {"--tune full": because is not None and self.tune == "full"}
        if because is None and self.tune_request.mode == "off":
            because = "there is no search"
        options[f"--numerics {self.numerics}"] = self.numerics != "default"
        options["--budget"] = self.budget is not None
        for option, is_given in options.items():
            if is_given and because is not None:
                yield option_without_effect(option, because, "leave it out")

    def _overridden(self) -> Iterator[Finding]:
        """Lengths that are given by a parameter of that name, and again by an option."""
        option, number = ("--steps", self.steps) if self.steps else ("--epochs", self.epochs)
        names = [text.partition("=")[0].strip() for text in self.settings]
        for name in ("epochs", "steps"):
            if number is not None and name in names:
                given = self.settings[names.index(name)].strip()
                yield Finding(
                    rule="length-set-twice",
                    severity="note",
                    problem=f"`{option} {number}` overrides `-s {given}`.",
                    because="both set the length of training; the experiment still receives its "
                    "parameter",
                    fixes=(Fix(text="leave out one of them"),),
                )

    @property
    def is_later_trial(self) -> bool:
        """Whether it is the second trial of a sweep or a later one: the first has been started."""
        return self.sweep is not None and self.sweep.trial > 1

    def check(self) -> None:
        """Refuses what cannot be combined.

        Raises:
            UsageError: cannot-change-on-resume, cannot-be-combined, search-needs-one-rank,
                bad-placement, bad-tracker.
        """
        self._check_pairs()
        parse_trackers(self.track)
        if self.placement is not None and self.tune == "full":
            raise UsageError(
                "search-needs-one-rank",
                f"`--tune full` cannot be combined with `--on {self.on}`.",
                because="a search measures a single process; several ranks would disturb each "
                "other",
                fix="search first: flatout tune EXPERIMENT; then train with --recipe and the "
                "file it names",
            )
        if self.resume is None:
            return
        given = {
            f"the experiment `{self.experiment}`": self.experiment is not None,
            "`-s`": bool(self.settings),
            "`--seed`": self.seed is not None,
            "`--recipe`": self.recipe is not None,
            "`--init`": self.init is not None,
            "`--name`": self.run_id is not None,
        }
        refused = [name for name, is_given in given.items() if is_given]
        if refused:
            raise UsageError(
                "cannot-change-on-resume",
                f"{' and '.join(refused)} cannot be combined with --resume.",
                because="a run keeps its name, experiment, parameters, seed and initial weights",
                fix="leave it out (--epochs, --use and --device may change), or start a new run",
            )

    def _check_pairs(self) -> None:
        is_elsewhere = self.placement is not None and bool(self.placement.place)
        pairs = (
            ("--epochs", "--steps", self.epochs is not None and self.steps is not None,
             "both set the length of training", "leave out one of them"),
            ("--changed", f"--on {self.on}", self.is_changed and is_elsewhere,
             "the nodes read the copy of the file in the run's folder",
             "resume with --changed on this machine first, stop the run, then resume with --on"),
            ("--dry-run", "--resume", self.is_dry_run and self.resume is not None,
             "a dry run tries an experiment from its first step",
             "name the experiment instead of the run, or leave out --dry-run"),
            ("--dry-run", "--name", self.is_dry_run and self.run_id is not None,
             "a dry run does not create a run", "leave out one of them"),
            ("--dry-run", "--track", self.is_dry_run and bool(self.track),
             "a dry run does not create a run", "leave out one of them"),
            ("--dry-run", f"--on {self.on}", self.is_dry_run and self.on is not None,
             "a dry run uses one process", "leave out --on"),
        )  # fmt: skip
        for first, other, is_given, because, fix in pairs:
            if is_given:
                problem = f"`{first}` cannot be combined with `{other}`."
                raise UsageError("cannot-be-combined", problem, because=because, fix=fix)
        if self.is_changed and self.resume is None:
            raise UsageError(
                "wrong-usage",
                "`--changed` needs `--resume RUN`.",
                because="it resumes a run with the experiment's file as it is now",
                fix="name the run: flatout train --resume RUN --changed",
            )
