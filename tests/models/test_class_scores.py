"""Scores class by class, against scikit-learn's definitions worked out by hand."""

from __future__ import annotations

import pytest
import torch

from hopper.models import Objective
from hopper.models.class_scores import MOST_CLASSES, class_scores, count_claims

LABELS = torch.tensor([0, 0, 0, 1, 1, 3])
CLAIMS = torch.tensor([0, 0, 1, 1, 0, 0])


def logits_of(claims: torch.Tensor, classes: int = 5) -> torch.Tensor:
    return torch.nn.functional.one_hot(claims, classes).double()


def test_scores_of_each_class() -> None:
    found = class_scores(count_claims(logits_of(CLAIMS), LABELS, 5))
    assert found["class"] == ["0", "1", "2", "3", "4"]
    assert found["support"] == [3, 2, 0, 1, 0]
    # Class 0 is claimed four times, twice rightly. Nobody has or claims 2 and 4; nobody claims 3.
    assert found["precision"] == [0.5, 0.5, None, None, None]
    assert found["recall"] == [pytest.approx(2 / 3), 0.5, None, 0.0, None]
    assert found["f1"] == [pytest.approx(4 / 7), 0.5, None, 0.0, None]


def test_names_stand_for_numbers() -> None:
    counts = count_claims(logits_of(CLAIMS, 4), LABELS, 4)
    assert class_scores(counts, ["a", "b", "c", "d"])["class"] == ["a", "b", "c", "d"]


def test_parts_add_up_and_the_unlabelled_count_nowhere() -> None:
    objective = Objective("class", classes=5)
    logits, labels = logits_of(torch.cat([CLAIMS, CLAIMS])), torch.cat([LABELS, LABELS - 1])
    whole = objective.class_counts(logits, labels)
    assert whole is not None
    assert whole.shape == (3, 5)
    parts = [
        objective.class_counts(logits[p], labels[p]) for p in (slice(0), slice(4), slice(4, 12))
    ]
    assert torch.equal(sum(part for part in parts if part is not None), whole)
    # Recognised and missed together are the roots of a class.
    has_label = labels >= 0
    roots = torch.bincount(labels[has_label], minlength=5)
    assert torch.equal(whole[0] + whole[2], roots)
    right = (logits.argmax(1) == labels)[has_label].sum()
    assert whole[0].sum() == right


def test_several_labels_values_and_too_many_classes_have_none() -> None:
    hot = torch.ones(6, 5, dtype=torch.uint8)
    assert Objective("multi_hot", classes=5).class_counts(logits_of(CLAIMS), hot) is None
    assert Objective("float").class_counts(torch.zeros(2, 1), torch.zeros(2)) is None
    many = torch.zeros(2, MOST_CLASSES + 1)
    assert Objective("class").class_counts(many, torch.tensor([0, 1])) is None
