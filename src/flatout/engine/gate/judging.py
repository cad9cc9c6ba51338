"""Asks a candidate the questions that its changed fields concern, and collects the answers.

Compiled candidates are checked twice: uncompiled, like any other, and then compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

import torch

from flatout.engine.gate.compiled import as_written, compiled_checks
from flatout.engine.gate.fixtures import GateFixtures, GateSubject, PlainStepFailed
from flatout.engine.gate.questions import QUESTIONS
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import CaptureBroken, is_out_of_memory
from flatout.errors import FlatoutError
from flatout.schema.recipe import Recipe
from flatout.schema.tuning import Check, Verdict
from flatout.tune.gate import checks_for


def judge(subject: GateSubject, candidate: Recipe, plain: Recipe) -> Verdict:
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
        self._material = GateFixtures(subject, plain)

    def judge(self, candidate: Recipe) -> Verdict:
        """See the function of this name."""
        material = self._material
        written = as_written(candidate)
        changed = [
            name
            for name in written.__struct_fields__
            if getattr(written, name).value != getattr(material.plain, name).value
        ]
        asked = checks_for(changed)
        if candidate.compiled.value != "off":
            # Asked of the code itself: compiled.py.
            asked -= {"replays"}
        checks: list[Check] = []
        with rng.untouched_generators(material.device), torch.enable_grad():
            for question in QUESTIONS:
                if question in asked:
                    checks += self._answers(
                        question, partial(QUESTIONS[question], material, written)
                    )
            if candidate.compiled.value != "off":
                ask = partial(compiled_checks, material, self._whole, candidate)
                checks += self._answers("compiled", ask)
        return Verdict(checks=tuple(checks))

    @cached_property
    def _whole(self) -> GateFixtures:
        """The subject on batches as large as in the training."""
        size = self._subject.experiment.batch_size
        return GateFixtures(replace(self._subject, num_samples=size), self._material.plain)

    def _answers(self, question: str, ask: Callable[[], list[Check]]) -> list[Check]:
        try:
            return ask()
        except PlainStepFailed as failed:
            note = f"the plain step fails on batches of {self._material.size}: {failed}"
            return [Check(name=question, is_passed=False, note=note)]
        except FlatoutError:
            raise
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, CaptureBroken):
                raise
            # Whatever it is, the candidate cannot be used.
            note = f"could not be computed: {type(error).__name__}: {error}"
            return [Check(name=question, is_passed=False, note=note)]
