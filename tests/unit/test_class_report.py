"""Scores of classes from counts, against counting sample by sample."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.class_report import MEANS, class_report, mean_scores
from flatout.schema.run_lines import Classified

LABELS = ("cat", "dog", "owl", "yak")
SAMPLES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60)


def classified(samples: list[tuple[int, int]]) -> Classified:
    counts = tuple((*pair, count) for pair, count in Counter(samples).items())
    return Classified(at=0.0, step=7, epoch=0, name="classes", labels=LABELS, counts=counts)


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@given(SAMPLES)
def test_scores_are_those_of_counting_samples(samples: list[tuple[int, int]]) -> None:
    report = class_report(classified(samples))
    for number, scores in enumerate(report.classes):
        of_it = [one for true, one in samples if true == number]
        taken_for_it = [true for true, one in samples if one == number]
        precision = share(taken_for_it.count(number), len(taken_for_it))
        recall = share(of_it.count(number), len(of_it))
        assert (scores.num_samples, scores.num_predicted) == (len(of_it), len(taken_for_it))
        assert (scores.precision, scores.recall) == (precision, recall)
        if precision and recall:
            assert scores.f1 == pytest.approx(2 / (1 / precision + 1 / recall))
        else:
            assert scores.f1 == (0 if of_it or taken_for_it else None)
    assert report.num_samples == len(samples)
    assert report.accuracy == share(sum(true == one for true, one in samples), len(samples))


@given(SAMPLES)
def test_means_are_over_the_classes_that_have_samples(samples: list[tuple[int, int]]) -> None:
    report = class_report(classified(samples))
    present = [one for one in report.classes if one.num_samples]
    assert set(mean_scores(report)) == set(MEANS)
    if not present:
        assert set(mean_scores(report).values()) == {None}
        return
    recalls = [one.recall or 0.0 for one in present]
    assert report.macro.recall == pytest.approx(sum(recalls) / len(present))
    # Weighted by samples, recall is the share of all samples that were recognised.
    assert report.weighted.recall == pytest.approx(report.accuracy)
    weighted = sum(one.num_samples * (one.f1 or 0.0) for one in present) / report.num_samples
    assert mean_scores(report)["weighted_f1"] == pytest.approx(weighted)


@given(SAMPLES)
def test_mistakes_are_all_wrong_samples_the_most_frequent_first(
    samples: list[tuple[int, int]],
) -> None:
    mistakes = class_report(classified(samples)).mistakes
    assert sum(one.num_samples for one in mistakes) == sum(true != one for true, one in samples)
    counts = [one.num_samples for one in mistakes]
    assert counts == sorted(counts, reverse=True)
    for one in mistakes:
        whole = [true for true, _ in samples].count(LABELS.index(one.label))
        assert one.share == one.num_samples / whole


def test_class_never_predicted_has_no_precision_but_counts_as_0_in_the_mean() -> None:
    report = class_report(classified([(0, 0), (0, 0), (1, 0)]))
    cat, dog, owl, _ = report.classes
    assert (dog.precision, dog.recall, dog.f1) == (None, 0.0, 0.0)
    assert (owl.precision, owl.recall, owl.f1) == (None, None, None)
    assert report.macro.precision == pytest.approx((2 / 3 + 0) / 2)
    assert [one.label for one in report.worst] == ["dog", "cat"]
    assert cat.num_right == 2
