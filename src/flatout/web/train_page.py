"""Train: a form for a new run or for resuming one, and the plan of what would be started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from flatout.errors import FlatoutError, UsageError, nearest
from flatout.runs import api as runs_api
from flatout.runs import experiment_source
from flatout.runs.experiment_params import Parameter
from flatout.runs.listing import parameters_of
from flatout.runs.start import PlannedRun, plan_run
from flatout.schema.finding import Finding, finding_from
from flatout.schema.suggested_command import resume_command, train_command
from flatout.schema.train_request import TrainRequest
from flatout.schema.units import size_text
from flatout.system.signals import Interrupts
from flatout.system.store.run_folder import RunFolder, read_run, run_in_use
from flatout.web.page import PageContext, PageRequest, WebPage

# Before the name of a parameter, in the form: so that none is called like another field.
_PREFIX = "s."
_LENGTHS = ("epochs", "steps")
_MOST_DIGITS = 9


class TrainForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form as it was filled in; the text of what was left blank is empty.

    experiment: a built-in, or the name of a file in the current folder. resume: id of a run.
    settings: texts by parameter. is_planned: its plan is asked for.
    """

    experiment: str = ""
    resume: str = ""
    settings: dict[str, str] = {}
    epochs: str = ""
    device: str = "auto"
    is_planned: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrainForm:
        """The form in a query or in a body."""
        texts = {name: value.strip() for name, value in values.items() if isinstance(value, str)}
        return cls(
            experiment=texts.get("experiment", ""),
            resume=texts.get("resume", ""),
            settings={
                name.removeprefix(_PREFIX): text
                for name, text in texts.items()
                if name.startswith(_PREFIX) and text
            },
            epochs=texts.get("epochs", ""),
            device=texts.get("device") or "auto",
            is_planned="plan" in texts,
        )

    def request(self, run: RunFolder | None) -> TrainRequest:
        """The same as `flatout train` has it. run: the one to resume, where it was trained last.

        Raises:
            UsageError: wrong-usage; RunFailed: damaged-file.
        """
        epochs = _epochs(self.epochs)
        if run is not None:
            # As the command on the run's page does.
            last = read_run(run).last_change
            free_bytes = last.leave_free_bytes
            return TrainRequest(
                resume=str(run.path), epochs=epochs, device=self.device, tune="auto", on=last.on,
                python=last.python, leave_free=size_text(free_bytes) if free_bytes else None,
            )  # fmt: skip
        settings = tuple(f"{name}={text}" for name, text in self.settings.items())
        return TrainRequest(
            experiment=self.experiment, settings=settings, epochs=epochs, device=self.device,
            tune="auto",
        )  # fmt: skip


def train_page(request: PageRequest) -> WebPage:
    """The form, and the plan once it is asked for."""
    form = TrainForm.of(request.query)
    return form_page(request.context, form)


def form_page(
    context: PageContext, form: TrainForm, problem: Finding | None = None
) -> WebPage:  # fmt: skip
    """The form as it was filled in, with its plan. problem: why it could not be carried out."""
    fields: tuple[Parameter, ...] = ()
    is_known, plan = False, None
    try:
        if form.resume:
            context.runs.find(form.resume)
        elif form.experiment:
            fields = known_parameters(form.experiment)
        is_known = bool(form.resume or form.experiment)
        if form.is_planned and problem is None:
            plan = _plan(context, form, fields)
    except FlatoutError as error:
        problem = finding_from(error)
    return WebPage(
        template="train",
        data={
            "built_ins": experiment_source.built_in_names(),
            "files": experiment_source.files_here(),
            "form": form,
            "is_known": is_known,
            "fields": [_field(parameter, form) for parameter in fields],
            # It would override the experiment's own.
            "has_epochs": not any(parameter.name in _LENGTHS for parameter in fields),
            "devices": _devices(context, form.device),
            "plan": plan,
            "problem": problem,
        },
    )


