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


def torchmetrics_score(
    name: str, kind: str, logits: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    if kind == "float":
        return {
            "rmse": lambda: regression.mean_squared_error(logits, labels, squared=False),
            "mae": lambda: regression.mean_absolute_error(logits, labels),
        }[name]()
    if kind == "multi_hot":
        arguments: dict[str, Any] = {"preds": torch.sigmoid(logits), "target": labels.long()}
        arguments["num_labels"] = CLASSES
        return {
            "micro_f1": lambda: classification.multilabel_f1_score(**arguments, average="micro"),
            "macro_f1": lambda: classification.multilabel_f1_score(**arguments, average="macro"),
            "roc_auc": lambda: classification.multilabel_auroc(**arguments),
            "average_precision": lambda: classification.multilabel_average_precision(**arguments),
        }[name]()
    arguments = {"preds": torch.softmax(logits, 1), "target": labels, "num_classes": CLASSES}
    return {
        "accuracy": lambda: classification.multiclass_accuracy(**arguments, average="micro"),
        "balanced_accuracy": lambda: classification.multiclass_accuracy(
            **arguments, average="macro"
        ),
        "micro_f1": lambda: classification.multiclass_f1_score(**arguments, average="micro"),
        "macro_f1": lambda: classification.multiclass_f1_score(**arguments, average="macro"),
        "roc_auc": lambda: classification.multiclass_auroc(**arguments),
        "average_precision": lambda: classification.multiclass_average_precision(**arguments),
    }[name]()


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
        expected = float(torchmetrics_score(name, kind, logits, labels))
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
