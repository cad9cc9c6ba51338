"""Results of a run: samples, and scores of each class, which are plain arithmetic on counts.

counts: (true class, predicted class, samples), the pairs that occur. A ratio whose denominator is
0 is None, not 0: the precision of a class never predicted, the recall of one without samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from flatout.schema.run_lines import Classified, Generated


class ClassScores(msgspec.Struct, frozen=True, kw_only=True):
    """One class: samples it has, how often it was predicted, and how often both.

    precision: of the samples predicted to be of this class, how many are. recall: of its samples,
    how many were predicted so. f1: harmonic mean of both. All from 0 to 1.
    """

    label: str
    num_samples: int
    num_predicted: int
    num_right: int
    precision: float | None
    recall: float | None
    f1: float | None


class MeanScores(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the classes that have samples; None where no class has any.

    A class that was never predicted has no precision; in a mean it counts as 0.
    """

    precision: float | None
    recall: float | None
    f1: float | None


class Mistake(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one class that were taken for another; share: of that class's samples."""

    label: str
    predicted: str
    num_samples: int
    share: float


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """The scores from a confusion matrix. macro: all classes weigh the same; weighted: by samples.

    mistakes: the most frequent first.
    """

    name: str
    step: int
    num_samples: int
    accuracy: float | None
    macro: MeanScores
    weighted: MeanScores
    classes: tuple[ClassScores, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def worst(self) -> list[ClassScores]:
        """The classes that have samples, the lowest F1 first."""
        present = [scores for scores in self.classes if scores.num_samples]
        return sorted(present, key=lambda scores: scores.f1 or 0.0)


# What an experiment's `best` may name next to its metrics.
MEANS = tuple(
    f"{kind}_{name}" for kind in ("macro", "weighted") for name in MeanScores.__struct_fields__
)
# A thousand classes have up to a million pairs; no one reads more than a few.
_NUM_MISTAKES = 20


def class_report(line: Classified) -> ClassReport:
    """All scores of a confusion matrix."""
    classes = class_scores(line.labels, line.counts)
    num_samples = sum(scores.num_samples for scores in classes)
    num_right = sum(scores.num_right for scores in classes)
    return ClassReport(
        name=line.name,
        step=line.step,
        num_samples=num_samples,
        accuracy=_ratio(num_right, num_samples),
        macro=_means(classes, lambda scores: 1),
        weighted=_means(classes, lambda scores: scores.num_samples),
        classes=classes,
        mistakes=_mistakes(line, classes),
    )


def class_scores(
    labels: Sequence[str], counts: Iterable[tuple[int, int, int]]
) -> tuple[ClassScores, ...]:
    """Precision, recall and F1 of each class, in the order of the labels."""
    samples, predicted, right = Counter[int](), Counter[int](), Counter[int]()
    for true_class, predicted_class, count in counts:
        samples[true_class] += count
        predicted[predicted_class] += count
        if true_class == predicted_class:
            right[true_class] += count
    return tuple(
        ClassScores(
            label=label,
            num_samples=samples[number],
            num_predicted=predicted[number],
            num_right=right[number],
            precision=_ratio(right[number], predicted[number]),
            recall=_ratio(right[number], samples[number]),
            # The harmonic mean of precision and recall, where they are both there.
            f1=_ratio(2 * right[number], samples[number] + predicted[number]),
        )
        for number, label in enumerate(labels)
    )


def mean_scores(report: ClassReport) -> dict[str, float | None]:
    """The means by the names under which an experiment's `best` asks for them: `macro_f1`."""
    return {
        f"{kind}_{name}": value
        for kind, means in (("macro", report.macro), ("weighted", report.weighted))
        for name, value in msgspec.structs.asdict(means).items()
    }


def _means(classes: Sequence[ClassScores], weight: Callable[[ClassScores], int]) -> MeanScores:
    present = [scores for scores in classes if scores.num_samples]
    whole = sum(map(weight, present))
    sums = {
        name: sum(weight(scores) * (getattr(scores, name) or 0.0) for scores in present)
        for name in MeanScores.__struct_fields__
    }
    return MeanScores(**{name: value / whole if whole else None for name, value in sums.items()})


def _mistakes(line: Classified, classes: Sequence[ClassScores]) -> tuple[Mistake, ...]:
    wrong = [count for count in line.counts if count[0] != count[1]]
    wrong.sort(key=lambda count: -count[2])
    return tuple(
        Mistake(
            label=line.labels[true_class],
            predicted=line.labels[predicted_class],
            num_samples=count,
            share=count / classes[true_class].num_samples,
        )
        for true_class, predicted_class, count in wrong[:_NUM_MISTAKES]
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Confusions of the validation whose weights are kept, or of the last; the last samples."""

    confusions: tuple[Classified, ...]
    samples: Generated | None

    @property
    def reports(self) -> list[ClassReport]:
        """The scores of the classes, for each of the confusions."""
        return [class_report(line) for line in self.confusions]
