"""Losses and metrics of links."""

import math

import pytest
import torch

from hopper.models.losses import LINK_LOSSES, check_loss
from hopper.models.metrics import LINK_METRICS, check_metric

SCORES = torch.tensor([[2.0, 1.0, 5.0, -1.0], [0.0, 3.0, 0.5, 0.25]], dtype=torch.float64)
# The second candidate of the first link does not count.
LABELS = torch.tensor([[1.0, 0.0, -1.0, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


EXPECTED = {
    "cross_entropy": [
        math.log(sum(map(math.exp, (2, 1, -1)))) - 2,
        math.log(sum(map(math.exp, (0, 3, 0.5, 0.25)))),
    ],
    "binary_cross_entropy": [
        softplus(-2) + (softplus(1) + softplus(-1)) / 2,
        softplus(0) + (softplus(3) + softplus(0.5) + softplus(0.25)) / 3,
    ],
    "margin": [0.0, (4 + 1.5 + 1.25) / 3],
    "bpr": [(softplus(-1) + softplus(-3)) / 2, (softplus(3) + softplus(0.5) + softplus(0.25)) / 3],
}


@pytest.mark.parametrize("name", LINK_LOSSES)
def test_losses(name):
    loss = LINK_LOSSES[name](classes=8)
    check_loss("train.loss", name, loss, "link", 8)
    expected = torch.tensor(EXPECTED[name], dtype=torch.float64)
    torch.testing.assert_close(loss.root_losses(SCORES, LABELS), expected)


@pytest.mark.parametrize("name", LINK_LOSSES)
def test_a_link_without_negatives_has_a_finite_loss(name):
    scores = torch.tensor([[1.0, 4.0]], requires_grad=True)
    loss = LINK_LOSSES[name](classes=8).root_losses(scores, torch.tensor([[1.0, -1.0]]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[0, 1] == 0


def test_metrics_are_means_over_links():
    ranks = torch.tensor([[1.0], [2.5], [10.0], [11.0]], dtype=torch.float64)
    expected = {"mrr": (1 + 0.4 + 0.1 + 1 / 11) / 4, "hits@1": 0.25, "hits@3": 0.5, "hits@10": 0.75}
    for name, kind in LINK_METRICS.items():
        metric = kind(classes=8)
        check_metric("train.metric", name, metric, "link", 8)
        sums = metric.sums(ranks, torch.ones_like(ranks))  # type: ignore[union-attr]
        assert metric.value(sums) == pytest.approx(expected[name])  # type: ignore[union-attr]
