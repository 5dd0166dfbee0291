"""Losses, metrics and counts of classes are sums: parts add up to the whole."""

import math

import pytest
import torch
from torch.nn import functional

from hopper.errors import ConfigError, GraphError, RequestError
from hopper.models import Objective, check_training_labels
from hopper.models.class_scores import MOST_CLASSES, class_scores, count_claims
from hopper.models.losses import BinaryCrossEntropy, CrossEntropy


def cases():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(12, 4, dtype=torch.float64, generator=generator)
    classes = torch.randint(-1, 4, (12,), generator=generator)
    hot = torch.randint(0, 2, (12, 4), generator=generator).to(torch.uint8)
    values = torch.randn(12, 4, generator=generator)
    return [
        ("class", logits, classes),
        ("multi_hot", logits, hot),
        ("float", logits, values),
        ("float", logits[:, :1], values[:, 0]),
    ]


@pytest.mark.parametrize(("kind", "logits", "labels"), cases())
def test_parts_add_up_to_the_whole(kind, logits, labels):
    objective = Objective(kind, classes=3)
    pieces = [slice(0, 0), slice(0, 5), slice(5, 6), slice(6, 12)]
    loss = sum(objective.loss_sum(logits[p], labels[p]) for p in pieces)
    torch.testing.assert_close(loss, objective.loss_sum(logits, labels), atol=1e-12, rtol=1e-12)
    sums = sum(objective.metric_sums(logits[p], labels[p]) for p in pieces)
    torch.testing.assert_close(sums, objective.metric_sums(logits, labels), atol=1e-12, rtol=1e-12)
    assert sums.dtype == torch.float64
    single = objective.loss_sum(logits.float(), labels)
    assert single.dtype == torch.float32
    assert single.shape == ()


def test_class_loss_and_accuracy():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]], requires_grad=True)
    labels = torch.tensor([0, 0, -1, 1])
    objective = Objective("class")
    labelled = [0, 1, 3]
    expected = functional.cross_entropy(logits[labelled], labels[labelled], reduction="sum")
    loss = objective.loss_sum(logits, labels)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert torch.equal(logits.grad[2], torch.zeros(2)), "an unlabelled root contributes nothing"
    sums = objective.metric_sums(logits, labels)
    assert sums.tolist() == [1.0, 3.0]
    assert objective.scores(sums)[objective.metric] == pytest.approx(1 / 3)
    assert (objective.metric, objective.higher_is_better) == ("accuracy", True)


def test_multi_hot_loss_and_micro_f1():
    logits = torch.tensor([[1.0, -1.0, 2.0], [-1.0, -2.0, 3.0]])
    labels = torch.tensor([[1, 1, 0], [0, 0, 1]], dtype=torch.uint8)
    objective = Objective("multi_hot", classes=3)
    bce = functional.binary_cross_entropy(logits.sigmoid(), labels.float(), reduction="none")
    torch.testing.assert_close(objective.loss_sum(logits, labels), bce.sum())
    sums = objective.metric_sums(logits, labels)
    # By class, hits, false claims and misses; roots, and those of several labels.
    assert sums.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 2.0]
    assert objective.scores(sums)[objective.metric] == pytest.approx(2 / 3)
    nothing = objective.metric_sums(-torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.uint8))
    assert objective.scores(nothing)[objective.metric] == 1.0
    assert (objective.metric, objective.higher_is_better) == ("micro_f1", True)


def test_float_loss_and_rmse():
    logits = torch.tensor([[1.0], [4.0]])
    labels = torch.tensor([3.0, 4.0])
    objective = Objective("float")
    assert objective.loss_sum(logits, labels) == 4.0
    assert objective.scores(objective.metric_sums(logits, labels))[objective.metric] == math.sqrt(2)
    assert (objective.metric, objective.higher_is_better) == ("rmse", False)
    # Outputs of a root are added up.
    assert Objective("float", classes=2).loss_sum(torch.ones(3, 2), torch.zeros(3, 2)) == 6.0


