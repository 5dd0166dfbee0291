"""Metrics are those of torchmetrics in one process, however roots are split."""

from typing import Any

import pytest
import torch

from hopper.models import Objective
from hopper.models.metrics import METRICS

WHY = "torchmetrics is not installed"
classification = pytest.importorskip("torchmetrics.functional.classification", reason=WHY)
regression = pytest.importorskip("torchmetrics.functional.regression", reason=WHY)
CLASSES = 5


def draw_logits_and_labels(kind: str, roots: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(roots, CLASSES, generator=generator, dtype=torch.float64)
    if kind == "float":
        return logits, torch.randn(roots, CLASSES, generator=generator, dtype=torch.float64)
    if kind == "multi_hot":
        return logits, (torch.rand(roots, CLASSES, generator=generator) < 0.3).to(torch.uint8)
    # A class that nobody has, and one that has half of all.
    labels = torch.randint(0, CLASSES - 1, (roots,), generator=generator)
    labels[::2] = 1
    return logits, labels


SCORES: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("float", "rmse"): (regression.mean_squared_error, {"squared": False}),
    ("float", "mae"): (regression.mean_absolute_error, {}),
    ("multi_hot", "micro_f1"): (classification.multilabel_f1_score, {"average": "micro"}),
    ("multi_hot", "macro_f1"): (classification.multilabel_f1_score, {"average": "macro"}),
    ("multi_hot", "roc_auc"): (classification.multilabel_auroc, {}),
    ("multi_hot", "average_precision"): (classification.multilabel_average_precision, {}),
    ("class", "accuracy"): (classification.multiclass_accuracy, {"average": "micro"}),
    ("class", "balanced_accuracy"): (classification.multiclass_accuracy, {"average": "macro"}),
    ("class", "micro_f1"): (classification.multiclass_f1_score, {"average": "micro"}),
    ("class", "macro_f1"): (classification.multiclass_f1_score, {"average": "macro"}),
    ("class", "roc_auc"): (classification.multiclass_auroc, {}),
    ("class", "average_precision"): (classification.multiclass_average_precision, {}),
}


def torchmetrics_score(name: str, kind: str, logits: torch.Tensor, labels: torch.Tensor) -> float:
    function, options = SCORES[kind, name]
    if kind == "float":
        return float(function(logits, labels, **options))
    predicted = torch.sigmoid(logits) if kind == "multi_hot" else torch.softmax(logits, 1)
    return float(function(predicted, labels.long(), CLASSES, **options))


@pytest.mark.filterwarnings("ignore:.*samples in target", "ignore:Average precision score")
@pytest.mark.parametrize("kind", ["class", "multi_hot", "float"])
def test_scores_are_those_of_torchmetrics(kind):
    names = [name for name, metric in METRICS.items() if kind in metric.label_kinds]  # type: ignore[attr-defined]
    metrics = [METRICS[name](classes=CLASSES) for name in names]
    objective = Objective(kind, metrics=metrics)
    logits, labels = draw_logits_and_labels(kind)
    pieces = [slice(0, 0), slice(0, 70), slice(70, 71), slice(71, 200)]
    sums = sum(objective.metric_sums(logits[piece], labels[piece]) for piece in pieces)
    assert isinstance(sums, torch.Tensor)
    scores = objective.scores(sums, (logits, labels))
    assert list(scores) == names
    assert objective.needs_all_roots == (kind != "float")
    for name, score in scores.items():
        # torchmetrics rounds some of its scores to float32 on the way.
        expected = torchmetrics_score(name, kind, logits, labels)
        assert score == pytest.approx(expected, rel=2e-7), name


def test_two_classes_have_one_curve():
    logits, labels = torch.randn(50, 2, dtype=torch.float64), torch.randint(0, 2, (50,))
    score = METRICS["roc_auc"](classes=2).score_all(logits, labels)  # type: ignore[union-attr]
    expected = classification.binary_auroc(torch.softmax(logits, 1)[:, 1], labels)
    assert score == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("class", torch.tensor([2, 0, 2, -1]), [0.0, 0.0, 1.0]),
        ("multi_hot", torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 1]]), [0.5, -0.5, 1 / 6]),
        ("float", torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), [2.0, 2.0, 2.0]),
    ],
)
def test_the_best_single_answer_for_all_roots(kind, labels, expected):
    objective = Objective(kind)
    sums = sum(objective.label_sums(labels[piece], 3) for piece in (slice(1), slice(1, None)))
    assert isinstance(sums, torch.Tensor)
    torch.testing.assert_close(objective.one_answer(sums, 3), torch.tensor(expected).double())
