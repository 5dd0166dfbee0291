"""Scores class by class, against scikit-learn's definitions worked out by hand."""

import pytest
import torch

from hopper.models import Objective
from hopper.models.class_scores import MOST_CLASSES, class_scores, count_claims

LABELS = torch.tensor([0, 0, 0, 1, 1, 3])
CLAIMS = torch.tensor([0, 0, 1, 1, 0, 0])


def make_logits(claims: torch.Tensor, classes: int = 5) -> torch.Tensor:
    return torch.nn.functional.one_hot(claims, classes).double()


def test_scores_of_each_class():
    scores = class_scores(count_claims(make_logits(CLAIMS), LABELS, 5))
    assert scores["class"] == ["0", "1", "2", "3", "4"]
    assert scores["support"] == [3, 2, 0, 1, 0]
    # Class 0 is claimed four times, twice rightly. Nobody has or claims 2 and 4; nobody claims 3.
    assert scores["precision"] == [0.5, 0.5, None, None, None]
    assert scores["recall"] == [pytest.approx(2 / 3), 0.5, None, 0.0, None]
    assert scores["f1"] == [pytest.approx(4 / 7), 0.5, None, 0.0, None]


def test_names_of_classes_replace_their_numbers():
    counts = count_claims(make_logits(CLAIMS, 4), LABELS, 4)
    assert class_scores(counts, ["a", "b", "c", "d"])["class"] == ["a", "b", "c", "d"]


def test_counts_of_parts_add_up_and_unlabelled_roots_are_left_out():
    objective = Objective("class", classes=5)
    logits, labels = make_logits(torch.cat([CLAIMS, CLAIMS])), torch.cat([LABELS, LABELS - 1])
    counts = objective.class_counts(logits, labels)
    assert counts is not None
    assert counts.shape == (3, 5)
    parts = [
        objective.class_counts(logits[p], labels[p]) for p in (slice(0), slice(4), slice(4, 12))
    ]
    assert torch.equal(sum(part for part in parts if part is not None), counts)
    # Recognised and missed together are the roots of a class.
    has_label = labels >= 0
    roots = torch.bincount(labels[has_label], minlength=5)
    assert torch.equal(counts[0] + counts[2], roots)
    correct = (logits.argmax(1) == labels)[has_label].sum()
    assert counts[0].sum() == correct


def test_other_labels_and_too_many_classes_have_no_class_counts():
    hot = torch.ones(6, 5, dtype=torch.uint8)
    assert Objective("multi_hot", classes=5).class_counts(make_logits(CLAIMS), hot) is None
    assert Objective("float").class_counts(torch.zeros(2, 1), torch.zeros(2)) is None
    many = torch.zeros(2, MOST_CLASSES + 1)
    assert Objective("class").class_counts(many, torch.tensor([0, 1])) is None