@pytest.mark.parametrize(("kind", "logits", "labels"), cases())
def test_a_score_of_a_nan_or_of_nothing_labelled_is_nan(kind, logits, labels):
    """Otherwise NaN claims the first class, and nothing of several labels."""
    objective = Objective(kind, classes=3)
    with_nan = logits.clone()
    with_nan[0, 0] = torch.nan
    for sums in (
        objective.metric_sums(with_nan, labels),
        objective.metric_sums(logits[:0], labels[:0]),
    ):
        assert math.isnan(objective.scores(sums)[objective.metric])


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("class", torch.zeros(3, dtype=torch.int64)),
        ("class", torch.zeros(2, 4, dtype=torch.int64)),
        ("multi_hot", torch.zeros(2, 3, dtype=torch.uint8)),
        ("float", torch.zeros(2)),
    ],
)
def test_shapes_that_do_not_fit_are_named(kind, labels):
    for method in (Objective(kind, classes=3).loss_sum, Objective(kind, classes=3).metric_sums):
        with pytest.raises(RequestError, match=f"{kind} labels: expected shape"):
            method(torch.zeros(2, 4), labels)


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        ("class", torch.tensor([0, -1, 2]), r"class in \[0, 3\).*-1.*original ids \[20\]"),
        ("class", torch.tensor([3, 1, 2]), r"given \[3\] at original ids \[10\]"),
        ("multi_hot", torch.tensor([[0, 1], [1, 1], [2, 0]]), r"0 or 1.*original ids \[30\]"),
        ("float", torch.tensor([0.0, torch.nan, torch.inf]), r"finite.*\[20, 30\] \(2 in all\)"),
    ],
)
def test_unusable_training_labels_are_refused(kind, labels, message):
    ids = torch.tensor([10, 20, 30])
    with pytest.raises(GraphError, match=message):
        check_training_labels(kind, labels, ids, classes=3)


def test_usable_training_labels_pass():
    ids = torch.arange(2)
    check_training_labels("class", torch.tensor([0, 2]), ids, classes=3)
    check_training_labels("multi_hot", torch.tensor([[0, 1], [1, 1]]), ids, classes=2)
    check_training_labels("float", torch.tensor([[0.5], [1.0]]), ids, classes=1)
    check_training_labels("class", torch.tensor([], dtype=torch.int64), ids[:0], classes=3)
    check_training_labels("float", torch.zeros(0), ids[:0], classes=1)
    check_training_labels("float", torch.zeros(0, 2), ids[:0], classes=2)


def test_weights_of_classes():
    logits = torch.randn(6, 3, dtype=torch.float64)
    labels, weights = torch.tensor([0, 1, 2, 2, -1, 0]), (1.0, 0.0, 2.5)
    losses = CrossEntropy(classes=3, class_weights=weights).root_losses(logits, labels)
    plain = CrossEntropy(classes=3).root_losses(logits, labels)
    torch.testing.assert_close(losses, plain * torch.tensor([1.0, 0.0, 2.5, 2.5, 1.0, 1.0]))
    hot = torch.tensor([[1.0, 0.0, 1.0]] * 6, dtype=torch.float64)
    losses = BinaryCrossEntropy(classes=3, positive_weights=weights).root_losses(logits, hot)
    label_losses = functional.binary_cross_entropy_with_logits(logits, hot, reduction="none")
    expected = label_losses[:, 0] + label_losses[:, 1] + 2.5 * label_losses[:, 2]
    torch.testing.assert_close(losses, expected)
    with pytest.raises(ConfigError, match=r"class_weights: expected 3 numbers, .*; got 1"):
        CrossEntropy(classes=3, class_weights=(1.0,))


# Scores class by class, against scikit-learn's definitions worked out by hand.

LABELS = torch.tensor([0, 0, 0, 1, 1, 3])
CLAIMS = torch.tensor([0, 0, 1, 1, 0, 0])


def make_logits(claims: torch.Tensor, classes: int = 5) -> torch.Tensor:
    return functional.one_hot(claims, classes).double()


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
