"""Puts to a candidate the questions that its changed fields concern, and collects the checks.

Compiled candidates are checked twice: uncompiled, like any other, and then compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

import torch

from flatout.engine.gate.candidate_checks import CHECKS
from flatout.engine.gate.compiled import as_written, compiled_checks
from flatout.engine.gate.fixtures import GateFixtures, GateSubject, PlainStepFailed
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import CaptureBroken, is_out_of_memory
from flatout.errors import FlatoutError
from flatout.schema.recipe import Recipe
from flatout.schema.tuning import Check, GateVerdict
from flatout.tune.gate import checks_for


def judge(subject: GateSubject, candidate: Recipe, plain: Recipe) -> GateVerdict:
    """Asks whether the candidate still computes what the plain step computes.

    Raises:
        FlatoutError: what training itself would raise.
    """
    return Gate(subject, plain).judge(candidate)


class Gate:
    """Judges candidates of one subject; what the plain step gives is computed once.

    Args:
        subject: what is judged.
        plain: the recipe that candidates are compared with.
    """

    def __init__(self, subject: GateSubject, plain: Recipe) -> None:
        self._subject = subject
        self._fixtures = GateFixtures(subject, plain)

    def judge(self, candidate: Recipe) -> GateVerdict:
        """See the function of this name."""
        fixtures = self._fixtures
        written = as_written(candidate)
        changed = [
            name
            for name in written.__struct_fields__
            if getattr(written, name).value != getattr(fixtures.plain, name).value
        ]
        selected = checks_for(changed)
        if candidate.compiled.value != "off":
            # Asked of the code itself: compiled.py.
            selected -= {"replays"}
        checks: list[Check] = []
        with rng.untouched_generators(fixtures.device), torch.enable_grad():
            for question in CHECKS:
                if question in selected:
                    checks += self._run(question, partial(CHECKS[question], fixtures, written))
            if candidate.compiled.value != "off":
                run = partial(compiled_checks, fixtures, self._whole, candidate)
                checks += self._run("compiled", run)
        return GateVerdict(checks=tuple(checks))

    @cached_property
    def _whole(self) -> GateFixtures:
        """The subject on batches as large as in the training."""
        size = self._subject.experiment.batch_size
        return GateFixtures(replace(self._subject, num_samples=size), self._fixtures.plain)

    def _run(self, question: str, run: Callable[[], list[Check]]) -> list[Check]:
        try:
            return run()
        except PlainStepFailed as failed:
            note = f"the plain step fails on batches of {self._fixtures.size}: {failed}"
            return [Check(name=question, is_passed=False, note=note)]
        except FlatoutError:
            raise
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, CaptureBroken):
                raise
            # Whatever it is, the candidate cannot be used.
            note = f"could not be computed: {type(error).__name__}: {error}"
            return [Check(name=question, is_passed=False, note=note)]
