"""Metrics of links, from the rank of each link among all nodes that could take its end's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import torch
from torch import Tensor

from hopper.graph.schema import TargetKind
from hopper.models.metrics import AnyMetric


class _OfRanks:
    """The mean of a function of ranks [n, 1], of which 1 is the best.

    A link whose score equals others' has the mean of their ranks.
    """

    label_kinds: ClassVar[tuple[TargetKind, ...]] = ("link",)
    higher_is_better: ClassVar[bool] = True

    def __init__(self, *, classes: int) -> None:
        pass

    def of_ranks(self, ranks: Tensor) -> Tensor:
        """Return the numbers [n], float64, to average, from ranks [n]."""
        raise NotImplementedError(f"{type(self).__name__} defines no of_ranks()")

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over links and their number; ``logits`` are ranks."""
        values = self.of_ranks(logits[:, 0].double())
        return torch.stack([values.sum(), torch.tensor(float(len(values)), dtype=torch.float64)])

    def value(self, sums: Tensor) -> float:
        """Return the mean; NaN if there are no links."""
        total, count = sums.tolist()
        return total / count if count else math.nan


class MeanReciprocalRank(_OfRanks):
    """The mean of one over the rank."""

    name: ClassVar[str] = "mrr"

    def of_ranks(self, ranks: Tensor) -> Tensor:
        """Return one over each rank."""
        return 1.0 / ranks


class HitsAt1(_OfRanks):
    """The share of links that rank first."""

    name: ClassVar[str] = "hits@1"
    most: ClassVar[int] = 1

    def of_ranks(self, ranks: Tensor) -> Tensor:
        """Return 1 for each rank of at most ``most``, else 0."""
        return (ranks <= self.most).double()


class HitsAt3(HitsAt1):
    """The share of links among the first three."""

    name: ClassVar[str] = "hits@3"
    most: ClassVar[int] = 3


class HitsAt10(HitsAt1):
    """The share of links among the first ten."""

    name: ClassVar[str] = "hits@10"
    most: ClassVar[int] = 10


LINK_METRICS: Final[Mapping[str, Callable[..., AnyMetric]]] = {
    metric.name: metric for metric in (MeanReciprocalRank, HitsAt1, HitsAt3, HitsAt10)
}
