"""Asks a candidate the questions that its changed fields concern, and collects the answers."""

from __future__ import annotations

import torch

from flatout.engine import randomness
from flatout.engine.gate.material import Material, PlainStepFailed, Subject
from flatout.engine.gate.questions import QUESTIONS
from flatout.errors import FlatoutError
from flatout.nouns.recipe import Recipe
from flatout.nouns.tuning import Check, Verdict
from flatout.tune.gate import Question, questions


def judge(subject: Subject, candidate: Recipe, plain: Recipe) -> Verdict:
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

    def __init__(self, subject: Subject, plain: Recipe) -> None:
        self._material = Material(subject, plain)

    def judge(self, candidate: Recipe) -> Verdict:
        """See the function of this name."""
        material = self._material
        changed = [
            name
            for name in candidate.__struct_fields__
            if getattr(candidate, name).value != getattr(material.plain, name).value
        ]
        asked = questions(changed)
        checks: list[Check] = []
        with randomness.untouched_generators(material.device), torch.enable_grad():
            for question in QUESTIONS:
                if question in asked:
                    checks += self._answers(question, candidate)
        return Verdict(checks=tuple(checks))

    def _answers(self, question: Question, candidate: Recipe) -> list[Check]:
        try:
            return QUESTIONS[question](self._material, candidate)
        except PlainStepFailed as failed:
            note = f"the plain step fails on batches of {self._material.size}: {failed}"
            return [Check(name=question, is_passed=False, note=note)]
        except (torch.OutOfMemoryError, FlatoutError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the candidate cannot be used
            note = f"could not be computed: {type(error).__name__}: {error}"
            return [Check(name=question, is_passed=False, note=note)]