def planned(context: PageContext, form: TrainForm) -> tuple[TrainRequest, PlannedRun]:
    """What a form asks for, checked as far as that is quick.

    Raises:
        UsageError: what `runs.start.plan_run` says, and names that do not exist here.
    """
    run = context.runs.find(form.resume) if form.resume else None
    if run is None:
        _check_name(form.experiment)
    request = form.request(run)
    if run is not None and runs_api.is_stopping(request):
        raise run_in_use(run)
    request.check()
    return request, plan_run(request, Interrupts())


def known_parameters(experiment: str) -> tuple[Parameter, ...]:
    """The parameters of an experiment that can be chosen here.

    Raises:
        UsageError: unknown-experiment, and what its text says.
    """
    _check_name(experiment)
    return parameters_of(experiment)


def _check_name(experiment: str) -> None:
    """A name is looked up among those that there are; it never becomes a path."""
    names = [*experiment_source.built_in_names(), *experiment_source.files_here()]
    if experiment not in names:
        raise UsageError(
            "unknown-experiment",
            f"there is no experiment `{experiment}` here.",
            because="it is neither built in, nor a file in the folder where flatout web was "
            "started",
            fix=nearest(experiment, names),
        )


def _epochs(text: str) -> int | None:
    if not text:
        return None
    is_whole = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_whole or int(text) < 1:
        raise UsageError(
            "wrong-usage", f"`{text[:20]}` is not a number of epochs.", fix="write 1 or more"
        )
    return int(text)


def _plan(
    context: PageContext, form: TrainForm, fields: tuple[Parameter, ...]
) -> dict[str, Any]:  # fmt: skip
    request, plan = planned(context, form)
    spec = plan.spec
    defaults = {one.name: one.default_value for one in fields if one.default is not None}
    if plan.old is None:
        command = train_command(spec, plan.change, file=request.experiment)
    else:
        command = resume_command(plan.old.path.name, plan.change)
    steps = plan.old.checkpoint_steps() if plan.old is not None else []
    return {
        "experiment": spec.name,
        "file": spec.file,
        "parameters": defaults | spec.parameters,
        "changed": list(spec.parameters),
        "device": plan.device,
        "epochs": request.epochs,
        "from_step": max(steps, default=0) if plan.old is not None else None,
        "command": command,
        "warnings": list(request.warnings()),
    }


def _field(parameter: Parameter, form: TrainForm) -> dict[str, Any]:
    """A parameter as a field of the form.

    Its kind: "choice", "int", "float" or "text"; "fixed" cannot be set from outside the file.
    """
    choices = [str(choice) for choice in parameter.choices]
    if "bool" in parameter.kinds:
        choices += ["true", "false"]
    if choices and "None" in parameter.kinds:
        choices.append("none")
    kind = "text"
    if not parameter.is_settable:
        kind = "fixed"
    elif choices and not {"int", "float", "str"} & set(parameter.kinds):
        kind = "choice"
    elif parameter.kinds in (("int",), ("float",)):
        kind = parameter.kinds[0]
    return {
        "name": parameter.name,
        "field": f"{_PREFIX}{parameter.name}",
        "kind": kind,
        "choices": choices,
        "value": form.settings.get(parameter.name, ""),
        "default": parameter.default,
        "is_required": parameter.default is None,
        "annotation": parameter.annotation,
        "expected": parameter.expected,
        "doc": parameter.doc,
    }


def _devices(context: PageContext, chosen: str) -> list[str]:
    """Devices to choose from; of GPUs, those that the machine is known to have."""
    examined = context.health.latest().value
    gpus = examined.machine.gpus if examined is not None else ()
    known = ["auto", "cpu", *(["cuda"] if gpus else []), *(f"cuda:{gpu.index}" for gpu in gpus)]
    # While the machine is being examined, it may be one of those that are not known yet.
    return list(dict.fromkeys([*known, chosen]))
